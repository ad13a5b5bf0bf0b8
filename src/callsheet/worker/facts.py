"""What a shift tells whoever looks on: one struct for each thing that happened. The worker itself writes no line."""

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from callsheet.protocol import Work
from callsheet.worker.errors import Barred, CommandFailed, Unreachable


class Arrived(Struct, frozen=True):
    """The house let the worker in; unless it is approved, a person has to do that before it gets work."""

    worker: str
    kinds: list[str]
    approved: bool


class Waiting(Struct, frozen=True):
    """There is no work for a reason; told once for each reason."""

    why: str


class Ready(Struct, frozen=True):
    """What the worker waited for before it took any work is there."""


class Began(Struct, frozen=True):
    """A task is in hand."""

    work: Work


class Ended(Struct, frozen=True):
    """A task is out of hand: completed, failed, canceled, lost, requeued, or not reported."""

    work: Work
    how: str
    seconds: float


class Trouble(Struct, frozen=True):
    """Something went wrong, and the worker goes on."""

    what: str
    error: BaseException


class Left(Struct, frozen=True):
    """The shift is over."""

    why: str


Fact = Arrived | Waiting | Ready | Began | Ended | Trouble | Left
Tell = Callable[[Fact], None]


def guarded(tell: Tell) -> Tell:
    """Tell whoever looks on; that nobody can be told any more ends no thread of the worker."""

    def told(fact: Fact) -> None:
        with suppress(Exception):  # a terminal that was closed, most of all
            tell(fact)

    return told


def to_stderr(fact: Fact) -> None:
    """Write down what went wrong, for whoever wrote the handler."""
    if isinstance(fact, Trouble):
        sys.stderr.write(f"{fact.what}:{_why(fact.error)}")
    elif isinstance(fact, Waiting):
        sys.stderr.write(f"{fact.why}\n")


def _why(error: BaseException) -> str:
    """Say what went wrong in a line where that says all; what a handler raised has its stack."""
    if isinstance(error, Unreachable | Barred | CommandFailed):
        return f" {error}\n"
    return "\n" + "".join(traceback.format_exception(error))
