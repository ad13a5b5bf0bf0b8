"""Sending and fetching bytes by a grant. The worker's own token never goes along: the address itself is the right.

No error names an address: a signed one is a secret.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx

from callsheet.protocol import Grant
from callsheet.worker.errors import GiveUp, Retry, Unreachable
from callsheet.worker.link import Check
from callsheet.worker.patience import asked

_CHUNK = 256 * 1024
_OK, _PARTIAL, _NOT_THERE, _REFUSED, _ALREADY, _CONFLICT, _RANGE = 200, 206, 404, 403, 412, 409, 416
_LATER = 429
_FAULT = 500
BROKEN = (httpx.TransportError, httpx.StreamError)


class Stale(Unreachable):
    """The store does not take the address: it is too old, or something else is wrong with it."""


class Transfer:
    """Carries bytes between this machine and wherever the house keeps them."""

    def __init__(self, http: httpx.Client, house: str) -> None:
        self._http = http
        self._house = house

    def put(self, grant: Grant, body: bytes | Path, size: int, check: Check) -> None:
        """Put a file. One that is there already is ours: nobody else has this address."""
        headers = {name.lower(): value for name, value in grant.headers.items()} | {"content-length": str(size)}
        headers.pop("host", None)
        content = _pieces(body, check) if isinstance(body, Path) else body
        try:
            answer = self._http.request(grant.method, self._url(grant), headers=headers, content=content)
        except BROKEN as error:
            raise _unreachable(error) from None
        if not answer.is_success and answer.status_code != _ALREADY:
            raise _trouble(answer)

    def get(self, grant: Grant, into: Path, size: int, check: Check) -> None:
        """Fetch a file, from where an earlier try broke off."""
        have = into.stat().st_size if into.exists() else 0
        if have and have == size:
            return
        headers = {**grant.headers, "accept-encoding": "identity"} | ({"range": f"bytes={have}-"} if have else {})
        try:
            with self._http.stream(grant.method, self._url(grant), headers=headers) as answer:
                if answer.status_code == _RANGE:
                    into.unlink()
                    raise Unreachable("the store does not go on where it broke off")
                if answer.status_code not in {_OK, _PARTIAL}:
                    raise _trouble(answer)
                _write(answer, into, size, check)
        except BROKEN as error:
            raise _unreachable(error) from None
        if into.stat().st_size != size:
            raise Unreachable("the file broke off")

    def _url(self, grant: Grant) -> str:
        return self._house + grant.url if grant.url.startswith("/") else grant.url


def _pieces(path: Path, check: Check) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            check()
            yield piece


def _write(answer: httpx.Response, into: Path, size: int, check: Check) -> None:
    """Write what comes, and no more than there should be."""
    with into.open("ab" if answer.status_code == _PARTIAL else "wb") as file:
        for piece in answer.iter_raw(_CHUNK):
            check()
            if file.tell() + len(piece) > size:
                file.truncate(0)
                raise Unreachable("the file is longer than it should be")
            file.write(piece)


def _trouble(answer: httpx.Response) -> Exception:
    """Return what an answer of the store means."""
    status = answer.status_code
    if status == _REFUSED:
        return Stale(f"the store answers {status}")
    if status in {_LATER, _CONFLICT} or status >= _FAULT:
        return Unreachable(f"the store answers {status}", asked(answer.headers.get("retry-after")))
    if status == _NOT_THERE:
        return GiveUp("A file that this task needs is not there any more.", code="file_not_found")
    return Retry(f"The store refused a file: it answers {status}.", code="file_refused")


def _unreachable(error: Exception) -> Unreachable:
    return Unreachable(f"the store does not answer ({type(error).__name__})")
