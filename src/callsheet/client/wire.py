"""What both drivers send and read alike: requests, replies, and breakage, in httpx's terms."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import httpx

from callsheet.client.errors import CallsheetError
from callsheet.client.talk import Broken, Reply, Request

BROKEN = (httpx.TransportError, httpx.StreamError, httpx.DecodingError)
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
"""Where no proxy of the environment can lead."""
_OURS = ("authorization", "callsheet-tenant")
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def options(url: str, key: str, tenant: str) -> dict[str, Any]:
    """Return how an httpx client is made: a redirect is not followed, for the key is meant for this server only."""
    try:
        base = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise CallsheetError("no_url", f"This is not an address: {error}.") from None
    if not key.isascii() or not key.isprintable():
        raise CallsheetError("invalid_key", "This is not an API key: it has characters that no key has.")
    if not tenant.isascii() or not tenant.isprintable():
        raise CallsheetError("invalid_tenant", "This is not a tenant: it has characters that no name has.")
    headers = {"user-agent": "callsheet-python"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    if tenant:
        headers["callsheet-tenant"] = tenant
    return {
        "base_url": base, "headers": headers, "follow_redirects": False,
        "trust_env": not _LOOPBACK.fullmatch(base.host),
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
    }  # fmt: skip


def built(http: httpx.Client | httpx.AsyncClient, request: Request, timeout: float, content: Any) -> httpx.Request:
    """Return a request as httpx sends it."""
    headers = dict(request.headers) | ({"content-type": "application/json"} if request.body is not None else {})
    made = http.build_request(
        request.method, request.path, params=dict(request.query) or None, content=content, headers=headers,
        timeout=httpx.Timeout(timeout, read=timeout + request.hold_seconds),
    )  # fmt: skip
    for name in _OURS if request.bare else ():
        made.headers.pop(name, None)
    return made


@contextmanager
def source_of(request: Request) -> Iterator[IO[bytes] | None]:
    """Open what a request sends, if that is not in it."""
    if request.source is None:
        yield None
        return
    with request.source() as file:
        yield file


def reply_of(response: httpx.Response, body: bytes) -> Reply:
    return Reply(response.status_code, response.headers, body)


def broken(error: Exception) -> Broken:
    """Say what broke in a few words, without the address."""
    said = str(error) or type(error).__name__
    return Broken(said.rstrip("."), sent=not isinstance(error, _UNSENT))
