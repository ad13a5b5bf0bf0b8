"""Whether the object of a signed upload URL is still needed. The URL stays valid when its file or attempt has ended."""

from callsheet.blobs import object_keys
from callsheet.blobs.object_keys import OutputKey, UploadKey
from callsheet.core.model.rows import File
from callsheet.core.policy.orphan_files import group_attempts, is_output_needed, is_upload_needed
from callsheet.engine.engine import Engine


class UploadTargets:
    """Looks up the rows behind object keys."""

    def __init__(self, engine: Engine) -> None:
        self._reads = engine.reads

    async def is_needed(self, key: str) -> bool:
        """Return whether a file or a running attempt needs the object."""
        match object_keys.parse_key(key):
            case UploadKey(tenant, file_id):
                rows = await self._reads.lookup("files_by_id", ids=[file_id])
                return is_upload_needed(tenant, File(*rows[0]) if rows else None)
            case OutputKey(tenant, job_id, task_id, attempt, no):
                rows = await self._reads.lookup("attempts_and_files", keys=[(task_id, attempt)])
                return is_output_needed(tenant, job_id, no, group_attempts(rows).get((task_id, attempt)))
            case _:
                return False
