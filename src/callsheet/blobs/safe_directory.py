"""A directory that is accessed through open descriptors: symbolic links are not followed, and paths cannot leave it."""

import errno
import os
import stat
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import NamedTuple

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a FIFO must not block
_OPEN_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PAUSED_WALK_SECONDS_MAX = 60.0
"""A paused walk restarts after this long, because the listings that it holds are stale."""


class FileEntry(NamedTuple):
    """A file of the directory; the time is in nanoseconds."""

    path: str
    size: int
    modified_ns: int


class SafeDirectory:
    """The folders and files below one root folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def folder(self, parts: Sequence[str], *, create_missing: bool = False) -> Iterator[int]:
        """Open a folder; FileNotFoundError if it, or one above, is absent or not a folder."""
        if create_missing:
            self.root.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
        fd = os.open(self.root, _OPEN_FOLDER & ~os.O_NOFOLLOW)
        try:
            for part in parts:
                inner_fd = _open_subfolder(fd, part, create_missing=create_missing)
                os.close(fd)
                fd = inner_fd
            yield fd
        finally:
            os.close(fd)

    def open(self, parts: Sequence[str]) -> int:
        """Open a file for reading."""
        with self.folder(parts[:-1]) as folder, _as_not_found():
            fd = os.open(parts[-1], _OPEN_READ, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileNotFoundError("not a file")
        return fd

    def stat(self, parts: Sequence[str]) -> os.stat_result:
        """Stat a file without opening it; FileNotFoundError for links, folders and FIFOs too."""
        with self.folder(parts[:-1]) as folder:
            found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError("not a file")
        return found

    def create(self, parts: Sequence[str]) -> int:
        """Create a new file and open it for writing."""
        with self.folder(parts[:-1], create_missing=True) as folder:
            return os.open(parts[-1], _OPEN_WRITE, _FILE_MODE, dir_fd=folder)

    def open_or_create(self, parts: Sequence[str]) -> int:
        """Open a file for writing, and create it if it does not exist."""
        with self.folder(parts[:-1], create_missing=True) as folder:
            return os.open(parts[-1], _OPEN_WRITE & ~os.O_EXCL, _FILE_MODE, dir_fd=folder)

    def remove(self, parts: Sequence[str]) -> int | None:
        """Delete a file and the folders that become empty; return its size, or None if it did not exist."""
        try:
            with self.folder(parts[:-1]) as folder:
                size = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_size
                os.unlink(parts[-1], dir_fd=folder)
        except FileNotFoundError:
            return None
        self._prune(parts[:-1])
        return size

    def remove_all(self, parts: Sequence[str]) -> list[int]:
        """Delete a folder recursively; return the sizes of its files."""
        sizes: list[int] = []
        with suppress(FileNotFoundError), self.folder(parts) as top:
            for _, folders, files, fd in os.fwalk(".", topdown=False, dir_fd=top):
                for name in files:
                    with suppress(FileNotFoundError):
                        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                        os.unlink(name, dir_fd=fd)
                        if stat.S_ISREG(found.st_mode):
                            sizes.append(found.st_size)
                for name in folders:
                    _remove_folder(name, fd)
        self._prune(parts)
        return sizes

    def walk(self, parts: Sequence[str], after: str) -> Generator[FileEntry, None, None]:
        """Yield the files below a folder after the path `after`, in byte order; hidden files are skipped."""
        with suppress(FileNotFoundError), self.folder(parts) as top:
            yield from _walk(top, "".join(f"{part}/" for part in parts), after)

    def _prune(self, parts: Sequence[str]) -> None:
        """Delete a folder and its parents while they are empty."""
        for count in range(len(parts), 0, -1):
            try:
                with self.folder(parts[: count - 1]) as above:
                    os.rmdir(parts[count - 1], dir_fd=above)
            except OSError:  # not empty any more, or already deleted
                return


class PausedWalk(NamedTuple):
    """A paused walk: its folder, its last path, and since when it is paused."""

    parts: tuple[str, ...]
    after: str
    paused_at: float
    walk: Generator[FileEntry, None, None]


class PagedWalk:
    """Reads a directory tree page by page. A page that starts where the last one ended continues the same walk.

    Files that are added to a folder after the walk has entered it appear in the next pass.
    """

    def __init__(self, tree: SafeDirectory) -> None:
        self._tree = tree
        self._paused_walk: PausedWalk | None = None
        self._lock = Lock()

    def read(self, parts: Sequence[str], after: str, count: int) -> list[FileEntry]:
        """Return up to `count` files below a folder, starting after the path `after`."""
        walk = self._resume_walk(tuple(parts), after) or self._tree.walk(parts, after)
        page = list(islice(walk, count))
        if page and len(page) == count:
            self._pause_walk(PausedWalk(tuple(parts), page[-1].path, time.monotonic(), walk))
        return page

    def _resume_walk(self, parts: tuple[str, ...], after: str) -> Generator[FileEntry, None, None] | None:
        with self._lock:
            paused = self._paused_walk
            if (
                paused is None
                or paused[:2] != (parts, after)
                or time.monotonic() - paused.paused_at > _PAUSED_WALK_SECONDS_MAX
            ):
                return None
            self._paused_walk = None
            return paused.walk

    def _pause_walk(self, paused: PausedWalk) -> None:
        with self._lock:
            replaced, self._paused_walk = self._paused_walk, paused
        if replaced is not None:
            replaced.walk.close()


def _open_subfolder(fd: int, part: str, *, create_missing: bool) -> int:
    try:
        with _as_not_found():
            return os.open(part, _OPEN_FOLDER, dir_fd=fd)
    except FileNotFoundError:
        if not create_missing:
            raise
    with suppress(FileExistsError):
        os.mkdir(part, _FOLDER_MODE, dir_fd=fd)
        os.fsync(fd)
    return os.open(part, _OPEN_FOLDER, dir_fd=fd)


@contextmanager
def _as_not_found() -> Iterator[None]:
    """Raise FileNotFoundError for a link, and for a file where a folder is expected."""
    try:
        yield
    except NotADirectoryError:
        raise FileNotFoundError("not a folder") from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise FileNotFoundError("a symbolic link") from None


def _walk(fd: int, base: str, after: str) -> Iterator[FileEntry]:
    with os.scandir(fd) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
        named_entries = [(entry.name + "/" * entry.is_dir(follow_symlinks=False), entry) for entry in visible]
    for name, entry in sorted(named_entries, key=lambda named: named[0].encode()):
        path = base + name
        if path <= after and not (name.endswith("/") and after.startswith(path)):
            continue
        with suppress(FileNotFoundError):
            if name.endswith("/"):
                inner_fd = os.open(entry.name, _OPEN_FOLDER, dir_fd=fd)
                try:
                    yield from _walk(inner_fd, path, after)
                finally:
                    os.close(inner_fd)
            elif entry.is_file(follow_symlinks=False):
                found = entry.stat(follow_symlinks=False)
                yield FileEntry(path, found.st_size, found.st_mtime_ns)


def _remove_folder(name: str, fd: int) -> None:
    """Delete an entry that is an empty folder or a link to a folder."""
    try:
        os.rmdir(name, dir_fd=fd)
    except NotADirectoryError:
        os.unlink(name, dir_fd=fd)
    except OSError:  # a concurrent writer added a file: keep it
        return
