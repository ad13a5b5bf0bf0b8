"""A tree of folders that is walked by open descriptors: no link is followed, and nothing leads out of it."""

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
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe in a file's place must not hold us
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT_SECONDS = 60.0
"""So long a walk may stand still; then it begins anew, for what it saw of its folders is old."""


class Found(NamedTuple):
    """A file of the tree; the time is in nanoseconds."""

    path: str
    size: int
    modified_ns: int


class Tree:
    """Folders below one that exists for as long as we do."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def folder(self, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """Open a folder; FileNotFoundError if it, or one above, is absent or not a folder."""
        if make:
            self.root.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
        fd = os.open(self.root, _FOLDER & ~os.O_NOFOLLOW)
        try:
            for part in parts:
                inner = _entered(fd, part, make=make)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    def open(self, parts: Sequence[str]) -> int:
        """Open a file to read."""
        with self.folder(parts[:-1]) as folder, _strict():
            fd = os.open(parts[-1], _READ, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileNotFoundError("not a file")
        return fd

    def stat(self, parts: Sequence[str]) -> os.stat_result:
        """Look at a file without opening it; FileNotFoundError for a link, a folder or a pipe too."""
        with self.folder(parts[:-1]) as folder:
            found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError("not a file")
        return found

    def create(self, parts: Sequence[str]) -> int:
        """Create a file that was not there, and open it to write."""
        with self.folder(parts[:-1], make=True) as folder:
            return os.open(parts[-1], _WRITE, _FILE_MODE, dir_fd=folder)

    def remove(self, parts: Sequence[str]) -> int | None:
        """Remove a file, and the folders that it leaves empty; return its size, or None if it was not there."""
        try:
            with self.folder(parts[:-1]) as folder:
                size = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_size
                os.unlink(parts[-1], dir_fd=folder)
        except FileNotFoundError:
            return None
        self._prune(parts[:-1])
        return size

    def remove_all(self, parts: Sequence[str]) -> list[int]:
        """Remove a folder with everything in it; return the sizes of its files."""
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

    def walk(self, parts: Sequence[str], after: str) -> Generator[Found, None, None]:
        """Yield the files below a folder behind `after`, in the order of the bytes of their paths; none with a dot."""
        with suppress(FileNotFoundError), self.folder(parts) as top:
            yield from _walk(top, "".join(f"{part}/" for part in parts), after)

    def _prune(self, parts: Sequence[str]) -> None:
        """Remove a folder and those above it for as long as they are empty."""
        for count in range(len(parts), 0, -1):
            try:
                with self.folder(parts[: count - 1]) as above:
                    os.rmdir(parts[count - 1], dir_fd=above)
            except OSError:  # somebody has put something there, or removed it before us
                return


class Kept(NamedTuple):
    """A walk that stands still: where, behind what, and since when."""

    parts: tuple[str, ...]
    after: str
    since: float
    walk: Generator[Found, None, None]


class Pages:
    """Reads a tree page by page. One that begins where the last one ended goes on with its walk: a pass is one walk.

    What was put meanwhile into a folder that the walk has entered is seen by the next pass.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._kept: Kept | None = None
        self._lock = Lock()

    def read(self, parts: Sequence[str], after: str, count: int) -> list[Found]:
        """Return so many files below a folder, from the first behind `after`."""
        walk = self._taken(tuple(parts), after) or self._tree.walk(parts, after)
        page = list(islice(walk, count))
        if page and len(page) == count:
            self._keep(Kept(tuple(parts), page[-1].path, time.monotonic(), walk))
        return page

    def _taken(self, parts: tuple[str, ...], after: str) -> Generator[Found, None, None] | None:
        with self._lock:
            kept = self._kept
            if kept is None or kept[:2] != (parts, after) or time.monotonic() - kept.since > _KEPT_SECONDS:
                return None
            self._kept = None
            return kept.walk

    def _keep(self, kept: Kept) -> None:
        with self._lock:
            before, self._kept = self._kept, kept
        if before is not None:
            before.walk.close()


def _entered(fd: int, part: str, *, make: bool) -> int:
    try:
        with _strict():
            return os.open(part, _FOLDER, dir_fd=fd)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(part, _FOLDER_MODE, dir_fd=fd)
        os.fsync(fd)
    return os.open(part, _FOLDER, dir_fd=fd)


@contextmanager
def _strict() -> Iterator[None]:
    """Say of a link, and of a file in a folder's place, that what is looked for is not there."""
    try:
        yield
    except NotADirectoryError:
        raise FileNotFoundError("not a folder") from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise FileNotFoundError("a link") from None


def _walk(fd: int, base: str, after: str) -> Iterator[Found]:
    with os.scandir(fd) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".")]
        seen = [(entry.name + "/" * entry.is_dir(follow_symlinks=False), entry) for entry in shown]
    for name, entry in sorted(seen, key=lambda one: one[0].encode()):
        path = base + name
        if path <= after and not (name.endswith("/") and after.startswith(path)):
            continue
        with suppress(FileNotFoundError):
            if name.endswith("/"):
                inner = os.open(entry.name, _FOLDER, dir_fd=fd)
                try:
                    yield from _walk(inner, path, after)
                finally:
                    os.close(inner)
            elif entry.is_file(follow_symlinks=False):
                found = entry.stat(follow_symlinks=False)
                yield Found(path, found.st_size, found.st_mtime_ns)


def _remove_folder(name: str, fd: int) -> None:
    """Remove what stands among the folders: one that is empty now, or a link to one."""
    try:
        os.rmdir(name, dir_fd=fd)
    except NotADirectoryError:
        os.unlink(name, dir_fd=fd)
    except OSError:  # a late writer has put something there: it stays, and is found by whoever lists
        return
