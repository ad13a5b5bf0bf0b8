"""Blobs below a folder: whole or absent, down on the disk before anybody hears of them, and written once."""

import errno
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import IO, Final, Self

from callsheet.blobs.base import (
    CHUNK,
    PURPOSE,
    AlreadyPut,
    BlobFact,
    Freed,
    Grant,
    Listed,
    NotAsClaimed,
    Signer,
    Stat,
    StorageAway,
    StorageFull,
    StorageRefused,
    check_words,
    digest_of,
)
from callsheet.blobs.keys import parts_of, prefix_parts
from callsheet.blobs.tree import Found, Pages, Tree
from callsheet.blobs.vouching import CHECKED, Records
from callsheet.core.counting import counted

ADDRESS: Final = "/v1/blobs/"
_INCOMING: Final = ".incoming"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_SHUT: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP})
_TRIES: Final = 100
"""How often a folder that a deleter took away meanwhile is made again."""


Vouch = Callable[[os.stat_result, str], None]
"""Takes what a file looks like now, and the SHA-256 of what was written into it."""


class LocalBlobs:
    """Blobs below one folder, which several processes may share."""

    def __init__(self, folder: Path, signer: Signer | None = None, now: Callable[[], float] = time.time) -> None:
        self._tree = Tree(folder)
        self._pages = Pages(self._tree)
        self._signer = signer
        self._records = Records(self._tree, signer)
        self._now = now

    # -- grants: addresses of the house, which answers them in http/blobs.py

    def grant_put(self, key: str, *, size: int, sha256: str, media_type: str, seconds: int) -> Grant:
        check_words(media_type=media_type, size=size, sha256=sha256)
        fact = BlobFact("PUT", key, self._until(seconds), media_type, size, sha256)
        return Grant("PUT", self._address(fact), {"content-type": media_type, "content-length": str(size)}, seconds)

    def grant_put_over(self, key: str, *, bytes_max: int, media_type: str, seconds: int) -> Grant:
        check_words(media_type=media_type, size=bytes_max)
        fact = BlobFact("PUT", key, self._until(seconds), media_type, bytes_max)
        return Grant("PUT", self._address(fact), {"content-type": media_type}, seconds)

    def grant_get(self, key: str, *, seconds: int, name: str, media_type: str) -> Grant:
        check_words(media_type=media_type)
        fact = BlobFact("GET", key, self._until(seconds), media_type, name=name)
        return Grant("GET", self._address(fact), {}, seconds)

    # -- bytes

    def put(self, key: str, body: bytes | Path | Iterable[bytes], *, over: bool = False) -> None:
        with self.incoming(key, over=over) as incoming:
            for piece in _pieces(body):
                incoming.write(piece)
            try:
                incoming.finish()
            except AlreadyPut:
                stat = self.vouched(key)
                if stat is None or (stat.sha256 or digest_of(self, key)) != incoming.sha256:
                    raise

    def incoming(self, key: str, *, over: bool = False) -> "Incoming":
        """Begin to write a blob piece by piece."""
        return Incoming(self._tree, parts_of(key), partial(self._records.write, key), over=over)

    def open(self, key: str) -> IO[bytes]:
        return os.fdopen(self._tree.open(parts_of(key)), "rb")

    def has(self, key: str) -> bool:
        """Say whether there are bytes at a key, without reading them."""
        return self._found(key) is not None

    def stat(self, key: str) -> Stat | None:
        """Say what lies at a key; its bytes are read."""
        try:
            with self.open(key) as file:
                digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]
                return Stat(file.tell(), digest.hexdigest())
        except FileNotFoundError:
            return None

    def vouched(self, key: str) -> Stat | None:
        found = self._found(key)
        return None if found is None else Stat(found.st_size, self._records.read(key, found))

    def delete(self, keys: Iterable[str]) -> Freed:
        with _named():
            sizes = [size for key in keys if (size := self._removed(key)) is not None]
        return Freed(len(sizes), sum(sizes))

    def delete_prefix(self, prefix: str) -> Freed:
        parts = prefix_parts(prefix)
        if not parts:
            raise ValueError("all blobs at once are never deleted")
        with _named():
            sizes = self._tree.remove_all(parts)
        return Freed(len(sizes), sum(sizes))

    def list(self, prefix: str, after: str, count: int) -> Sequence[Listed]:
        found = self._pages.read(prefix_parts(prefix), after, count)
        return [Listed(one.path, one.size, one.modified_ns // 1_000) for one in found]

    def sweep(self, idle_seconds: float) -> Freed:
        self._swept(CHECKED, idle_seconds)  # whoever waits for longer than that has his bytes read again
        left = self._swept(_INCOMING, idle_seconds)
        return Freed(len(left), sum(one.size for one in left))

    def path(self, key: str) -> Path:
        """Return where a blob lies on this machine."""
        return self._tree.root.joinpath(*parts_of(key))

    def _found(self, key: str) -> os.stat_result | None:
        try:
            return self._tree.stat(parts_of(key))
        except FileNotFoundError:
            return None

    def _removed(self, key: str) -> int | None:
        size = self._tree.remove(parts_of(key))
        self._records.forget(key)
        return size

    def _swept(self, name: str, idle_seconds: float) -> Sequence[Found]:
        """Remove the files of a flat folder of ours that nobody has written for so long."""
        before = (self._now() - idle_seconds) * 1e9
        left = [one for one in self._tree.walk([name], "") if one.modified_ns < before]
        with suppress(FileNotFoundError), self._tree.folder([name]) as folder:
            for one in left:
                with suppress(FileNotFoundError):  # another server sweeps too
                    os.unlink(one.path.rpartition("/")[2], dir_fd=folder)
        return left

    def _until(self, seconds: int) -> int:
        return int(self._now()) + seconds

    def _address(self, fact: BlobFact) -> str:
        parts_of(fact.key)
        if self._signer is None:
            raise StorageRefused("This process cannot grant access to files: only the server can.")
        return ADDRESS + self._signer.sign(PURPOSE, fact)


class Incoming:
    """Bytes on their way into the folder; leaving it unfinished leaves nothing behind.

    A writer that dies leaves a file in `.incoming`, which the sweep finds.
    """

    def __init__(self, tree: Tree, parts: list[str], vouch: Vouch, *, over: bool) -> None:
        self._tree = tree
        self._parts = parts
        self._vouch = vouch
        self._over = over
        self._name = secrets.token_hex(16)
        with _named():
            self._fd = tree.create([_INCOMING, self._name])
        self._digest = hashlib.sha256()
        self._lock = Lock()
        """Nothing is closed under the hands of a thread that still writes and that nobody waits for any more."""
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, piece: bytes | bytearray) -> None:
        left = memoryview(piece)
        with self._lock, _named():
            self._digest.update(piece)
            self.size += len(piece)
            while left:
                left = left[os.write(self._fd, left) :]

    def finish(self, size: int | None = None, sha256: str | None = None) -> None:
        """Check what has come against what was said, and put it in its place."""
        if size is not None and size != self.size:
            raise NotAsClaimed("size", f"{counted(self.size, 'byte')} came, not {size}.")
        if sha256 is not None and sha256 != self.sha256:
            raise NotAsClaimed("digest", "The SHA-256 of what came is another one than was said.")
        with self._lock, _named():
            os.fsync(self._fd)
            self._place()
            written = os.fstat(self._fd)
            self._let_go()  # from here on nobody can write, and nothing of ours changes the file any more
            if not self._over:
                self._tell(written)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Let go; what was not finished is gone."""
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1  # whoever writes after this is told that it is not open
        with suppress(FileNotFoundError), self._tree.folder([_INCOMING]) as folder:
            os.unlink(self._name, dir_fd=folder)

    def _tell(self, written: os.stat_result) -> None:
        """Vouch for what is in its place, if it is still what was written."""
        with suppress(FileNotFoundError):
            found = self._tree.stat(self._parts)
            if _same(found) == _same(written):
                self._vouch(found, self.sha256)

    def _place(self) -> None:
        for _ in range(_TRIES):
            with suppress(FileNotFoundError), self._tree.folder([_INCOMING], make=True) as here:
                self._move(here)
                return
            if not self._is_there():
                break
        raise StorageAway("The bytes were lost on their way into the folder.")

    def _move(self, here: int) -> None:
        with self._tree.folder(self._parts[:-1], make=True) as folder:
            if self._over:
                os.rename(self._name, self._parts[-1], src_dir_fd=here, dst_dir_fd=folder)
            else:
                try:
                    os.link(self._name, self._parts[-1], src_dir_fd=here, dst_dir_fd=folder, follow_symlinks=False)
                except FileExistsError:
                    raise AlreadyPut from None
            os.fsync(folder)

    def _is_there(self) -> bool:
        return os.fstat(self._fd).st_nlink > 0


def _same(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _pieces(body: bytes | Path | Iterable[bytes]) -> Iterator[bytes]:
    if isinstance(body, bytes):
        yield body
    elif isinstance(body, Path):
        with body.open("rb") as file:
            while piece := file.read(CHUNK):
                yield piece
    else:
        yield from body


@contextmanager
def _named() -> Iterator[None]:
    """Say in a sentence what the system says in a number."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull from None
        if error.errno in _SHUT:
            raise StorageRefused(f"The files' folder cannot be written: {os.strerror(error.errno)}.") from None
        raise
