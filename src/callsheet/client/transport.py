"""What both drivers send and read alike: requests, replies, and breakage, in httpx's terms."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import httpx

import callsheet
from callsheet.client.deadline import seconds_left
from callsheet.client.errors import CallsheetError
from callsheet.client.operations import Reply, Request, TransportError

TRANSPORT_ERRORS = (httpx.TransportError, httpx.StreamError, httpx.DecodingError)
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
"""Where no proxy of the environment can lead."""
_TIMEOUT_SECONDS_MIN = 0.001
"""To httpx a timeout of 0 is none that may pass."""
_AUTH_HEADERS = ("authorization", "callsheet-tenant")
_NOT_SENT_ERRORS = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def resolve_url(url: str | None) -> str:
    """Return the server's address, as it was given or as the environment has it; what is wrong with it is said."""
    resolved = url or os.environ.get("CALLSHEET_URL", "")
    if not resolved:
        raise CallsheetError("invalid_url", "Name the server: http://…, or CALLSHEET_URL in the environment.")
    why = _url_error(resolved)
    if why:
        redacted = repr(resolved.rpartition("@")[2])  # without the name and password that it may hold
        what = f"{redacted} is" if url else f"CALLSHEET_URL is {redacted}, which is"
        raise CallsheetError("invalid_url", f"{what} no address of a server: {why}.")
    return resolved.rstrip("/")


def _url_error(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        return "an address begins with http:// or https://"
    try:
        return "" if httpx.URL(url).host else "it names no host"
    except httpx.InvalidURL as error:
        return str(error).rstrip(".")


def client_options(url: str, key: str, tenant: str) -> dict[str, Any]:
    """Return how an httpx client is made: a redirect is not followed, for the key is meant for this server only."""
    base = httpx.URL(url)
    if not key.isascii() or not key.isprintable():
        raise CallsheetError("invalid_key", "This is not an API key: it has characters that no key has.")
    if not tenant.isascii() or not tenant.isprintable():
        raise CallsheetError("invalid_tenant", "This is not a tenant: it has characters that no name has.")
    headers = {"user-agent": f"callsheet-python/{callsheet.__version__}"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    if tenant:
        headers["callsheet-tenant"] = tenant
    return {
        "base_url": base, "headers": headers, "follow_redirects": False,
        "trust_env": not _LOOPBACK.fullmatch(base.host),
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
    }  # fmt: skip


def build_request(
    http: httpx.Client | httpx.AsyncClient, request: Request, timeout: float, content: Any
) -> httpx.Request:
    """Return a request as httpx sends it."""
    headers = dict(request.headers) | ({"content-type": "application/json"} if request.body is not None else {})
    prepared = http.build_request(
        request.method, request.path, params=dict(request.query) or None, content=content, headers=headers,
        timeout=_timeouts(request, timeout),
    )  # fmt: skip
    for name in _AUTH_HEADERS if request.omit_credentials else ():
        prepared.headers.pop(name, None)
    return prepared


def _timeouts(request: Request, timeout: float) -> httpx.Timeout:
    """Return how long each step may take: not beyond the moment up to which somebody waits."""
    seconds_max = max(seconds_left(request.deadline), _TIMEOUT_SECONDS_MIN)
    return httpx.Timeout(min(timeout, seconds_max), read=min(timeout + request.server_wait_seconds, seconds_max))


@contextmanager
def open_source(request: Request) -> Iterator[IO[bytes] | None]:
    """Open what a request sends, if that is not in it."""
    if request.source is None:
        yield None
        return
    with request.source() as file:
        yield file


def to_reply(response: httpx.Response, body: bytes) -> Reply:
    return Reply(response.status_code, response.headers, body)


def to_transport_error(error: Exception) -> TransportError:
    """Say what broke in a few words, without the address."""
    text = str(error) or type(error).__name__
    return TransportError(text.rstrip("."), sent=not isinstance(error, _NOT_SENT_ERRORS))
