"""The addresses in hand for the files of one task. Each is good for a while; what is still needed is asked for anew."""

import threading
import time
from collections.abc import Iterable

from msgspec import Struct

from callsheet.api.worker_protocol import Grant, InputFile

_VALID_FRACTION = 0.8
"""An address counts as old before it is: the request that uses it takes a while to arrive."""


class _TimedGrant(Struct, frozen=True):
    """A grant, by this machine's own clock."""

    grant: Grant
    refresh_at: float
    stale_at: float


class GrantCache:
    """Where to read files that were not read yet, and where to put previews.

    An address is used once: if that breaks, the next try has a new one. Where to put a file is asked for when it is
    put.
    """

    def __init__(self, files: Iterable[InputFile] = ()) -> None:
        self._lock = threading.Lock()
        self._downloads: dict[str, _TimedGrant] = {}
        self._preview: _TimedGrant | None = None
        self.add(files)

    def add(self, files: Iterable[InputFile], preview: Grant | None = None) -> None:
        """Keep addresses that came."""
        with self._lock:
            self._downloads |= {file.id: _with_deadlines(file.get) for file in files}
            self._preview = _with_deadlines(preview) if preview else self._preview

    def pop(self, file_id: str) -> Grant | None:
        """Return where to read a file, once."""
        with self._lock:
            return _grant_if_valid(self._downloads.pop(file_id, None))

    @property
    def preview(self) -> Grant | None:
        return _grant_if_valid(self._preview)

    def discard_preview(self) -> None:
        self._preview = None

    def list_expiring(self) -> list[str]:
        """Return the files whose addresses have half of their time behind them."""
        now = time.monotonic()
        with self._lock:
            return [file_id for file_id, timed in self._downloads.items() if timed.refresh_at <= now]


def _with_deadlines(grant: Grant) -> _TimedGrant:
    now = time.monotonic()
    return _TimedGrant(grant, now + grant.expires_in_seconds / 2, now + grant.expires_in_seconds * _VALID_FRACTION)


def _grant_if_valid(timed: _TimedGrant | None) -> Grant | None:
    return timed.grant if timed is not None and time.monotonic() < timed.stale_at else None
