"""A worker: a name and a handler for each kind of work. It runs nothing by itself; `start` makes a shift of it."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from callsheet.worker.context import Context
from callsheet.worker.link import Link
from callsheet.worker.shift import Fault, Shift, to_stderr

Handler = Callable[[Context], Any] | Callable[[Context], Awaitable[Any]]
H = TypeVar("H", bound=Callable[[Context], Any])


class Worker:
    """Handlers by kind."""

    def __init__(self, name: str = "worker") -> None:
        self.name = name
        self._handlers: dict[str, Handler] = {}

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return MappingProxyType(self._handlers)

    def task(self, kind: str) -> Callable[[H], H]:
        """Make a function, sync or async, the handler of a kind."""
        if kind in self._handlers:
            raise ValueError(f"There are two handlers for {kind!r}.")

        def keep(handler: H) -> H:
            self._handlers[kind] = handler
            return handler

        return keep

    def start(
        self, link: Link, concurrency: int = 1, *, beat_seconds_max: float = 10.0, fault: Fault = to_stderr
    ) -> Shift:
        """Work in threads beside the caller's, up to `concurrency` tasks at once, until the shift is stopped."""
        if not self._handlers:
            raise ValueError(f"The worker {self.name!r} has no handler.")
        if concurrency < 1:
            raise ValueError("A worker does at least one task at a time.")
        shift = Shift(self.handlers, link, concurrency, beat_seconds_max, fault)
        shift.start()
        return shift
