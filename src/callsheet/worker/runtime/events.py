"""What a shift tells whoever looks on: one struct for each thing that happened. The worker itself writes no line."""

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from callsheet.api.worker_protocol import TaskPayload
from callsheet.worker.errors import CommandError, RegistrationError, UnreachableError


class WorkerRegistered(Struct, frozen=True):
    """The house let the worker in; unless it is approved, a person has to do that before it gets work."""

    worker: str
    kinds: list[str]
    approved: bool


class WorkerWaiting(Struct, frozen=True):
    """There is no work for a reason; told once for each reason."""

    reason: str


class WorkerReady(Struct, frozen=True):
    """What the worker waited for before it took any work is there."""


class TaskStarted(Struct, frozen=True):
    """A task is in hand."""

    work: TaskPayload


class TaskEnded(Struct, frozen=True):
    """A task is out of hand: completed, failed, canceled, lost, requeued, or not reported."""

    work: TaskPayload
    outcome: str
    seconds: float


class WorkerError(Struct, frozen=True):
    """Something went wrong, and the worker goes on."""

    message: str
    error: BaseException


class WorkerStopped(Struct, frozen=True):
    """The shift is over."""

    reason: str


WorkerEvent = WorkerRegistered | WorkerWaiting | WorkerReady | TaskStarted | TaskEnded | WorkerError | WorkerStopped
EventListener = Callable[[WorkerEvent], None]


def ignore_listener_errors(on_event: EventListener) -> EventListener:
    """Tell whoever looks on; that nobody can be told any more ends no thread of the worker."""

    def notify(event: WorkerEvent) -> None:
        with suppress(Exception):  # a terminal that was closed, most of all
            on_event(event)

    return notify


def log_to_stderr(event: WorkerEvent) -> None:
    """Write down what went wrong, for whoever wrote the handler."""
    if isinstance(event, WorkerError):
        sys.stderr.write(f"{event.message}:{_describe_error(event.error)}")
    elif isinstance(event, WorkerWaiting):
        sys.stderr.write(f"{event.reason}\n")


def _describe_error(error: BaseException) -> str:
    """Say what went wrong in a line where that says all; what a handler raised has its stack."""
    if isinstance(error, UnreachableError | RegistrationError | CommandError):
        return f" {error}\n"
    return "\n" + "".join(traceback.format_exception(error))
