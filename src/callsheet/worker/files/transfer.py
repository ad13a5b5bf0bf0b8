"""Sending and fetching bytes by a grant. The worker's own token never goes along: the address itself is the right.

No error names an address: a signed one is a secret.
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
    """The store does not take the address: it is too old, or something else is wrong with it."""


class FileTransfer:
    """Carries bytes between this machine and wherever the house keeps them."""

    def __init__(self, http: httpx.Client, server_url: str) -> None:
        self._http = http
        self._server_url = server_url

    def upload(self, grant: Grant, body: bytes | Path, size: int, check: Check) -> None:
        """Put a file. One that is there already is ours: nobody else has this address."""
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
        """Fetch a file, from where an earlier try broke off."""
        offset = into.stat().st_size if into.exists() else 0
        if offset and offset == size:
            return
        headers = {**grant.headers, "accept-encoding": "identity"} | ({"range": f"bytes={offset}-"} if offset else {})
        try:
            with self._http.stream(grant.method, self._url(grant), headers=headers) as response:
                if response.status_code == _RANGE_NOT_SATISFIABLE:
                    into.unlink()
                    raise UnreachableError("the store does not go on where it broke off")
                if response.status_code not in {_OK, _PARTIAL}:
                    raise _error_for(response)
                _write_body(response, into, size, check)
        except NETWORK_ERRORS as error:
            raise _unreachable_error(error) from None
        if into.stat().st_size != size:
            raise UnreachableError("the file broke off")

    def _url(self, grant: Grant) -> str:
        return self._server_url + grant.url if grant.url.startswith("/") else grant.url


def _read_chunks(path: Path, check: Check) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            check()
            yield chunk


def _write_body(response: httpx.Response, into: Path, size: int, check: Check) -> None:
    """Write what comes, and no more than there should be."""
    with into.open("ab" if response.status_code == _PARTIAL else "wb") as file:
        for chunk in response.iter_raw(_CHUNK_BYTES):
            check()
            if file.tell() + len(chunk) > size:
                file.truncate(0)
                raise UnreachableError("the file is longer than it should be")
            file.write(chunk)


def _error_for(response: httpx.Response) -> Exception:
    """Return what an answer of the store means."""
    status = response.status_code
    if status == _FORBIDDEN:
        return GrantRejectedError(f"the store answers {status}")
    if status in {_TOO_MANY_REQUESTS, _CONFLICT} or status >= _SERVER_ERROR:
        return UnreachableError(f"the store answers {status}", parse_retry_after(response.headers.get("retry-after")))
    if status == _NOT_FOUND:
        return NonRetryableError("A file that this task needs is not there any more.", code="file_not_found")
    return RetryableError(f"The store refused a file: it answers {status}.", code="file_refused")


def _unreachable_error(error: Exception) -> UnreachableError:
    return UnreachableError(f"the store does not answer ({type(error).__name__})")
