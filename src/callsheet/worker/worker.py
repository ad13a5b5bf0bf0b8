"""A worker: a name and a handler for each kind of work. It runs nothing by itself; `start` makes a shift of it."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from callsheet.worker.context import Context
from callsheet.worker.link.base import Link
from callsheet.worker.runtime.attempt import Handler
from callsheet.worker.runtime.runner import WorkerOptions, WorkerRun

H = TypeVar("H", bound=Callable[[Context], Any])


class Worker:
    """Handlers by kind. `ready` is called before any work is taken, and again as long as it raises `Unreachable`."""

    def __init__(self, name: str = "worker", check_ready: Callable[[], None] | None = None) -> None:
        self.name = name
        self._readiness_check = check_ready
        self._handlers: dict[str, Handler] = {}

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return MappingProxyType(self._handlers)

    def task(self, kind: str) -> Callable[[H], H]:
        """Make a function, sync or async, the handler of a kind."""
        if not isinstance(kind, str):  # it was written without one: this is the function
            raise TypeError('Say which kind of work it does: @worker.task("kind").')
        if kind in self._handlers:
            raise ValueError(f"There are two handlers for {kind!r}.")

        def register(handler: H) -> H:
            self._handlers[kind] = handler
            return handler

        return register

    def start(
        self,
        link: Link,
        concurrency: int = 1,
        *,
        kinds: Sequence[str] | None = None,
        worker_options: WorkerOptions | None = None,
    ) -> WorkerRun:
        """Work in threads beside the caller's, up to `concurrency` tasks at once, until the shift is stopped.

        `kinds` are those to take, out of all that there are handlers for.
        """
        if concurrency < 1:
            raise ValueError("A worker does at least one task at a time.")
        handlers = self._handlers if kinds is None else {kind: self._handler_for(kind) for kind in kinds}
        if not handlers:
            raise ValueError(f"The worker {self.name!r} has no handler.")
        worker_run = WorkerRun(
            MappingProxyType(dict(handlers)),
            link,
            concurrency,
            worker_options or WorkerOptions(),
            self._readiness_check,
        )
        worker_run.start()
        return worker_run

    def _handler_for(self, kind: str) -> Handler:
        if kind not in self._handlers:
            raise ValueError(f"The worker {self.name!r} has no handler for {kind!r}.")
        return self._handlers[kind]
