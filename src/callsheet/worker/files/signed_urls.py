"""The signed URLs of one task. They expire; heartbeats renew those that are still needed."""

import threading
import time
from collections.abc import Iterable

from msgspec import Struct

from callsheet.api.worker_protocol import Grant, InputFile

_VALID_FRACTION = 0.8
"""A URL counts as expired after this share of its lifetime: the request that uses it takes time to arrive."""


class _TimedGrant(Struct, frozen=True):
    """A grant with its deadlines by the local monotonic clock."""

    grant: Grant
    refresh_at: float
    stale_at: float


class GrantCache:
    """Download URLs of files that were not read yet, and the upload URL for previews.

    A download URL is used once: a retry requests a new one. Upload URLs for outputs are requested when needed and not
    cached.
    """

    def __init__(self, files: Iterable[InputFile] = ()) -> None:
        self._lock = threading.Lock()
        self._downloads: dict[str, _TimedGrant] = {}
        self._preview: _TimedGrant | None = None
        self.add(files)

    def add(self, files: Iterable[InputFile], preview: Grant | None = None) -> None:
        """Add grants received from the server."""
        with self._lock:
            self._downloads |= {file.id: _with_deadlines(file.download) for file in files}
            self._preview = _with_deadlines(preview) if preview else self._preview

    def pop(self, file_id: str) -> Grant | None:
        """Remove and return the download URL of a file; None if there is none or it has expired."""
        with self._lock:
            return _grant_if_valid(self._downloads.pop(file_id, None))

    @property
    def preview(self) -> Grant | None:
        return _grant_if_valid(self._preview)

    def discard_preview(self) -> None:
        self._preview = None

    def list_expiring(self) -> list[str]:
        """Return the ids of files whose URL has passed half of its lifetime."""
        now = time.monotonic()
        with self._lock:
            return [file_id for file_id, timed in self._downloads.items() if timed.refresh_at <= now]


def _with_deadlines(grant: Grant) -> _TimedGrant:
    now = time.monotonic()
    return _TimedGrant(grant, now + grant.expires_in_seconds / 2, now + grant.expires_in_seconds * _VALID_FRACTION)


def _grant_if_valid(timed: _TimedGrant | None) -> Grant | None:
    return timed.grant if timed is not None and time.monotonic() < timed.stale_at else None
