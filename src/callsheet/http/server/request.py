"""An HTTP request. Headers and query are parsed on first use; the body is read within limits of size and time."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec

from callsheet.core.model.plural import pluralize
from callsheet.core.policy.admission import WorkClass
from callsheet.http.server.problems import Problem
from callsheet.http.server.security_headers import SECURITY_HEADERS, Header
from callsheet.http.server.validation_errors import describe_validation_error

T = TypeVar("T")
Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

_QUERY_PARAMETERS_MAX = 64


class ClientDisconnected(Exception):  # noqa: N818 - an event, not an error
    """The client closed the connection before it got a response."""


class Request:
    """The request as handlers see it."""

    __slots__ = (
        "_headers",
        "api",
        "body_max",
        "body_timeout_seconds",
        "caller",
        "content",
        "extra_headers",
        "form",
        "id",
        "in_progress",
        "params",
        "query_string",
        "receive",
        "route",
        "scope",
        "secret",
        "work_class",
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
        """The body, decoded into the route's `request` struct."""
        self.extra_headers: tuple[Header, ...] = ()
        """Response headers that do not depend on the outcome (CORS)."""
        self.query_string: bytes = scope["query_string"]
        self.secret: str | None = None
        """The key or token of the request, after authentication has read it."""
        self.api: Any = None
        """The API that handles the request."""
        self.route: Any = None
        """The route that handles the request, with its full path."""
        self.form: Any = None
        """The parsed form, if the body is one. The app closes its files after the response."""
        self.in_progress: Counter[WorkClass] = Counter()
        """The requests that the server handles at the moment, with this one."""
        self.work_class = WorkClass.ESSENTIAL
        self._headers: dict[bytes, bytes] | None = None

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def client_address(self) -> str:
        """The IP address of the socket's other end: the client, or its proxy."""
        client = self.scope.get("client")
        return str(client[0]) if client else ""

    def header(self, name: bytes) -> str | None:
        """Return a header by its lower-case name."""
        if self._headers is None:
            self._headers = dict(self.scope["headers"])
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    def response_headers(self) -> list[Header]:
        """Return the headers that every response to this request has: security, CORS, request id."""
        return [*SECURITY_HEADERS, *self.extra_headers, (b"x-request-id", self.id.encode())]

    def idempotency_key(self, in_body: str | None) -> str | None:
        """Return the idempotency key from the body or the header; if both are set they must be equal."""
        header = self.header(b"idempotency-key")
        if header is None:
            return in_body
        try:
            header = header.encode("latin-1").decode()  # decode it like the body, so that both are the same key
        except UnicodeDecodeError:
            raise Problem(
                400, "invalid_idempotency_key", "The Idempotency-Key header is not UTF-8. Encode it as UTF-8."
            ) from None
        if in_body and in_body != header:
            raise Problem(
                422,
                "idempotency_key_conflict",
                "The body's idempotency key and the Idempotency-Key header differ. Send only one.",
            )
        return header

    def query(self, shape: type[T]) -> T:
        """Decode the query string into a struct; unknown parameters are refused."""
        pairs = self._query_pairs()
        parameters = dict(pairs)
        if len(parameters) != len(pairs):
            raise Problem(422, "invalid_query", "A query parameter is repeated. Send it once.")
        if any("\0" in value for value in parameters.values()):
            raise Problem(422, "invalid_query", "A query parameter contains a NUL character. Remove it.")
        try:
            return msgspec.convert(parameters, shape, strict=False)
        except msgspec.ValidationError as error:
            raise Problem(422, "invalid_query", f"Query: {describe_validation_error(error, shape)}") from None

    def pop_query_parameter(self, name: str) -> list[str]:
        """Remove a parameter from the query string and return its values."""
        pairs = self._query_pairs()
        self.query_string = urlencode([pair for pair in pairs if pair[0] != name]).encode()
        return [value for parameter, value in pairs if parameter == name]

    def _query_pairs(self) -> list[tuple[str, str]]:
        if not self.query_string:
            return []
        try:
            return parse_qsl(
                self.query_string.decode("latin-1"), keep_blank_values=True, max_num_fields=_QUERY_PARAMETERS_MAX
            )
        except ValueError:
            raise Problem(
                422, "invalid_query", f"The query has more than {_QUERY_PARAMETERS_MAX} parameters. Send fewer."
            ) from None

    @contextmanager
    def not_in_progress(self) -> Iterator[None]:
        """Do not count the request as in progress while it waits for its client or for an event."""
        self.in_progress[self.work_class] -= 1
        try:
            yield
        finally:
            self.in_progress[self.work_class] += 1

    async def until_disconnect(
        self, work: Coroutine[Any, Any, T], check: Callable[[], Awaitable[Any]] | None = None,
        check_seconds: float | None = None,
    ) -> T:  # fmt: skip
        """Await work that may take long. It is canceled if the client disconnects, or if a regular check raises.

        Meanwhile the request does not count as in progress.
        """
        work_task, disconnect_wait = asyncio.ensure_future(work), asyncio.ensure_future(self._wait_for_disconnect())
        both = (work_task, disconnect_wait)
        try:
            with self.not_in_progress():
                while not (await asyncio.wait(both, timeout=check_seconds, return_when=asyncio.FIRST_COMPLETED))[0]:
                    if check is not None:
                        await check()
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

    def check_body_headers(self) -> None:
        """Refuse a body if its headers show that it is too large or compressed."""
        length = self.header(b"content-length")
        if length is not None and length.isdecimal() and int(length) > self.body_max:
            raise self.body_too_large()
        if self.header(b"content-encoding"):
            raise Problem(415, "unsupported_encoding", "The body is compressed. Send it without Content-Encoding.")

    async def read_body(self) -> bytes:
        """Read the body within its limits of size and time."""
        self.check_body_headers()
        try:
            async with asyncio.timeout(self.body_timeout_seconds):
                return await self._receive_body()
        except TimeoutError:
            raise Problem(
                408, "body_timeout",
                f"The body did not arrive within {pluralize(self.body_timeout_seconds, 'second')}. Send it again.",
                {"connection": "close"},
            ) from None  # fmt: skip

    async def _receive_body(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            part, more = await self.receive_part()
            size += len(part)
            if size > self.body_max:
                raise self.body_too_large()
            parts.append(part)
            if not more:
                return b"".join(parts) if len(parts) > 1 else part

    async def receive_part(self) -> tuple[bytes, bool]:
        """Return the next bytes of the body, and whether more follow."""
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        return message.get("body", b""), bool(message.get("more_body"))

    def body_too_large(self) -> Problem:
        """Return the error for a body over its limit; the rest of the body is not read."""
        message = f"The body is larger than {self.body_max} bytes, the limit of this route."
        return Problem(413, "body_too_large", message, {"connection": "close"})
