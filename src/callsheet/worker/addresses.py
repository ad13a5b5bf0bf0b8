"""The addresses in hand for the files of one task. Each is good for a while; what is still needed is asked for anew."""

import threading
import time
from collections.abc import Iterable

from msgspec import Struct

from callsheet.protocol import Given, Grant

_SAFE = 0.8
"""An address counts as old before it is: the request that uses it takes a while to arrive."""


class _Fresh(Struct, frozen=True):
    """A grant, by this machine's own clock."""

    grant: Grant
    half_at: float
    old_at: float


class Addresses:
    """Where to read files that were not read yet, and where to put previews.

    An address is used once: if that breaks, the next try has a new one. Where to put a file is asked for when it is
    put.
    """

    def __init__(self, files: Iterable[Given] = ()) -> None:
        self._lock = threading.Lock()
        self._gets: dict[str, _Fresh] = {}
        self._preview: _Fresh | None = None
        self.take(files)

    def take(self, files: Iterable[Given], preview: Grant | None = None) -> None:
        """Keep addresses that came."""
        with self._lock:
            self._gets |= {given.id: _fresh(given.get) for given in files}
            self._preview = _fresh(preview) if preview else self._preview

    def use(self, file_id: str) -> Grant | None:
        """Return where to read a file, once."""
        with self._lock:
            return _unless_old(self._gets.pop(file_id, None))

    @property
    def preview(self) -> Grant | None:
        return _unless_old(self._preview)

    def drop_preview(self) -> None:
        self._preview = None

    def growing_old(self) -> list[str]:
        """Return the files whose addresses have half of their time behind them."""
        now = time.monotonic()
        with self._lock:
            return [file_id for file_id, fresh in self._gets.items() if fresh.half_at <= now]


def _fresh(grant: Grant) -> _Fresh:
    now = time.monotonic()
    return _Fresh(grant, now + grant.seconds / 2, now + grant.seconds * _SAFE)


def _unless_old(fresh: _Fresh | None) -> Grant | None:
    return fresh.grant if fresh is not None and time.monotonic() < fresh.old_at else None
