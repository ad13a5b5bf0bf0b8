"""Files that a server already has: an unchanged one is not brought there twice."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_ENTRIES_MAX = 10_000
_PIECE_BYTES = 1 << 20


class Assets:
    """By endpoint and digest, what stands for a file in a graph. Shared by all tasks of a worker."""

    def __init__(self, entries_max: int = _ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._known: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, endpoint: str, sha256: str) -> Any | None:
        with self._lock:
            known = self._known.get((endpoint, sha256))
            if known is not None:
                self._known.move_to_end((endpoint, sha256))
            return known

    def put(self, endpoint: str, sha256: str, value: Any) -> None:
        with self._lock:
            self._known[endpoint, sha256] = value
            while len(self._known) > self._entries_max:
                self._known.popitem(last=False)

    def drop(self, endpoint: str, digests: Iterable[str]) -> None:
        """Forget files that the server does not have any more."""
        with self._lock:
            for sha256 in digests:
                self._known.pop((endpoint, sha256), None)


def digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
