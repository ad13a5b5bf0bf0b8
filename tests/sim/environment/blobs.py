"""Where the bytes of files lie in a life: only their keys, and when each was put there."""

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
    """As much of a store of blobs as the loops need. It notices at once when bytes go that a file still has."""

    def __init__(self, world: World, inspector: Inspector) -> None:
        self._world = world
        self._inspector = inspector
        self._objects: dict[str, int] = {}

    def put(self, key: str) -> None:
        self._objects.setdefault(key, self._world.clock.now())

    def delete(self, blob_keys: Iterable[str]) -> DeleteSummary:
        if self._world.fault_occurs(0.1):
            raise ConnectionError("the storage is away")
        needed = self._kept_keys()
        deleted_count = 0
        for key in blob_keys:
            if key in needed or self._attempt_is_running(key):
                self._world.report_failure(f"H27 bytes were removed that a file or a task in hand needs: {key}")
            deleted_count += self._objects.pop(key, None) is not None
        return DeleteSummary(deleted_count, deleted_count)

    def list(self, prefix: str, after: str, count: int) -> Sequence[BlobEntry]:
        found = sorted(key for key in self._objects if key > after and key.startswith(prefix))
        return [BlobEntry(key, 1, self._objects[key]) for key in found[:count]]

    def sweep(self, _idle_seconds: float) -> DeleteSummary:
        return DeleteSummary(0, 0)

    def check_end_state(self) -> None:
        """Hold what lies here against the files that should: O1 both ways, H27."""
        kept = {key for key, status in self._kept_keys().items() if status == "ready"}
        for key in sorted(kept - self._objects.keys()):
            self._world.report_failure(f"O8 a ready file has no bytes: {key}")
        for key in sorted(self._objects.keys() - kept):
            self._world.report_failure(f"H27 bytes that nobody needs are still there: {key}")

    def _attempt_is_running(self, key: str) -> bool:
        """Say whether the try that put something here is still under way."""
        output = object_keys.parse_key(key)
        if not isinstance(output, object_keys.OutputKey):
            return False
        open_attempt = "SELECT 1 FROM attempt WHERE task_id = ? AND no = ? AND ended_at IS NULL"
        return self._inspector.one(open_attempt, output.task_id, output.attempt) is not None

    def _kept_keys(self) -> dict[str, str]:
        """Return the keys of the files that are kept or uploading, and which it is."""
        files = [File(*row) for row in self._inspector.rows(_KEPT_FILES)]
        return {object_keys.file_key(file): file.status for file in files}
