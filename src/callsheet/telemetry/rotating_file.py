"""A log file with rotation by size: `x.log` is current, `x.log.1` is the previous one; the oldest is deleted."""

import fcntl
import io
import os
import threading
from pathlib import Path
from typing import Any

_OWNER_ONLY = 0o600
_APPEND_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class RotatingFile(io.RawIOBase):
    """Appends unbuffered to a file and rotates it when it would exceed the size limit.

    Several processes may write to the same log: when one rotates it, the others reopen it.
    """

    def __init__(self, file: Path, bytes_max: int, files_max: int) -> None:
        super().__init__()
        self._file = file
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._lock = threading.Lock()
        self._descriptor = self._open()

    @property
    def name(self) -> str:
        return str(self._file)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with self._lock:
            if not self._is_current():
                self._reopen()
            size = os.fstat(self._descriptor).st_size
            if size and size + len(data) > self._bytes_max:
                self._rotate()
            return os.write(self._descriptor, data)

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()

    def _rotate(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # closing the descriptor releases the lock
        if self._is_current():
            names = [self._file, *(Path(f"{self._file}.{n}") for n in range(1, self._files_max))]
            for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
                if newer.exists():
                    newer.replace(older)
            if len(names) == 1:  # otherwise it was renamed, and the name may already belong to a new file
                self._file.unlink()
        self._reopen()

    def _is_current(self) -> bool:
        """Return whether the open file still has this name, or another process has rotated it."""
        try:
            return os.path.samestat(self._file.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _reopen(self) -> None:
        previous, self._descriptor = self._descriptor, self._open()
        os.close(previous)

    def _open(self) -> int:
        return os.open(self._file, _APPEND_FLAGS, _OWNER_ONLY)
