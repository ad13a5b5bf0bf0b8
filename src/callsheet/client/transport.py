"""The httpx side of both drivers: client options, requests, replies, transport errors."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import httpx

import callsheet
from callsheet.client.deadline import seconds_left
from callsheet.client.errors import CallsheetError
from callsheet.client.operation_effects import Reply, Request, TransportError

TRANSPORT_ERRORS = (httpx.TransportError, httpx.StreamError, httpx.DecodingError)
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
"""Hosts for which the proxy settings of the environment are ignored."""
_TIMEOUT_SECONDS_MIN = 0.001
"""httpx needs a timeout above 0."""
_AUTH_HEADERS = ("authorization", "callsheet-tenant")
_NOT_SENT_ERRORS = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def resolve_url(url: str | None) -> str:
    """Return the server's URL, from the argument or from CALLSHEET_URL."""
    resolved = url or os.environ.get("CALLSHEET_URL", "")
    if not resolved:
        raise CallsheetError("invalid_url", "No server URL. Pass it as Client(url), or set CALLSHEET_URL.")
    reason = _url_error(resolved)
    if reason:
        redacted = repr(resolved.rpartition("@")[2])  # without credentials
        source = redacted if url else f"CALLSHEET_URL={redacted}"
        raise CallsheetError("invalid_url", f"{source} is not a valid URL: {reason}.")
    return resolved.rstrip("/")


def _url_error(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        return "it must start with http:// or https://"
    try:
        return "" if httpx.URL(url).host else "it has no host"
    except httpx.InvalidURL as error:
        return str(error).rstrip(".")


def client_options(url: str, key: str, tenant: str) -> dict[str, Any]:
    """Return the httpx client's options. Redirects are not followed: they would send the API key to another host."""
    base = httpx.URL(url)
    if not key.isascii() or not key.isprintable():
        raise CallsheetError("invalid_key", "The API key contains invalid characters. Use printable ASCII only.")
    if not tenant.isascii() or not tenant.isprintable():
        raise CallsheetError("invalid_tenant", "The tenant contains invalid characters. Use printable ASCII only.")
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
    """Build the httpx request."""
    headers = dict(request.headers) | ({"content-type": "application/json"} if request.body is not None else {})
    prepared = http.build_request(
        request.method, request.path, params=dict(request.query) or None, content=content, headers=headers,
        timeout=_timeouts(request, timeout),
    )  # fmt: skip
    for name in _AUTH_HEADERS if request.omit_credentials else ():
        prepared.headers.pop(name, None)
    return prepared


def _timeouts(request: Request, timeout: float) -> httpx.Timeout:
    """Return the timeout of each step, limited by the request's deadline."""
    seconds_max = max(seconds_left(request.deadline), _TIMEOUT_SECONDS_MIN)
    return httpx.Timeout(min(timeout, seconds_max), read=min(timeout + request.server_wait_seconds, seconds_max))


@contextmanager
def open_source(request: Request) -> Iterator[IO[bytes] | None]:
    """Open the content that a request streams, if it has no body."""
    if request.source is None:
        yield None
        return
    with request.source() as file:
        yield file


def to_reply(response: httpx.Response, body: bytes) -> Reply:
    return Reply(response.status_code, response.headers, body)


def to_transport_error(error: Exception) -> TransportError:
    """Convert an httpx error, without the URL in its text."""
    text = str(error) or type(error).__name__
    return TransportError(text.rstrip("."), sent=not isinstance(error, _NOT_SENT_ERRORS))
