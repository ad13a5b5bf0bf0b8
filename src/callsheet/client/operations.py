"""A call is a talk: a generator that yields what it needs and is sent the answer. It does no I/O itself.

    Send      a request                 is answered with a Reply
    Open      a request for a stream    is answered with a Reply; the bytes follow by Read
    Read      the next bytes            is answered with bytes, empty at the end
    Work      something with a file     is answered with what it returns
    Nap       a wait                    is answered with nothing
    Item      one of many results       goes to the caller of an iterator

What breaks is thrown in as Broken. A driver (blocking.py, awaiting.py) does the I/O; there are two, of forty lines.
"""

from collections.abc import Callable, Generator, Mapping
from math import inf
from typing import IO, Any, Generic, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")


class TransportError(Exception):
    """The connection broke; `sent` says whether the server may have got the request."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class Request(NamedTuple):
    """What is sent to the server."""

    method: str
    path: str
    query: Mapping[str, Any] = {}
    body: bytes | None = None
    headers: Mapping[str, str] = {}
    idempotent: bool = True
    """It may be sent twice and is done once."""
    server_wait_seconds: float = 0
    """How long the server may take on purpose."""
    deadline: float = inf
    """When nobody waits for the answer any more, by `time.monotonic`."""
    source: Callable[[], IO[bytes]] | None = None
    """Opens what is sent in place of `body`, piece by piece; once for every try."""
    omit_credentials: bool = False
    """To a signed address, perhaps of somebody else: the key does not go with it."""


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


class Send(NamedTuple):
    """Send a request."""

    request: Request


class Open(NamedTuple):
    """Open a stream; whatever was open before is closed."""

    request: Request


class Read(NamedTuple):
    """Read on in the open stream."""


class Sleep(NamedTuple):
    """Wait."""

    seconds: float


class RunBlocking(NamedTuple):
    """Do something that may block for a moment."""

    function: Callable[[], Any]


class Item(Generic[T]):
    """One of many results."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


Effect: TypeAlias = Send | Open | Read | Sleep | RunBlocking
Operation: TypeAlias = Generator[Effect, Any, T]
"""A call with one result."""
IterableOperation: TypeAlias = Generator[Effect | Item[T], Any, None]
"""A call with many results, one after the other."""
