"""Folders for the time of a task. They go with the task, with the worker, and at the latest with the next one's start.

A worker's folder holds a lock for as long as its process lives, which the system lets go of even after a kill: a folder
whose lock is free is nobody's, and is swept.
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
    """The folders of one worker's tasks, below a folder that it has for itself."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or Path(tempfile.gettempdir())
        self._worker_folder: Path | None = None
        self._lock: IO[bytes] | None = None

    def open(self) -> None:
        """Sweep what former workers left, and make a folder of one's own."""
        self._root.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
        for folder in self._root.glob(f"{_PREFIX}*"):
            _sweep_if_abandoned(folder)
        # Under a name that nobody sweeps until its lock is held.
        new_folder = self._root / f".{_PREFIX}{secrets.token_hex(8)}"
        new_folder.mkdir(mode=_PRIVATE)
        self._lock = _acquire_lock(new_folder / _LOCK)
        self._worker_folder = new_folder.rename(self._root / new_folder.name.removeprefix("."))

    def close(self) -> None:
        """Remove everything."""
        if self._worker_folder is not None and self._lock is not None:
            remove_folder(self._worker_folder)
            self._lock.close()
            self._worker_folder = None

    def create_task_folder(self, name: str) -> Path:
        """Make a folder for one task."""
        if self._worker_folder is None:
            raise ValueError("The worker has no folder: it is not at work.")
        folder = self._worker_folder / name
        folder.mkdir(mode=_PRIVATE)
        return folder


def remove_folder(folder: Path) -> None:
    """Remove a task's folder with all that its handler put there, also folders that it made read-only."""
    for path, names, _ in os.walk(folder):
        for name in names:
            subfolder = Path(path, name)
            if not subfolder.is_symlink():
                with suppress(OSError):
                    subfolder.chmod(_PRIVATE)
    shutil.rmtree(folder, ignore_errors=True)


def _sweep_if_abandoned(folder: Path) -> None:
    """Remove a folder of ours whose worker lives no longer."""
    try:
        status = folder.lstat()
        if folder.is_symlink() or status.st_uid != os.getuid():
            return
        lock = _acquire_lock(folder / _LOCK)
    except OSError:
        return  # its worker lives, or sweeps it just now
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
