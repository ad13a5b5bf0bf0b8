"""Temporary folders of tasks. They are deleted with the task, with the worker, or when the next worker starts.

A worker locks its folder while its process runs; the operating system releases the lock even after a kill. A folder
whose lock file is not locked is abandoned and is deleted.
"""

import fcntl
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

_PREFIX, _LOCK = "callsheet-tasks-", "lock"
_PRIVATE = 0o700


class Scratch:
    """Creates the temporary folders of the tasks of one worker, inside one folder per worker."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or Path(tempfile.gettempdir())
        self._worker_folder: Path | None = None
        self._lock: IO[bytes] | None = None

    def open(self) -> None:
        """Delete abandoned folders and create the folder of this worker."""
        self._root.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
        for folder in self._root.glob(f"{_PREFIX}*"):
            _sweep_if_abandoned(folder)
        # Hidden under a dot name until its lock is held, so that no other worker deletes it.
        new_folder = self._root / f".{_PREFIX}{secrets.token_hex(8)}"
        new_folder.mkdir(mode=_PRIVATE)
        self._lock = _acquire_lock(new_folder / _LOCK)
        self._worker_folder = new_folder.rename(self._root / new_folder.name.removeprefix("."))

    def close(self) -> None:
        """Delete the folder of this worker."""
        if self._worker_folder is not None and self._lock is not None:
            remove_folder(self._worker_folder)
            self._lock.close()
            self._worker_folder = None

    def create_task_folder(self, name: str) -> Path:
        """Create the folder of one task."""
        if self._worker_folder is None:
            raise ValueError("The worker is not running: call open() before create_task_folder().")
        folder = self._worker_folder / name
        folder.mkdir(mode=_PRIVATE)
        return folder


def remove_folder(folder: Path) -> None:
    """Delete a folder with its contents, including read-only subfolders."""
    for path, names, _ in os.walk(folder):
        for name in names:
            subfolder = Path(path, name)
            if not subfolder.is_symlink():
                with suppress(OSError):
                    subfolder.chmod(_PRIVATE)
    shutil.rmtree(folder, ignore_errors=True)


def _sweep_if_abandoned(folder: Path) -> None:
    """Delete a folder of this user whose worker process has ended."""
    try:
        status = folder.lstat()
        if folder.is_symlink() or status.st_uid != os.getuid():
            return
        lock = _acquire_lock(folder / _LOCK)
    except OSError:
        return  # its worker is running, or another worker deletes it
    with lock:
        remove_folder(folder)


def _acquire_lock(path: Path) -> IO[bytes]:
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file
