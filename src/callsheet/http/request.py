"""One request: its parts read lazily, its body read within limits."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from callsheet.http.problem import Problem

T = TypeVar("T")
Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

_JSON_TYPES = {"application/json", "application/json;charset=utf-8"}


class Gone(Exception):  # noqa: N818 - the client is gone
    """The client went away before it was answered."""


class Request:
    """What a handler sees."""

    __slots__ = ("_headers", "body_max", "body_seconds", "content", "id", "params", "receive", "scope", "who")

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
        self._headers: dict[bytes, bytes] | None = None

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    def header(self, name: bytes) -> str | None:
        """Return a header by its lower-case name."""
        if self._headers is None:
            self._headers = dict(self.scope["headers"])
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    def query(self, shape: type[T]) -> T:
        """Read the query string into a struct; a parameter that is not listed is refused."""
        raw: bytes = self.scope["query_string"]
        pairs = parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=64) if raw else []
        given = dict(pairs)
        if len(given) != len(pairs):
            raise Problem(422, "invalid_query", "A query parameter is given twice.")
        try:
            return msgspec.convert(given, shape, strict=False)
        except msgspec.ValidationError as error:
            raise Problem(422, "invalid_query", f"Query: {error}.") from None

    async def body(self, decoder: "msgspec.json.Decoder[T]", *, required: bool) -> T:
        """Read and check a JSON body."""
        raw = await self.raw_body()
        if raw or required:
            self._check_type(raw)
        try:
            return decoder.decode(raw or b"{}")
        except msgspec.ValidationError as error:
            raise Problem(422, "invalid_body", f"{error}.") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Problem(400, "invalid_json", f"The body is not JSON: {error}.") from None
        except RecursionError:
            raise Problem(400, "invalid_json", "The body is nested too deeply.") from None

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
                408, "body_timeout", f"The body did not arrive within {self.body_seconds:g} seconds.",
                {"connection": "close"},
            ) from None  # fmt: skip

    async def _read(self) -> bytes:
        message = await self.receive()
        if not message.get("more_body"):
            self._alive(message)
            return self._within(message.get("body", b""))
        parts = [message.get("body", b"")]
        size = len(parts[0])
        while message.get("more_body"):
            message = await self.receive()
            self._alive(message)
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.body_max:
                raise self._too_large()
        return b"".join(parts)

    def _within(self, body: bytes) -> bytes:
        if len(body) > self.body_max:
            raise self._too_large()
        return body

    @staticmethod
    def _alive(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.disconnect":
            raise Gone

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
