"""Where the bytes of files lie in a life: only their keys, and when each was put there."""

from collections.abc import Iterable, Sequence

from callsheet.blobs import keys
from callsheet.blobs.base import Freed, Listed
from callsheet.core.rows import File
from tests.sim.peek import Peek
from tests.sim.world import World

GRACE_SECONDS = 20
_KEPT = """SELECT id, tenant, user_id, job_id, task_id, attempt, no, name, media_type, bytes, sha256, created_at, status
    FROM file WHERE status <> 'dropped'"""


class Shelf:
    """As much of a store of blobs as the loops need. It notices at once when bytes go that a file still has."""

    def __init__(self, world: World, peek: Peek) -> None:
        self._world = world
        self._peek = peek
        self._objects: dict[str, int] = {}

    def put(self, key: str) -> None:
        self._objects.setdefault(key, self._world.clock.now())

    def delete(self, gone: Iterable[str]) -> Freed:
        if self._world.mishap(0.1):
            raise ConnectionError("the storage is away")
        needed = self._needed()
        freed = 0
        for key in gone:
            if key in needed or self._in_hand(key):
                self._world.blame(f"H27 bytes were removed that a file or a task in hand needs: {key}")
            freed += self._objects.pop(key, None) is not None
        return Freed(freed, freed)

    def list(self, prefix: str, after: str, count: int) -> Sequence[Listed]:
        found = sorted(key for key in self._objects if key > after and key.startswith(prefix))
        return [Listed(key, 1, self._objects[key]) for key in found[:count]]

    def sweep(self, _idle_seconds: float) -> Freed:
        return Freed(0, 0)

    def judge(self) -> None:
        """Hold what lies here against the files that should: O1 both ways, H27."""
        kept = {key for key, status in self._needed().items() if status == "ready"}
        for key in sorted(kept - self._objects.keys()):
            self._world.blame(f"O8 a ready file has no bytes: {key}")
        for key in sorted(self._objects.keys() - kept):
            self._world.blame(f"H27 bytes that nobody needs are still there: {key}")

    def _in_hand(self, key: str) -> bool:
        """Say whether the try that put something here is still under way."""
        made = keys.parse(key)
        if not isinstance(made, keys.Output):
            return False
        open_try = "SELECT 1 FROM attempt WHERE task_id = ? AND no = ? AND ended_at IS NULL"
        return self._peek.one(open_try, made.task_id, made.attempt) is not None

    def _needed(self) -> dict[str, str]:
        """Return the keys of the files that are kept or awaited, and which it is."""
        files = [File(*row) for row in self._peek.rows(_KEPT)]
        return {keys.of(file): file.status for file in files}
