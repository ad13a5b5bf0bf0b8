"""Checks that the file storage is still the one of the database: a folder may be unmounted, or a bucket replaced."""

from contextlib import suppress

from callsheet.blobs.base import BlobError, Blobs
from callsheet.core.model.errors import Conflict
from callsheet.engine.reads.synchronous import BlockingReader
from callsheet.engine.signing_secret_and_storage import check_storage


class StorageCheck:
    """Remembers why the storage is not the right one, until it is again. A storage that does not answer may be it."""

    def __init__(self, read: BlockingReader, blobs: Blobs) -> None:
        self.error: str | None = None
        self._read = read
        self._blobs = blobs

    def run_once(self, now: int) -> int:  # noqa: ARG002 - nothing depends on the time
        with suppress(BlobError):
            try:
                check_storage(self._read, self._blobs)
                self.error = None
            except Conflict as refusal:
                self.error = refusal.message
        return 0
