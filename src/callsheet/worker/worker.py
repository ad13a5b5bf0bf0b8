"""`Worker`: a set of handlers, one per kind of task."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from callsheet.worker.context import Context
from callsheet.worker.link.base import Link
from callsheet.worker.runtime.attempt import Handler
from callsheet.worker.runtime.runner import WorkerOptions, WorkerRun

H = TypeVar("H", bound=Callable[[Context], Any])


class Worker:
    """A set of handlers, one per kind of task. Nothing runs until you call `start`.

    `check_ready` is called before the first claim, and repeated every few seconds while it raises `UnreachableError`.
    """

    def __init__(self, name: str = "worker", check_ready: Callable[[], None] | None = None) -> None:
        self.name = name
        self._readiness_check = check_ready
        self._handlers: dict[str, Handler] = {}

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return MappingProxyType(self._handlers)

    def task(self, kind: str) -> Callable[[H], H]:
        """Register the decorated function, sync or async, as the handler of a kind."""
        if not isinstance(kind, str):  # the decorator was used without parentheses
            raise TypeError('The decorator needs a kind: write @worker.task("kind").')
        if kind in self._handlers:
            raise ValueError(f"The kind {kind!r} already has a handler. Register one handler per kind.")

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
        """Start to claim and run tasks in background threads; return the run, which you stop with `WorkerRun.stop`.

        The worker runs up to `concurrency` tasks at once. `kinds` limits which kinds it claims; by default all that
        have a handler.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; it must be at least 1.")
        handlers = self._handlers if kinds is None else {kind: self._handler_for(kind) for kind in kinds}
        if not handlers:
            raise ValueError(f"The worker {self.name!r} has no handlers. Register one with @worker.task(KIND).")
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
            known = ", ".join(sorted(self._handlers)) or "none"
            raise ValueError(f"The worker {self.name!r} has no handler for {kind!r}. Its kinds: {known}.")
        return self._handlers[kind]
