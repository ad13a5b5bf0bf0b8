"""A lock on a name in a folder, over all processes. It ends with its process."""

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress

from callsheet.blobs.base import BlobBusyError
from callsheet.blobs.safe_directory import SafeDirectory


class FileLock:
    """A locked file. It is deleted when the lock is released."""

    def __init__(self, tree: SafeDirectory, parts: Sequence[str]) -> None:
        """Take the lock, or raise BlobBusyError."""
        self._tree = tree
        self._parts = parts
        self._fd = self._open()

    def _open(self) -> int:
        while True:
            fd = self._tree.open_or_create(self._parts)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current(fd):
                    return fd
            except BlockingIOError:
                os.close(fd)
                raise BlobBusyError from None
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _is_current(self, fd: int) -> bool:
        """Return whether the file still has its name: its last holder deletes it, and another one may be there."""
        with suppress(FileNotFoundError):
            return self._tree.stat(self._parts).st_ino == os.fstat(fd).st_ino
        return False

    def release(self) -> None:
        """Delete the file and end the lock."""
        with suppress(FileNotFoundError), self._tree.folder(self._parts[:-1]) as folder:
            if self._is_current(self._fd):
                os.unlink(self._parts[-1], dir_fd=folder)
        os.close(self._fd)
