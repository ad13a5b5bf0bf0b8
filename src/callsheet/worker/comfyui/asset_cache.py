"""`AssetCache`: which files a ComfyUI server already has, so that none is uploaded twice."""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

_ENTRIES_MAX = 10_000


class AssetCache:
    """Maps (endpoint, SHA-256) to the value that refers to the file in a graph. Shared by all tasks of a worker."""

    def __init__(self, entries_max: int = _ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, endpoint: str, sha256: str) -> Any | None:
        with self._lock:
            entry = self._entries.get((endpoint, sha256))
            if entry is not None:
                self._entries.move_to_end((endpoint, sha256))
            return entry

    def put(self, endpoint: str, sha256: str, value: Any) -> None:
        with self._lock:
            self._entries[endpoint, sha256] = value
            while len(self._entries) > self._entries_max:
                self._entries.popitem(last=False)

    def invalidate(self, endpoint: str, digests: Iterable[str]) -> None:
        """Remove files that the server no longer has."""
        with self._lock:
            for sha256 in digests:
                self._entries.pop((endpoint, sha256), None)
