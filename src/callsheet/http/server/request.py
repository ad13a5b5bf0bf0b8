"""One request: its parts read lazily, its body read within limits."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec

from callsheet.core.model.plural import counted
from callsheet.http.server.problems import Problem
from callsheet.http.server.validation_errors import describe_validation_error

T = TypeVar("T")
Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

SECURITY_HEADERS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
"""What goes with every answer."""
_QUERY_PARAMETERS_MAX = 64
_JSON_TYPES = {"application/json", "application/json;charset=utf-8"}


class ClientDisconnected(Exception):  # noqa: N818 - the client is gone
    """The client went away before it was answered."""


class Request:
    """What a handler sees."""

    __slots__ = (
        "_headers",
        "body_max",
        "body_timeout_seconds",
        "caller",
        "content",
        "extra_headers",
        "id",
        "params",
        "query_string",
        "receive",
        "scope",
        "secret",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, body_max: int, body_timeout_seconds: float) -> None:
        self.scope = scope
        self.receive = receive
        self.body_max = body_max
        self.body_timeout_seconds = body_timeout_seconds
        self.params: dict[str, str] = {}
        self.id = ""
        self.caller: Any = None
        self.content: Any = None
        """The body, as the struct that the route takes."""
        self.extra_headers: tuple[Header, ...] = ()
        """Headers that go with the answer, whatever it is."""
        self.query_string: bytes = scope["query_string"]
        self.secret: str | None = None
        """The key or token it came with, once that was looked for."""
        self._headers: dict[bytes, bytes] | None = None

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def client_address(self) -> str:
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
                422, "idempotency_key_conflict", "The body's key and the Idempotency-Key header differ: send one."
            )
        return header

    def query(self, shape: type[T]) -> T:
        """Read the query string into a struct; a parameter that is not listed is refused."""
        pairs = self._query_pairs()
        given = dict(pairs)
        if len(given) != len(pairs):
            raise Problem(422, "invalid_query", "A query parameter is given twice.")
        if any("\0" in value for value in given.values()):
            raise Problem(422, "invalid_query", "A query parameter has a character that no database keeps.")
        try:
            return msgspec.convert(given, shape, strict=False)
        except msgspec.ValidationError as error:
            raise Problem(422, "invalid_query", f"Query: {describe_validation_error(error, shape)}") from None

    def pop_query_parameter(self, name: str) -> list[str]:
        """Take the values of a parameter out of the query string."""
        pairs = self._query_pairs()
        self.query_string = urlencode([pair for pair in pairs if pair[0] != name]).encode()
        return [value for given, value in pairs if given == name]

    def _query_pairs(self) -> list[tuple[str, str]]:
        if not self.query_string:
            return []
        try:
            return parse_qsl(
                self.query_string.decode("latin-1"), keep_blank_values=True, max_num_fields=_QUERY_PARAMETERS_MAX
            )
        except ValueError:
            raise Problem(422, "invalid_query", f"More than {_QUERY_PARAMETERS_MAX} query parameters.") from None

    async def until_disconnect(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something that takes long, unless the client leaves first."""
        work_task, disconnect_wait = asyncio.ensure_future(work), asyncio.ensure_future(self._wait_for_disconnect())
        try:
            await asyncio.wait((work_task, disconnect_wait), return_when=asyncio.FIRST_COMPLETED)
            if not work_task.done():
                raise ClientDisconnected
            return work_task.result()
        finally:
            work_task.cancel()
            disconnect_wait.cancel()
            await asyncio.gather(work_task, disconnect_wait, return_exceptions=True)

    async def _wait_for_disconnect(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def body(self, decoder: "msgspec.json.Decoder[T]", *, required: bool) -> T:
        """Read and check a JSON body."""
        raw = await self.read_body()
        if raw or required:
            self._check_content_type(raw)
        try:
            return decoder.decode(raw or b"{}")
        except msgspec.ValidationError as error:
            _check_json(raw)
            raise Problem(422, "invalid_body", describe_validation_error(error, decoder.type)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _not_json(error) from None

    async def read_body(self) -> bytes:
        """Read the body up to its limit, within its time."""
        length = self.header(b"content-length")
        if length is not None and length.isdecimal() and int(length) > self.body_max:
            raise self._too_large()
        if self.header(b"content-encoding"):
            raise Problem(415, "unsupported_encoding", "Send the body without Content-Encoding.")
        try:
            async with asyncio.timeout(self.body_timeout_seconds):
                return await self._receive_body()
        except TimeoutError:
            raise Problem(
                408, "body_timeout", f"The body did not arrive within {counted(self.body_timeout_seconds, 'second')}.",
                {"connection": "close"},
            ) from None  # fmt: skip

    async def _receive_body(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
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

    def _check_content_type(self, raw: bytes) -> None:
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
