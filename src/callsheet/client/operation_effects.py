"""Operations: generators that yield effects and receive their results. They do no I/O themselves.

    Send          a request                   receives a Reply
    Open          a request for a stream      receives a Reply; the bytes follow by Read
    Read          the next bytes              receives bytes, empty at the end
    RunBlocking   a function that may block   receives its return value
    Sleep         a delay                     receives nothing
    Item          one result of an iterator   is passed to the caller

A failed effect raises TransportError inside the operation. The drivers in `drivers/` perform the effects.
"""

from collections.abc import Callable, Generator, Mapping
from math import inf
from typing import IO, Any, Generic, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")


class TransportError(Exception):
    """The connection failed. `sent` is true if the server may have received the request."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class Request(NamedTuple):
    """An HTTP request, with the rules for sending it."""

    method: str
    path: str
    query: Mapping[str, Any] = {}
    body: bytes | None = None
    headers: Mapping[str, str] = {}
    idempotent: bool = True
    """Whether sending it twice has the same effect as sending it once."""
    server_wait_seconds: float = 0
    """How long the server may deliberately hold the response (long poll, stream)."""
    deadline: float = inf
    """When the caller stops waiting, in `time.monotonic` time."""
    source: Callable[[], IO[bytes]] | None = None
    """Opens the content to stream instead of `body`. Called once per attempt."""
    omit_credentials: bool = False
    """Do not send the API key: the path is a signed URL, possibly of another host."""


class Reply(NamedTuple):
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


class Send(NamedTuple):
    """Send a request."""

    request: Request


class Open(NamedTuple):
    """Open a stream, and close the one that was open."""

    request: Request


class Read(NamedTuple):
    """Read the next bytes of the open stream."""


class Sleep(NamedTuple):
    """Wait for some seconds."""

    seconds: float


class RunBlocking(NamedTuple):
    """Run a function that may block, such as file I/O."""

    function: Callable[[], Any]


class Item(Generic[T]):
    """One result of an iterator."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


Effect: TypeAlias = Send | Open | Read | Sleep | RunBlocking
Operation: TypeAlias = Generator[Effect, Any, T]
"""An operation with one result."""
IterableOperation: TypeAlias = Generator[Effect | Item[T], Any, None]
"""An operation that yields results."""
