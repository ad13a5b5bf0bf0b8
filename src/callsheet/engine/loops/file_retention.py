"""Deletes files whose retention has ended, and uploads that never received their bytes.

Rows are deleted first, bytes after the commit. A crash in between leaves an object without a row, never a row without
its object; `orphan_files` deletes such objects later.
"""

from callsheet.blobs import object_keys
from callsheet.blobs.base import Blobs
from callsheet.core.decisions.files import DeletedFiles
from callsheet.core.model.commands import DeleteFiles
from callsheet.engine.loops.loop_protocol import PAGE, CommandExecutor, due_pages

RETENTION_ACTOR = "retention"
"""The actor in the audit log."""


class FileRetention:
    """Deletes files that are past their retention."""

    def __init__(self, engine: CommandExecutor, blobs: Blobs, page: int = PAGE) -> None:
        self._engine = engine
        self._blobs = blobs
        self._page = page

    def run_once(self, now: int) -> int:
        deleted = 0
        errors: list[Exception] = []
        for rows in due_pages(self._engine.reads, "due_files", now, self._page):
            done: DeletedFiles = self._engine.execute(
                DeleteFiles(file_ids=tuple(row[1] for row in rows), requested_by=RETENTION_ACTOR)
            )
            deleted += len(done.files)
            try:
                self._blobs.delete([object_keys.file_key(file) for file in done.files])
            except Exception as error:  # noqa: BLE001 - the rows are gone, so the objects are orphans; continue
                errors.append(error)
        if errors:
            raise errors[0]
        return deleted
