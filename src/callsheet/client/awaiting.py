"""The driver for asyncio."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, closing
from typing import IO, Any, TypeVar

import httpx

from callsheet.client.talk import Ask, Broken, Item, Items, Nap, Open, Read, Reply, Request, Send, Talk, Work
from callsheet.client.wire import BROKEN, broken, built, reply_of, source_of

T = TypeVar("T")
_CHUNK = 256 * 1024


async def run(http: httpx.AsyncClient, timeout: float, talk: Talk[T]) -> T:  # noqa: ASYNC109 - httpx's, per read
    """Drive a call with one result."""
    answer: Any = None
    async with aclosing(_Hand(http, timeout)) as hand:
        with closing(talk):
            while True:
                try:
                    ask = talk.throw(answer) if isinstance(answer, Broken) else talk.send(answer)
                except StopIteration as end:
                    result: T = end.value
                    return result
                answer = await hand.do(ask)


async def each(http: httpx.AsyncClient, timeout: float, talk: Items[T]) -> AsyncGenerator[T, None]:  # noqa: ASYNC109 - the same
    """Drive a call with many results."""
    answer: Any = None
    async with aclosing(_Hand(http, timeout)) as hand:
        with closing(talk):
            while True:
                try:
                    ask = talk.throw(answer) if isinstance(answer, Broken) else talk.send(answer)
                except StopIteration:
                    return
                if isinstance(ask, Item):
                    yield ask.value
                    answer = None
                else:
                    answer = await hand.do(ask)


class _Hand:
    """Does what one talk asks for."""

    def __init__(self, http: httpx.AsyncClient, timeout: float) -> None:
        self._http = http
        self._timeout = timeout
        self._open: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes]

    async def aclose(self) -> None:
        if self._open is not None:
            await self._open.aclose()
            self._open = None

    async def do(self, ask: Ask) -> Any:
        """Return the answer; what broke is an answer too."""
        try:
            match ask:
                case Send(request):
                    with source_of(request) as source:
                        content = _pieces(source) if source else request.body
                        response = await self._http.send(built(self._http, request, self._timeout, content))
                    return reply_of(response, response.content)
                case Open(request):
                    return await self._opened(request)
                case Read():
                    return await anext(self._chunks, b"")
                case Work(function):
                    return await asyncio.to_thread(function)
                case Nap(seconds):
                    return await asyncio.sleep(seconds)
        except BROKEN as error:
            return broken(error)

    async def _opened(self, request: Request) -> Reply:
        await self.aclose()
        made = built(self._http, request, self._timeout, request.body)
        self._open = await self._http.send(made, stream=True)
        self._chunks = self._open.aiter_bytes()
        return reply_of(self._open, b"" if self._open.is_success else await self._open.aread())


async def _pieces(source: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(source.read, _CHUNK):
        yield piece
