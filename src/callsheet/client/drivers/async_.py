"""The driver of `AsyncClient`, for asyncio."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, closing
from typing import IO, Any, TypeVar

import httpx

from callsheet.client.operation_effects import (
    Effect,
    Item,
    IterableOperation,
    Open,
    Operation,
    Read,
    Reply,
    Request,
    RunBlocking,
    Send,
    Sleep,
    TransportError,
)
from callsheet.client.transport import TRANSPORT_ERRORS, build_request, open_source, to_reply, to_transport_error

T = TypeVar("T")
_CHUNK = 256 * 1024


class AsyncDriver:
    """Performs operations with asyncio."""

    def __init__(self, http: httpx.AsyncClient, timeout: float) -> None:
        self._http = http
        self._timeout = timeout

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation and return its result."""
        outcome: Any = None
        async with aclosing(_EffectRunner(self._http, self._timeout)) as runner:
            with closing(operation):
                while True:
                    try:
                        effect = (
                            operation.throw(outcome) if isinstance(outcome, TransportError) else operation.send(outcome)
                        )
                    except StopIteration as end:
                        result: T = end.value
                        return result
                    outcome = await runner.perform(effect)

    async def each(self, operation: IterableOperation[T]) -> AsyncGenerator[T, None]:
        """Run an operation and yield its results."""
        outcome: Any = None
        async with aclosing(_EffectRunner(self._http, self._timeout)) as runner:
            with closing(operation):
                while True:
                    try:
                        effect = (
                            operation.throw(outcome) if isinstance(outcome, TransportError) else operation.send(outcome)
                        )
                    except StopIteration:
                        return
                    if isinstance(effect, Item):
                        yield effect.value
                        outcome = None
                    else:
                        outcome = await runner.perform(effect)


class _EffectRunner:
    """Performs the effects of one operation, and holds its open stream."""

    def __init__(self, http: httpx.AsyncClient, timeout: float) -> None:
        self._http = http
        self._timeout = timeout
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes]

    async def aclose(self) -> None:
        if self._response is not None:
            await self._response.aclose()
            self._response = None

    async def perform(self, effect: Effect) -> Any:
        """Return the result of an effect; a failed connection is returned as TransportError."""
        try:
            match effect:
                case Send(request):
                    with open_source(request) as source:
                        content = _read_chunks(source) if source else request.body
                        response = await self._http.send(build_request(self._http, request, self._timeout, content))
                    return to_reply(response, response.content)
                case Open(request):
                    return await self._open_stream(request)
                case Read():
                    return await anext(self._chunks, b"")
                case RunBlocking(function):
                    return await asyncio.to_thread(function)
                case Sleep(seconds):
                    return await asyncio.sleep(seconds)
        except TRANSPORT_ERRORS as error:
            return to_transport_error(error)

    async def _open_stream(self, request: Request) -> Reply:
        await self.aclose()
        prepared = build_request(self._http, request, self._timeout, request.body)
        self._response = await self._http.send(prepared, stream=True)
        self._chunks = self._response.aiter_bytes()
        return to_reply(self._response, b"" if self._response.is_success else await self._response.aread())


async def _read_chunks(source: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(source.read, _CHUNK):
        yield chunk
