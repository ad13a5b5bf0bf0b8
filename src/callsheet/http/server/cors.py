"""Calls from web pages of other origins: only those that are listed may read what we answer.

A key or token goes in the Authorization header, never in a cookie, so no answer ever allows credentials.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from callsheet.http.server.request import Header, Request
from callsheet.http.server.router import Response

_METHODS = "GET, POST, PUT, PATCH, DELETE"
_MAY_SEND = "authorization, content-type, idempotency-key, if-none-match, if-range, last-event-id, range, x-request-id"
_MAY_READ = b"accept-ranges, content-range, etag, location, idempotent-replay, retry-after, x-request-id"
_VARY: Header = (b"vary", b"origin")


class Cors:
    """Knows the origins that may call."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(map(_checked, origins))

    def headers(self, request: Request) -> tuple[Header, ...]:
        """Return what goes with every answer to this request."""
        if not self._origins:
            return ()
        origin = request.header(b"origin")
        if origin not in self._origins:
            return (_VARY,)
        return (
            _VARY,
            (b"access-control-allow-origin", origin.encode()),
            (b"access-control-expose-headers", _MAY_READ),
        )

    def preflight(self, request: Request) -> Response | None:
        """Answer a browser that asks first; None for any other request."""
        if request.method != "OPTIONS" or request.header(b"access-control-request-method") is None:
            return None
        if request.header(b"origin") not in self._origins:
            return None
        allowed = (
            ("access-control-allow-methods", _METHODS),
            ("access-control-allow-headers", _MAY_SEND),
            ("access-control-max-age", "600"),
        )
        return Response(None, 204, allowed)


def _checked(origin: str) -> str:
    parts = urlsplit(origin)
    if origin != f"{parts.scheme}://{parts.netloc}" or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"cors_origins: {origin!r} is not an origin: write scheme and host, as https://app.example.")
    return origin
