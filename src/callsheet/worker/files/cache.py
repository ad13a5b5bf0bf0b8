"""Files kept between tasks, by what is in them: the same model or picture is fetched once for a machine.

An entry's name is its SHA-256, checked when it is filled, and again by each process that uses it for the first time. A
task gets a link of its own (a copy where the disk has no links), so that no eviction takes a file out of its hands.
What a task did to its link shows in the entry's time stamp: a damaged entry is dropped. Processes may share a folder.
"""

import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from callsheet.core.model.media_type import SHA256

_INTACT_MTIME_NS = 1_000_000_000 * 10**9
"""The modification time of every sound entry, in nanoseconds: who writes into one changes it."""
_READ_ONLY, _PRIVATE = 0o400, 0o700
_STALE_SECONDS = 3_600


class _CheckedFile(Struct, frozen=True):
    """Which very file was checked."""

    inode: int
    size: int


class Cache:
    """A folder of files by digest, with a size that it keeps to: what was used longest ago goes first."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._checked: dict[str, _CheckedFile] = {}
        folder.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)

    def link_to(self, sha256: str, into: Path) -> bool:
        """Put a file that is here at a path that is free; False if it is not here."""
        entry = self._entry_path(sha256)
        try:
            _link_or_copy(entry, into)
        except FileNotFoundError:
            return False
        if not self._is_intact(sha256, into):
            entry.unlink(missing_ok=True)
            into.unlink(missing_ok=True)
            return False
        with suppress(FileNotFoundError):  # evicted in this moment; the task has it
            os.utime(entry, ns=(time.time_ns(), _INTACT_MTIME_NS))
        return True

    def add(self, sha256: str, file: Path) -> None:
        """Keep a file whose digest was checked, and make room for it; too large a file is not kept."""
        size = file.stat().st_size
        if size > self._bytes_max:
            return
        entry = self._entry_path(sha256)
        entry.parent.mkdir(exist_ok=True, mode=_PRIVATE)
        file.chmod(_READ_ONLY)
        os.utime(file, ns=(time.time_ns(), _INTACT_MTIME_NS))
        with self._lock_folder():
            self._evict_for(size)
            with suppress(FileExistsError):  # another was faster
                _link_or_copy(file, entry)

    # -- inside

    def _entry_path(self, sha256: str) -> Path:
        if not SHA256.match(sha256):
            raise ValueError("a SHA-256 has 64 small hexadecimal digits")
        return self._folder / sha256[:2] / sha256

    def _is_intact(self, sha256: str, file: Path) -> bool:
        """Say whether a file is what its name says: by its stamp, and the first time by its bytes."""
        status = file.stat()
        if status.st_mtime_ns != _INTACT_MTIME_NS:
            return False
        checked = _CheckedFile(status.st_ino, status.st_size)
        if self._checked.get(sha256) == checked:
            return True
        if digest_of(file) != sha256:
            return False
        self._checked[sha256] = checked
        return True

    def _evict_for(self, size: int) -> None:
        """Remove what was used longest ago until there is room; tasks that have it keep it."""
        entries = sorted(self._entries())
        total = sum(entry_size for _, entry_size, _ in entries)
        for _, entry_size, path in entries:
            if total + size <= self._bytes_max:
                return
            path.unlink(missing_ok=True)
            self._checked.pop(path.name, None)
            total -= entry_size

    def _entries(self) -> Iterator[tuple[int, int, Path]]:
        for path in self._folder.glob("??/*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                if SHA256.match(path.name):
                    yield status.st_atime_ns, status.st_size, path
                elif status.st_ctime < time.time() - _STALE_SECONDS:
                    path.unlink(missing_ok=True)  # a copy that broke off

    @contextmanager
    def _lock_folder(self) -> Iterator[None]:
        """Hold the folder, among threads and processes, while room is made."""
        with (self._folder / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def digest_of(file: Path) -> str:
    """Return the SHA-256 of what is in a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name; where the disk cannot, copy it, whole or not at all."""
    try:
        os.link(source, target)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError:
        _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    temporary = target.with_name(f".{secrets.token_hex(8)}")
    try:
        shutil.copy2(source, temporary)
        temporary.rename(target)
    finally:
        temporary.unlink(missing_ok=True)
