"""A disk that fails: SQLite reads and writes through this layer, which raises the error that a test sets."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw


class FailingDisk(apsw.VFS):
    """SQLite's file system, as the default for new connections. While `error` is set, every write fails with it."""

    def __init__(self) -> None:
        self.error: type[apsw.Error] | None = None
        super().__init__("failing-disk", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - the name in apsw
        return FailingFile(self, name, flags)


class FailingFile(apsw.VFSFile):
    """A file of that disk."""

    def __init__(self, disk: FailingDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - the name in apsw
        if self._disk.error is not None:
            raise self._disk.error
        super().xWrite(data, offset)


@contextmanager
def failing_disk() -> Iterator[FailingDisk]:
    """Put every connection that is opened from now on onto a disk that can fail."""
    disk = FailingDisk()
    try:
        yield disk
    finally:
        disk.unregister()
