"""What both drivers send and read alike: requests, replies, and breakage, in httpx's terms."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import httpx

import callsheet
from callsheet.client.errors import CallsheetError
from callsheet.client.lasting import left
from callsheet.client.talk import Broken, Reply, Request

BROKEN = (httpx.TransportError, httpx.StreamError, httpx.DecodingError)
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
"""Where no proxy of the environment can lead."""
_LEAST_SECONDS = 0.001
"""To httpx a timeout of 0 is none that may pass."""
_OURS = ("authorization", "callsheet-tenant")
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def address(url: str | None) -> str:
    """Return the server's address, as it was given or as the environment has it; what is wrong with it is said."""
    found = url or os.environ.get("CALLSHEET_URL", "")
    if not found:
        raise CallsheetError("no_url", "Name the server: http://…, or CALLSHEET_URL in the environment.")
    why = _unfit(found)
    if why:
        shown = repr(found.rpartition("@")[2])  # without the name and password that it may hold
        what = f"{shown} is" if url else f"CALLSHEET_URL is {shown}, which is"
        raise CallsheetError("no_url", f"{what} no address of a server: {why}.")
    return found.rstrip("/")


def _unfit(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        return "an address begins with http:// or https://"
    try:
        return "" if httpx.URL(url).host else "it names no host"
    except httpx.InvalidURL as error:
        return str(error).rstrip(".")


def options(url: str, key: str, tenant: str) -> dict[str, Any]:
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


def built(http: httpx.Client | httpx.AsyncClient, request: Request, timeout: float, content: Any) -> httpx.Request:
    """Return a request as httpx sends it."""
    headers = dict(request.headers) | ({"content-type": "application/json"} if request.body is not None else {})
    made = http.build_request(
        request.method, request.path, params=dict(request.query) or None, content=content, headers=headers,
        timeout=_times(request, timeout),
    )  # fmt: skip
    for name in _OURS if request.bare else ():
        made.headers.pop(name, None)
    return made


def _times(request: Request, timeout: float) -> httpx.Timeout:
    """Return how long each step may take: not beyond the moment up to which somebody waits."""
    most = max(left(request.end), _LEAST_SECONDS)
    return httpx.Timeout(min(timeout, most), read=min(timeout + request.hold_seconds, most))


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
