"""Deletes stored bytes after their rows are deleted. If that fails, the orphan collector deletes them later."""

import asyncio
from collections.abc import Callable

from callsheet.api.files import DeleteSummary
from callsheet.blobs import base, object_keys
from callsheet.blobs.base import Blobs
from callsheet.core.decisions.files import DeletedFiles
from callsheet.core.model import commands
from callsheet.engine.engine import Engine

ErrorReporter = Callable[[Exception], None]


class FileDeletion:
    """Deletes jobs and files with their bytes."""

    def __init__(self, engine: Engine, blobs: Blobs) -> None:
        self._engine = engine
        self._blobs = blobs

    async def delete_job(self, command: commands.Delete, report_error: ErrorReporter) -> DeleteSummary:
        """Delete a job, then the bytes of its files."""
        await self._engine.aexecute(command)
        prefix = object_keys.job_prefix(command.tenant, command.job_id)
        return await _delete_blobs(lambda: self._blobs.delete_prefix(prefix), report_error)

    async def delete_files(self, command: commands.DeleteFiles, report_error: ErrorReporter) -> DeleteSummary:
        """Delete files, then their bytes."""
        deleted: DeletedFiles = await self._engine.aexecute(command)
        keys = [object_keys.file_key(file) for file in deleted.files]
        return await _delete_blobs(lambda: self._blobs.delete(keys), report_error)


async def _delete_blobs(delete: Callable[[], base.DeleteSummary], report_error: ErrorReporter) -> DeleteSummary:
    try:
        deleted = await asyncio.to_thread(delete)
    except (base.BlobError, OSError) as error:
        report_error(error)
        return DeleteSummary(0, 0, pending=True)
    return DeleteSummary(deleted.files, deleted.bytes)
