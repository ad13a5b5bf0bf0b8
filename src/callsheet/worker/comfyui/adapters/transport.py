"""`ComfyHttp`: HTTP requests to a ComfyUI server. The API key is never sent to another host.

ComfyUI may stall for seconds while it encodes previews, so timeouts are long.
"""

import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx

from callsheet.transport.backoff import delay_after
from callsheet.transport.retry_after import parse_retry_after
from callsheet.worker.comfyui.adapters.base import (
    ComfyAccessDeniedError,
    ComfyRejectedError,
    ComfyUnreachableError,
    Output,
    OutputNotFoundError,
)

TIMEOUT_SECONDS = 60.0
_CONNECT_TIMEOUT_SECONDS = 10.0
_UPLOAD_ATTEMPTS = 3
READY_TIMEOUT_SECONDS = 5.0
"""Timeout of the readiness check."""
_FETCH_ATTEMPTS = 3
_FETCH_RETRY_SECONDS, _FETCH_RETRY_SECONDS_MAX = 0.4, 2.0
_DEFAULT_RETRY_AFTER_SECONDS = 5.0
_CHUNK_BYTES = 1 << 20
_MIB = 1 << 20
_DENIED = {401: "does not accept the key", 402: "has no credits left", 403: "does not allow this"}
_SERVER_ERROR = 500
_NOT_SENT_ERRORS = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""No connection was made, so the request was not processed."""


class ComfyHttp:
    """The HTTP client of one server. Thread-safe."""

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, *, use_env_proxy: bool, bytes_max: int,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:  # fmt: skip
        parts = urlsplit(url.rstrip("/"))
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{url!r} is not the URL of a ComfyUI server. Example: http://127.0.0.1:8188.")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self.socket_url = f"{'wss' if parts.scheme == 'https' else 'ws'}://{parts.netloc}{parts.path}"
        """The WebSocket URL, including a user name and password of the server URL."""
        self._host = parts.hostname
        login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
        self._bytes_max = bytes_max
        timeout = httpx.Timeout(timeout_seconds, connect=_CONNECT_TIMEOUT_SECONDS)
        self._client = httpx.Client(
            base_url=self.url,
            headers=headers,
            auth=login,
            timeout=timeout,
            verify=ssl_context(),
            trust_env=use_env_proxy,
        )
        self._keyless_client = httpx.Client(timeout=timeout, verify=ssl_context(), trust_env=use_env_proxy)
        """Sends no API key: for redirects to storage."""

    def close(self) -> None:
        self._client.close()
        self._keyless_client.close()

    def send(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Send one request; raise `ComfyUnreachableError` if there is no response."""
        try:
            response = self._client.request(method, path, **request)
        except httpx.HTTPError as error:
            maybe_sent = not isinstance(error, _NOT_SENT_ERRORS)
            raise ComfyUnreachableError(
                f"ComfyUI does not respond ({type(error).__name__}).", maybe_sent=maybe_sent
            ) from error
        return response

    def get(self, path: str) -> Any:
        """Return the JSON at a path; None for a 404."""
        response = self.send("GET", path)
        if response.status_code == httpx.codes.NOT_FOUND:
            return None
        return json_body(require_success(response))

    def upload_form(self, path: str, field: str, name: str, file: Path, fields: Mapping[str, str]) -> httpx.Response:
        """Upload a file as a form; it is read again for each attempt."""
        for attempts_left in reversed(range(_UPLOAD_ATTEMPTS)):
            try:
                with file.open("rb") as body:
                    return self.send(
                        "POST", path, files={field: (name, body, fields.get("content_type"))}, data=dict(fields)
                    )
            except ComfyUnreachableError:
                if not attempts_left:
                    raise
        raise AssertionError("not reached")

    @contextmanager
    def stream(self, path: str) -> Iterator[httpx.Response]:
        """Open an event stream."""
        with self._client.stream("GET", path, headers={"Accept": "text/event-stream"}) as response:
            yield response

    def fetch(self, output: Output, path: str, params: Mapping[str, str], into: Path) -> str:
        """Download a file; follow a redirect to storage without sending the API key."""
        for failures in range(1, _FETCH_ATTEMPTS + 1):
            try:
                with self._client.stream("GET", path, params=dict(params)) as response:
                    if response.is_redirect:
                        return self._fetch_from_storage(output, response.headers.get("location", ""), into)
                    return self._write_response(output, response, into)
            except ComfyUnreachableError:
                if failures == _FETCH_ATTEMPTS:
                    raise
            except httpx.HTTPError as error:
                if failures == _FETCH_ATTEMPTS:
                    raise ComfyUnreachableError(f"Fetching {output.name} failed ({type(error).__name__}).") from error
            time.sleep(delay_after(failures, _FETCH_RETRY_SECONDS, _FETCH_RETRY_SECONDS_MAX))
        raise AssertionError("not reached")

    def _fetch_from_storage(self, output: Output, location: str, into: Path) -> str:
        target = urlsplit(location)
        if target.scheme != "https" and target.hostname != self._host:
            raise ComfyRejectedError(
                "The server redirects to unencrypted storage on another host, so the output was not fetched. The graph "
                "ran and is not run again automatically.", code="output_unreachable",
            )  # fmt: skip
        with self._keyless_client.stream("GET", location) as response:
            return self._write_response(output, response, into)

    def _write_response(self, output: Output, response: httpx.Response, into: Path) -> str:
        if response.status_code in {httpx.codes.NOT_FOUND, httpx.codes.GONE}:
            raise OutputNotFoundError(output)
        require_success(response)
        size = 0
        with into.open("wb") as file:
            for chunk in response.iter_bytes(_CHUNK_BYTES):
                size += len(chunk)
                if size > self._bytes_max:
                    raise ComfyRejectedError(
                        f"The output {output.name} exceeds the limit of {self._bytes_max // _MIB} MiB.",
                        code="file_too_large",
                    )
                file.write(chunk)
        return str(response.headers.get("content-type", ""))


@cache
def ssl_context() -> ssl.SSLContext:
    """Return the TLS context; loading certificates is slow, so it is shared."""
    return httpx.create_ssl_context()


def require_success(response: httpx.Response) -> httpx.Response:
    """Return a successful response, else raise. The body of an error response is not passed on."""
    if response.is_success:
        return response
    if response.status_code in _DENIED:
        raise ComfyAccessDeniedError(f"ComfyUI {_DENIED[response.status_code]}.")
    raise ComfyUnreachableError(f"ComfyUI answered with status {response.status_code}.")


def json_body(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise ComfyUnreachableError("The response of ComfyUI is not JSON.") from error


def is_server_error(response: httpx.Response) -> bool:
    return response.status_code >= _SERVER_ERROR


def retry_after_seconds(response: httpx.Response) -> float:
    """Return the `Retry-After` of a busy server, or the default."""
    return parse_retry_after(response.headers.get("Retry-After"), _DEFAULT_RETRY_AFTER_SECONDS)
