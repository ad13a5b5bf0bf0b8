"""Verifies that the bytes of ready files are in the storage. Commands call it, not the server."""

import sys
from collections.abc import Iterator
from typing import Any

from callsheet.blobs import object_keys
from callsheet.blobs.base import Blobs
from callsheet.core.model.rows import File
from callsheet.engine.loops.loop_protocol import PAGE
from callsheet.engine.reads.synchronous import BlockingReader
from callsheet.store.verify import ROWS_SHOWN_MAX, Violation

_ABOVE_ALL_IDS = "~"


def verify_files(read: BlockingReader, blobs: Blobs, newest: int = 0, page: int = PAGE) -> list[Violation]:
    """Compare ready files with the storage: existence, size, and the SHA-256 if the store knows it.

    `newest` limits the check to that many of the newest files; 0 checks all.
    """
    mismatches: list[dict[str, Any]] = []
    for file in _ready_files(read, newest, page):
        stat = blobs.stat(object_keys.file_key(file))
        if stat is None or stat.size != file.bytes or stat.sha256 not in {None, file.sha256}:
            mismatches.append({"file": file.id, "bytes": file.bytes, "stored_bytes": stat and stat.size})
    return (
        [Violation("O8", "A ready file has its bytes.", len(mismatches), mismatches[:ROWS_SHOWN_MAX])]
        if mismatches
        else []
    )


def count_missing_files(read: BlockingReader, blobs: Blobs, page: int = PAGE) -> int:
    """Count the ready files that a storage lacks or has in another size. No bytes are read."""
    stats = ((file, blobs.stat_verified(object_keys.file_key(file))) for file in _ready_files(read, 0, page))
    return sum(stat is None or stat.size != file.bytes for file, stat in stats)


def _ready_files(read: BlockingReader, newest: int, page: int) -> Iterator[File]:
    before, left = _ABOVE_ALL_IDS, newest or sys.maxsize
    while left and (rows := read.fetch("files_before", before=before, count=page)):
        ready = [file for file in (File(*row) for row in rows) if file.status == "ready"][:left]
        yield from ready
        before, left = rows[-1][0], left - len(ready)
