"""The driver that blocks its thread."""

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, TypeVar

import httpx

from callsheet.client.talk import Ask, Broken, Item, Items, Nap, Open, Read, Reply, Request, Send, Talk, Work
from callsheet.client.wire import BROKEN, broken, built, reply_of, source_of

T = TypeVar("T")


def run(http: httpx.Client, timeout: float, talk: Talk[T]) -> T:
    """Drive a call with one result."""
    answer: Any = None
    with closing(talk), closing(_Hand(http, timeout)) as hand:
        while True:
            try:
                ask = talk.throw(answer) if isinstance(answer, Broken) else talk.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = hand.do(ask)


def each(http: httpx.Client, timeout: float, talk: Items[T]) -> Generator[T, None, None]:
    """Drive a call with many results."""
    answer: Any = None
    with closing(talk), closing(_Hand(http, timeout)) as hand:
        while True:
            try:
                ask = talk.throw(answer) if isinstance(answer, Broken) else talk.send(answer)
            except StopIteration:
                return
            if isinstance(ask, Item):
                yield ask.value
                answer = None
            else:
                answer = hand.do(ask)


class _Hand:
    """Does what one talk asks for."""

    def __init__(self, http: httpx.Client, timeout: float) -> None:
        self._http = http
        self._timeout = timeout
        self._open: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def do(self, ask: Ask) -> Any:
        """Return the answer; what broke is an answer too."""
        try:
            match ask:
                case Send(request):
                    with source_of(request) as source:
                        made = built(self._http, request, self._timeout, source or request.body)
                        response = self._http.send(made)
                    return reply_of(response, response.content)
                case Open(request):
                    return self._opened(request)
                case Read():
                    return next(self._chunks, b"")
                case Work(function):
                    return function()
                case Nap(seconds):
                    return time.sleep(seconds)
        except BROKEN as error:
            return broken(error)

    def _opened(self, request: Request) -> Reply:
        self.close()
        made = built(self._http, request, self._timeout, request.body)
        self._open = self._http.send(made, stream=True)
        self._chunks = self._open.iter_bytes()
        return reply_of(self._open, b"" if self._open.is_success else self._open.read())
