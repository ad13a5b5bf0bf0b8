"""Simulated file storage: it keeps only the keys of objects and the time at which each was stored."""

from collections.abc import Iterable, Sequence

from callsheet.blobs import object_keys
from callsheet.blobs.base import BlobEntry, DeleteSummary
from callsheet.core.model.rows import File
from tests.sim.checks.inspector import Inspector
from tests.sim.environment.simulation_context import World

GRACE_SECONDS = 20
_KEPT_FILES = """SELECT id, tenant, user_id, job_id, task_id, attempt, no, name, media_type, bytes, sha256, created_at,
    status
    FROM file WHERE status <> 'deleted'"""


class SimulatedBlobs:
    """The part of a blob store that the loops need. It reports at once if a needed object is deleted."""

    def __init__(self, world: World, inspector: Inspector) -> None:
        self._world = world
        self._inspector = inspector
        self._objects: dict[str, int] = {}

    def put(self, key: str) -> None:
        self._objects.setdefault(key, self._world.clock.now())

    def delete(self, blob_keys: Iterable[str]) -> DeleteSummary:
        if self._world.fault_occurs(0.1):
            raise ConnectionError("the storage is unavailable")
        needed = self._kept_keys()
        deleted_count = 0
        for key in blob_keys:
            if key in needed or self._attempt_is_running(key):
                self._world.report_failure(f"H27 an object was deleted that a file or a running task needs: {key}")
            deleted_count += self._objects.pop(key, None) is not None
        return DeleteSummary(deleted_count, deleted_count)

    def list(self, prefix: str, after: str, count: int) -> Sequence[BlobEntry]:
        found = sorted(key for key in self._objects if key > after and key.startswith(prefix))
        return [BlobEntry(key, 1, self._objects[key]) for key in found[:count]]

    def sweep(self, _idle_seconds: float) -> DeleteSummary:
        return DeleteSummary(0, 0)

    def check_end_state(self) -> None:
        """Check that every ready file has its object (O8), and that no other object is left (H27)."""
        kept = {key for key, status in self._kept_keys().items() if status == "ready"}
        for key in sorted(kept - self._objects.keys()):
            self._world.report_failure(f"O8 a ready file has no object: {key}")
        for key in sorted(self._objects.keys() - kept):
            self._world.report_failure(f"H27 an unused object was not deleted: {key}")

    def _attempt_is_running(self, key: str) -> bool:
        """Return whether the attempt that uploaded an object is still running."""
        output = object_keys.parse_key(key)
        if not isinstance(output, object_keys.OutputKey):
            return False
        open_attempt = "SELECT 1 FROM attempt WHERE task_id = ? AND no = ? AND ended_at IS NULL"
        return self._inspector.one(open_attempt, output.task_id, output.attempt) is not None

    def _kept_keys(self) -> dict[str, str]:
        """Return the keys of files that are not deleted, with their statuses."""
        files = [File(*row) for row in self._inspector.rows(_KEPT_FILES)]
        return {object_keys.file_key(file): file.status for file in files}
