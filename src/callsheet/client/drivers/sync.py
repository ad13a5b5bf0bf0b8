"""The driver of `Client`: it blocks the calling thread."""

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, TypeVar

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


class SyncDriver:
    """Performs operations and blocks the calling thread."""

    def __init__(self, http: httpx.Client, timeout: float) -> None:
        self._http = http
        self._timeout = timeout

    def run(self, operation: Operation[T]) -> T:
        """Run an operation and return its result."""
        outcome: Any = None
        with closing(operation), closing(_EffectRunner(self._http, self._timeout)) as runner:
            while True:
                try:
                    effect = (
                        operation.throw(outcome) if isinstance(outcome, TransportError) else operation.send(outcome)
                    )
                except StopIteration as end:
                    result: T = end.value
                    return result
                outcome = runner.perform(effect)

    def each(self, operation: IterableOperation[T]) -> Generator[T, None, None]:
        """Run an operation and yield its results."""
        outcome: Any = None
        with closing(operation), closing(_EffectRunner(self._http, self._timeout)) as runner:
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
                    outcome = runner.perform(effect)


class _EffectRunner:
    """Performs the effects of one operation, and holds its open stream."""

    def __init__(self, http: httpx.Client, timeout: float) -> None:
        self._http = http
        self._timeout = timeout
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None

    def perform(self, effect: Effect) -> Any:
        """Return the result of an effect; a failed connection is returned as TransportError."""
        try:
            match effect:
                case Send(request):
                    with open_source(request) as source:
                        prepared = build_request(self._http, request, self._timeout, source or request.body)
                        response = self._http.send(prepared)
                    return to_reply(response, response.content)
                case Open(request):
                    return self._open_stream(request)
                case Read():
                    return next(self._chunks, b"")
                case RunBlocking(function):
                    return function()
                case Sleep(seconds):
                    return time.sleep(seconds)
        except TRANSPORT_ERRORS as error:
            return to_transport_error(error)

    def _open_stream(self, request: Request) -> Reply:
        self.close()
        prepared = build_request(self._http, request, self._timeout, request.body)
        self._response = self._http.send(prepared, stream=True)
        self._chunks = self._response.iter_bytes()
        return to_reply(self._response, b"" if self._response.is_success else self._response.read())
