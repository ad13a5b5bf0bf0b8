"""Deletes the objects of attempts that ended without reporting them: canceled, failed, lost, requeued.

An attempt that has ended never reports again, so its objects can be deleted at once. What this loop misses (the server
stopped, or the object arrived later) is an orphan, which `orphan_files` deletes.
"""

from collections import deque

from callsheet.blobs.base import Blobs
from callsheet.blobs.object_keys import discarded_keys
from callsheet.core.policy.storage_quota import DiscardedOutputs
from callsheet.engine.loops.loop_protocol import PAGE


class DiscardedOutputDeletion:
    """Deletes what the engine has discarded. After an error it tries the same objects again."""

    def __init__(self, discarded: deque[DiscardedOutputs], blobs: Blobs, page: int = PAGE) -> None:
        self._discarded = discarded
        self._blobs = blobs
        self._page = page

    def run_once(self, now: int) -> int:
        _ = now
        batch: list[DiscardedOutputs] = []
        while self._discarded and len(batch) < self._page:
            batch.append(self._discarded.popleft())
        if batch:
            try:
                self._blobs.delete([key for outputs in batch for key in discarded_keys(outputs)])
            except Exception:
                self._discarded.extendleft(reversed(batch))
                raise
        return len(batch)
