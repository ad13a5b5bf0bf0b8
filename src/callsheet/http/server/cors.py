"""Cross-origin requests (CORS): only pages of listed origins may read responses.

Keys and tokens are sent in a header, never in a cookie, so no response allows credentials.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from callsheet.http.server.request import Request
from callsheet.http.server.route import Response
from callsheet.http.server.security_headers import Header

_METHODS = "GET, POST, PUT, PATCH, DELETE"
_REQUEST_HEADERS = (
    "authorization, content-type, idempotency-key, if-none-match, if-range, last-event-id, range, x-request-id"
)
_EXPOSED_HEADERS = "accept-ranges, content-range, etag, location, idempotent-replay, retry-after, x-request-id"
_VARY: Header = (b"vary", b"origin")


class Cors:
    """The origins that may call an API, and the headers that they may send and read in addition to the default ones."""

    def __init__(
        self, origins: Iterable[str], *, request_headers: Iterable[str] = (), exposed_headers: Iterable[str] = ()
    ) -> None:
        self._origins = frozenset(map(_validate_origin, origins))
        self._request_headers = ", ".join((_REQUEST_HEADERS, *request_headers))
        self._exposed_headers = ", ".join((_EXPOSED_HEADERS, *exposed_headers)).encode()

    def headers(self, request: Request) -> tuple[Header, ...]:
        """Return the CORS headers of every response to this request."""
        if not self._origins:
            return ()
        origin = request.header(b"origin")
        if origin not in self._origins:
            return (_VARY,)
        return (
            _VARY,
            (b"access-control-allow-origin", origin.encode()),
            (b"access-control-expose-headers", self._exposed_headers),
        )

    def preflight(self, request: Request) -> Response | None:
        """Return the response to a preflight request of an allowed origin, else None."""
        if request.method != "OPTIONS" or request.header(b"access-control-request-method") is None:
            return None
        if request.header(b"origin") not in self._origins:
            return None
        allowed = (
            ("access-control-allow-methods", _METHODS),
            ("access-control-allow-headers", self._request_headers),
            ("access-control-max-age", "600"),
        )
        return Response(None, 204, allowed)


def _validate_origin(origin: str) -> str:
    parts = urlsplit(origin)
    if origin != f"{parts.scheme}://{parts.netloc}" or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"cors_origins: {origin!r} is not an origin: use a URL such as https://app.example.")
    return origin
