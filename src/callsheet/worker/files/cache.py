"""A cache of input files on disk, keyed by SHA-256, so that a machine downloads the same file once.

The digest is verified when a file is added, and again when a process uses it for the first time. A task gets a hard
link (a copy if the file system has no hard links), so that evicting an entry does not remove the file of a running
task. Writing to the link changes the modification time of the entry, which is then discarded. Several processes may
share one folder.
"""

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from callsheet.core.model.header_value_patterns import SHA256
from callsheet.transport.sha256 import digest_file

_INTACT_MTIME_NS = 1_000_000_000 * 10**9
"""The modification time of every intact entry, in nanoseconds: a write changes it."""
_READ_ONLY, _PRIVATE = 0o400, 0o700
_STALE_SECONDS = 3_600


class _CheckedFile(Struct, frozen=True):
    """Identifies a file whose digest was verified."""

    inode: int
    size: int


class Cache:
    """A folder of files by digest with a maximum size. The least recently used files are evicted first."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._checked: dict[str, _CheckedFile] = {}
        folder.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)

    def link_to(self, sha256: str, into: Path) -> bool:
        """Link the cached file to a path that does not exist; return False if the file is not cached."""
        entry = self._entry_path(sha256)
        try:
            _link_or_copy(entry, into)
        except FileNotFoundError:
            return False
        if not self._is_intact(sha256, into):
            entry.unlink(missing_ok=True)
            into.unlink(missing_ok=True)
            return False
        with suppress(FileNotFoundError):  # another process evicted the entry; the task keeps its link
            os.utime(entry, ns=(time.time_ns(), _INTACT_MTIME_NS))
        return True

    def add(self, sha256: str, file: Path) -> None:
        """Add a file whose digest was verified, evicting others as needed. A file above the maximum is not added."""
        size = file.stat().st_size
        if size > self._bytes_max:
            return
        entry = self._entry_path(sha256)
        entry.parent.mkdir(exist_ok=True, mode=_PRIVATE)
        file.chmod(_READ_ONLY)
        os.utime(file, ns=(time.time_ns(), _INTACT_MTIME_NS))
        with self._lock_folder():
            self._evict_for(size)
            with suppress(FileExistsError):  # another process added it
                _link_or_copy(file, entry)

    # -- helpers

    def _entry_path(self, sha256: str) -> Path:
        if not SHA256.match(sha256):
            raise ValueError(f"{sha256!r} is not a SHA-256 digest: it must be 64 lowercase hexadecimal digits.")
        return self._folder / sha256[:2] / sha256

    def _is_intact(self, sha256: str, file: Path) -> bool:
        """Check the modification time and, the first time, the digest."""
        status = file.stat()
        if status.st_mtime_ns != _INTACT_MTIME_NS:
            return False
        checked = _CheckedFile(status.st_ino, status.st_size)
        if self._checked.get(sha256) == checked:
            return True
        if digest_file(file) != sha256:
            return False
        self._checked[sha256] = checked
        return True

    def _evict_for(self, size: int) -> None:
        """Remove the least recently used entries until `size` bytes fit."""
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
                    path.unlink(missing_ok=True)  # the rest of an interrupted copy

    @contextmanager
    def _lock_folder(self) -> Iterator[None]:
        """Lock the folder against other threads and processes."""
        with (self._folder / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _link_or_copy(source: Path, target: Path) -> None:
    """Create a hard link, or an atomic copy if the file system has no hard links."""
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
