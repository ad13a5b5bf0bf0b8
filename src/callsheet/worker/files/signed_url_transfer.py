"""Uploads and downloads by signed URL.

The worker's token is not sent: the URL itself authorizes the request. For the same reason no error message contains a
URL.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx

from callsheet.api.worker_protocol import Grant
from callsheet.transport.retry_after import parse_retry_after
from callsheet.worker.errors import NonRetryableError, RetryableError, UnreachableError
from callsheet.worker.link.base import Check

_CHUNK_BYTES = 256 * 1024
_OK, _PARTIAL, _NOT_FOUND, _FORBIDDEN, _PRECONDITION_FAILED, _CONFLICT, _RANGE_NOT_SATISFIABLE = (
    200,
    206,
    404,
    403,
    412,
    409,
    416,
)
_TOO_MANY_REQUESTS = 429
_SERVER_ERROR = 500
NETWORK_ERRORS = (httpx.TransportError, httpx.StreamError)


class GrantRejectedError(UnreachableError):
    """The storage rejected a signed URL, for example because it expired."""


class FileTransfer:
    """Transfers bytes between this machine and the server's storage."""

    def __init__(self, http: httpx.Client, server_url: str) -> None:
        self._http = http
        self._server_url = server_url

    def upload(self, grant: Grant, body: bytes | Path, size: int, check: Check) -> None:
        """Upload a file. An existing object counts as success: only this worker has the URL."""
        headers = {name.lower(): value for name, value in grant.headers.items()} | {"content-length": str(size)}
        headers.pop("host", None)
        content = _read_chunks(body, check) if isinstance(body, Path) else body
        try:
            response = self._http.request(grant.method, self._url(grant), headers=headers, content=content)
        except NETWORK_ERRORS as error:
            raise _unreachable_error(error) from None
        if not response.is_success and response.status_code != _PRECONDITION_FAILED:
            raise _error_for(response)

    def download(self, grant: Grant, into: Path, size: int, check: Check) -> None:
        """Download a file, resuming a partial download."""
        offset = into.stat().st_size if into.exists() else 0
        if offset and offset == size:
            return
        headers = {**grant.headers, "accept-encoding": "identity"} | ({"range": f"bytes={offset}-"} if offset else {})
        try:
            with self._http.stream(grant.method, self._url(grant), headers=headers) as response:
                if response.status_code == _RANGE_NOT_SATISFIABLE:
                    into.unlink()
                    raise UnreachableError("the storage cannot resume the partial download")
                if response.status_code not in {_OK, _PARTIAL}:
                    raise _error_for(response)
                _write_body(response, into, size, check)
        except NETWORK_ERRORS as error:
            raise _unreachable_error(error) from None
        if into.stat().st_size != size:
            raise UnreachableError("the download ended early")

    def _url(self, grant: Grant) -> str:
        return self._server_url + grant.url if grant.url.startswith("/") else grant.url


def _read_chunks(path: Path, check: Check) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            check()
            yield chunk


def _write_body(response: httpx.Response, into: Path, size: int, check: Check) -> None:
    """Write the body, at most `size` bytes."""
    with into.open("ab" if response.status_code == _PARTIAL else "wb") as file:
        for chunk in response.iter_raw(_CHUNK_BYTES):
            check()
            if file.tell() + len(chunk) > size:
                file.truncate(0)
                raise UnreachableError("the file is larger than expected")
            file.write(chunk)


def _error_for(response: httpx.Response) -> Exception:
    """Return the exception for an error response of the storage."""
    status = response.status_code
    if status == _FORBIDDEN:
        return GrantRejectedError(f"the storage answered with status {status}")
    if status in {_TOO_MANY_REQUESTS, _CONFLICT} or status >= _SERVER_ERROR:
        retry_after_seconds = parse_retry_after(response.headers.get("retry-after"))
        return UnreachableError(f"the storage answered with status {status}", retry_after_seconds)
    if status == _NOT_FOUND:
        return NonRetryableError("An input file of this task no longer exists in the storage.", code="file_not_found")
    return RetryableError(f"The storage rejected a file with status {status}.", code="file_refused")


def _unreachable_error(error: Exception) -> UnreachableError:
    return UnreachableError(f"the storage does not respond ({type(error).__name__})")
