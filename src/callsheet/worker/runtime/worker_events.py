"""Events of a worker run, one struct per type. The worker logs nothing itself; listeners print or record events."""

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from callsheet.api.worker_protocol import TaskPayload
from callsheet.core.model.terminal_text import sanitize_lines
from callsheet.worker.errors import CommandError, RegistrationError, UnreachableError


class WorkerRegistered(Struct, frozen=True):
    """The worker is registered. If it is not approved, an operator must approve it before it gets tasks."""

    worker: str
    kinds: list[str]
    approved: bool


class WorkerWaiting(Struct, frozen=True):
    """The worker cannot claim tasks. Emitted once per reason."""

    reason: str


class WorkerReady(Struct, frozen=True):
    """The readiness check passed after it had failed; the worker claims tasks now."""


class TaskStarted(Struct, frozen=True):
    """A handler starts."""

    work: TaskPayload


class TaskEnded(Struct, frozen=True):
    """A handler has ended. `outcome`: completed, failed, canceled, lost, requeued or unreported."""

    work: TaskPayload
    outcome: str
    seconds: float


class WorkerError(Struct, frozen=True):
    """An error that does not stop the worker."""

    message: str
    error: BaseException


class WorkerStopped(Struct, frozen=True):
    """The worker has stopped."""

    reason: str


WorkerEvent = WorkerRegistered | WorkerWaiting | WorkerReady | TaskStarted | TaskEnded | WorkerError | WorkerStopped
EventListener = Callable[[WorkerEvent], None]


def ignore_listener_errors(on_event: EventListener) -> EventListener:
    """Wrap a listener so that its exceptions do not end a thread of the worker."""

    def notify(event: WorkerEvent) -> None:
        with suppress(Exception):  # for example, the terminal was closed
            on_event(event)

    return notify


def log_to_stderr(event: WorkerEvent) -> None:
    """Write errors and waiting reasons to stderr. This is the default listener."""
    if isinstance(event, WorkerError):
        sys.stderr.write(sanitize_lines(f"{event.message}:{_describe_error(event.error)}"))
    elif isinstance(event, WorkerWaiting):
        sys.stderr.write(f"{sanitize_lines(event.reason)}\n")


def _describe_error(error: BaseException) -> str:
    """Return one line for expected errors, a traceback for everything else."""
    if isinstance(error, UnreachableError | RegistrationError | CommandError):
        return f" {error}\n"
    return "\n" + "".join(traceback.format_exception(error))
