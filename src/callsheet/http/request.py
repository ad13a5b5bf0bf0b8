"""One request: its parts read lazily, its body read within limits."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec

from callsheet.core.counting import counted
from callsheet.http.misfit import sentence
from callsheet.http.problem import Problem

T = TypeVar("T")
Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

SAFE: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
"""What goes with every answer."""
_FIELDS_MAX = 64
_JSON_TYPES = {"application/json", "application/json;charset=utf-8"}


class Gone(Exception):  # noqa: N818 - the client is gone
    """The client went away before it was answered."""


class Request:
    """What a handler sees."""

    __slots__ = (
        "_headers", "body_max", "body_seconds", "content", "extra", "id", "params", "query_string", "receive", "scope",
        "secret", "who",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, body_max: int, body_seconds: float) -> None:
        self.scope = scope
        self.receive = receive
        self.body_max = body_max
        self.body_seconds = body_seconds
        self.params: dict[str, str] = {}
        self.id = ""
        self.who: Any = None
        self.content: Any = None
        """The body, as the struct that the route takes."""
        self.extra: tuple[Header, ...] = ()
        """Headers that go with the answer, whatever it is."""
        self.query_string: bytes = scope["query_string"]
        self.secret: str | None = None
        """The key or token it came with, once that was looked for."""
        self._headers: dict[bytes, bytes] | None = None

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def address(self) -> str:
        """Where the request comes from, as far as the socket knows."""
        client = self.scope.get("client")
        return str(client[0]) if client else ""

    def header(self, name: bytes) -> str | None:
        """Return a header by its lower-case name."""
        if self._headers is None:
            self._headers = dict(self.scope["headers"])
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    def idempotency_key(self, given: str | None) -> str | None:
        """Return the key of a request: from its body or its header, and the same if from both."""
        header = self.header(b"idempotency-key")
        if header is None:
            return given
        try:
            header = header.encode("latin-1").decode()  # the same text as in a body, or a repetition is another job
        except UnicodeDecodeError:
            raise Problem(400, "invalid_idempotency_key", "The Idempotency-Key header is not UTF-8.") from None
        if given and given != header:
            raise Problem(
                422, "two_idempotency_keys", "The body's key and the Idempotency-Key header differ: send one."
            )
        return header

    def query(self, shape: type[T]) -> T:
        """Read the query string into a struct; a parameter that is not listed is refused."""
        pairs = self._pairs()
        given = dict(pairs)
        if len(given) != len(pairs):
            raise Problem(422, "invalid_query", "A query parameter is given twice.")
        if any("\0" in value for value in given.values()):
            raise Problem(422, "invalid_query", "A query parameter has a character that no database keeps.")
        try:
            return msgspec.convert(given, shape, strict=False)
        except msgspec.ValidationError as error:
            raise Problem(422, "invalid_query", f"Query: {sentence(error, shape)}") from None

    def take(self, name: str) -> list[str]:
        """Take the values of a parameter out of the query string."""
        pairs = self._pairs()
        self.query_string = urlencode([pair for pair in pairs if pair[0] != name]).encode()
        return [value for given, value in pairs if given == name]

    def _pairs(self) -> list[tuple[str, str]]:
        if not self.query_string:
            return []
        try:
            return parse_qsl(self.query_string.decode("latin-1"), keep_blank_values=True, max_num_fields=_FIELDS_MAX)
        except ValueError:
            raise Problem(422, "invalid_query", f"More than {_FIELDS_MAX} query parameters.") from None

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something that takes long, unless the client leaves first."""
        working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(self._left())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Gone
            return working.result()
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _left(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def body(self, decoder: "msgspec.json.Decoder[T]", *, required: bool) -> T:
        """Read and check a JSON body."""
        raw = await self.raw_body()
        if raw or required:
            self._check_type(raw)
        try:
            return decoder.decode(raw or b"{}")
        except msgspec.ValidationError as error:
            _check_json(raw)
            raise Problem(422, "invalid_body", sentence(error, decoder.type)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _not_json(error) from None

    async def raw_body(self) -> bytes:
        """Read the body up to its limit, within its time."""
        length = self.header(b"content-length")
        if length is not None and length.isdecimal() and int(length) > self.body_max:
            raise self._too_large()
        if self.header(b"content-encoding"):
            raise Problem(415, "unsupported_encoding", "Send the body without Content-Encoding.")
        try:
            async with asyncio.timeout(self.body_seconds):
                return await self._read()
        except TimeoutError:
            raise Problem(
                408, "body_timeout", f"The body did not arrive within {counted(self.body_seconds, 'second')}.",
                {"connection": "close"},
            ) from None  # fmt: skip

    async def _read(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Gone
            part = message.get("body", b"")
            size += len(part)
            if size > self.body_max:
                raise self._too_large()
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts) if len(parts) > 1 else part

    def _too_large(self) -> Problem:
        return Problem(
            413, "body_too_large", f"The body is larger than {self.body_max} bytes.", {"connection": "close"}
        )

    def _check_type(self, raw: bytes) -> None:
        if not raw:
            raise Problem(400, "body_required", "This call needs a JSON body.")
        given = (self.header(b"content-type") or "").lower().replace(" ", "").replace('"', "")
        if given not in _JSON_TYPES:
            raise Problem(415, "unsupported_media_type", "Send JSON: Content-Type: application/json.")


def _check_json(raw: bytes) -> None:
    """A body that is not JSON at all is told so, even where it already looked wrong before it broke."""
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_json(error) from None


def _not_json(error: Exception) -> Problem:
    why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return Problem(400, "invalid_json", f"The body is not JSON: {why}.")
