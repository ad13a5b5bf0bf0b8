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
    BLOB_URL_PURPOSE,
    CHUNK_BYTES,
    BlobAccess,
    BlobEntry,
    BlobExistsError,
    BlobMismatchError,
    DeleteSummary,
    Grant,
    PayloadSigner,
    Stat,
    StorageFullError,
    StorageRefusedError,
    StorageUnavailableError,
    digest_of,
    validate_blob_claim,
)
from callsheet.blobs.digest_records import RECORDS_FOLDER, DigestRecords
from callsheet.blobs.object_keys import split_key, split_prefix
from callsheet.blobs.safe_directory import FileEntry, PagedWalk, SafeDirectory
from callsheet.core.model.plural import counted

BLOB_URL_PREFIX: Final = "/v1/blobs/"
_INCOMING_FOLDER: Final = ".incoming"
_STORAGE_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PERMISSION_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP})
_PLACE_ATTEMPTS: Final = 100
"""How often a folder that a deleter took away meanwhile is made again."""


RecordDigest = Callable[[os.stat_result, str], None]
"""Takes what a file looks like now, and the SHA-256 of what was written into it."""


class LocalBlobs:
    """Blobs below one folder, which several processes may share."""

    def __init__(self, folder: Path, signer: PayloadSigner | None = None, now: Callable[[], float] = time.time) -> None:
        self._tree = SafeDirectory(folder)
        self._pages = PagedWalk(self._tree)
        self._signer = signer
        self._digest_records = DigestRecords(self._tree, signer)
        self._now = now

    # -- grants: addresses of the house, which answers them in http/blobs.py

    def grant_upload(self, key: str, *, size: int, sha256: str, media_type: str, expires_in_seconds: int) -> Grant:
        validate_blob_claim(media_type=media_type, size=size, sha256=sha256)
        access = BlobAccess("PUT", key, self._expires_at(expires_in_seconds), media_type, size, sha256)
        return Grant(
            "PUT", self._sign_url(access), {"content-type": media_type, "content-length": str(size)}, expires_in_seconds
        )

    def grant_overwrite(self, key: str, *, bytes_max: int, media_type: str, expires_in_seconds: int) -> Grant:
        validate_blob_claim(media_type=media_type, size=bytes_max)
        access = BlobAccess("PUT", key, self._expires_at(expires_in_seconds), media_type, bytes_max)
        return Grant("PUT", self._sign_url(access), {"content-type": media_type}, expires_in_seconds)

    def grant_download(self, key: str, *, expires_in_seconds: int, name: str, media_type: str) -> Grant:
        validate_blob_claim(media_type=media_type)
        access = BlobAccess("GET", key, self._expires_at(expires_in_seconds), media_type, name=name)
        return Grant("GET", self._sign_url(access), {}, expires_in_seconds)

    # -- bytes

    def put(self, key: str, body: bytes | Path | Iterable[bytes], *, overwrite: bool = False) -> None:
        with self.incoming(key, overwrite=overwrite) as incoming:
            for chunk in _iter_chunks(body):
                incoming.write(chunk)
            try:
                incoming.finish()
            except BlobExistsError:
                stat = self.stat_verified(key)
                if stat is None or (stat.sha256 or digest_of(self, key)) != incoming.sha256:
                    raise

    def incoming(self, key: str, *, overwrite: bool = False) -> "IncomingBlob":
        """Begin to write a blob piece by piece."""
        return IncomingBlob(self._tree, split_key(key), partial(self._digest_records.write, key), overwrite=overwrite)

    def open(self, key: str) -> IO[bytes]:
        return os.fdopen(self._tree.open(split_key(key)), "rb")

    def exists(self, key: str) -> bool:
        """Say whether there are bytes at a key, without reading them."""
        return self._stat_or_none(key) is not None

    def stat(self, key: str) -> Stat | None:
        """Say what lies at a key; its bytes are read."""
        try:
            with self.open(key) as file:
                digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]
                return Stat(file.tell(), digest.hexdigest())
        except FileNotFoundError:
            return None

    def stat_verified(self, key: str) -> Stat | None:
        found = self._stat_or_none(key)
        return None if found is None else Stat(found.st_size, self._digest_records.read(key, found))

    def delete(self, keys: Iterable[str]) -> DeleteSummary:
        with _translate_os_errors():
            sizes = [size for key in keys if (size := self._remove(key)) is not None]
        return DeleteSummary(len(sizes), sum(sizes))

    def delete_prefix(self, prefix: str) -> DeleteSummary:
        parts = split_prefix(prefix)
        if not parts:
            raise ValueError("all blobs at once are never deleted")
        with _translate_os_errors():
            sizes = self._tree.remove_all(parts)
        return DeleteSummary(len(sizes), sum(sizes))

    def list(self, prefix: str, after: str, count: int) -> Sequence[BlobEntry]:
        found = self._pages.read(split_prefix(prefix), after, count)
        return [BlobEntry(one.path, one.size, one.modified_ns // 1_000) for one in found]

    def sweep(self, idle_seconds: float) -> DeleteSummary:
        self._remove_idle(RECORDS_FOLDER, idle_seconds)  # whoever waits for longer than that has his bytes read again
        left = self._remove_idle(_INCOMING_FOLDER, idle_seconds)
        return DeleteSummary(len(left), sum(one.size for one in left))

    def path(self, key: str) -> Path:
        """Return where a blob lies on this machine."""
        return self._tree.root.joinpath(*split_key(key))

    def _stat_or_none(self, key: str) -> os.stat_result | None:
        try:
            return self._tree.stat(split_key(key))
        except FileNotFoundError:
            return None

    def _remove(self, key: str) -> int | None:
        size = self._tree.remove(split_key(key))
        self._digest_records.delete(key)
        return size

    def _remove_idle(self, name: str, idle_seconds: float) -> Sequence[FileEntry]:
        """Remove the files of a flat folder of ours that nobody has written for so long."""
        older_than = (self._now() - idle_seconds) * 1e9
        left = [one for one in self._tree.walk([name], "") if one.modified_ns < older_than]
        with suppress(FileNotFoundError), self._tree.folder([name]) as folder:
            for one in left:
                with suppress(FileNotFoundError):  # another server sweeps too
                    os.unlink(one.path.rpartition("/")[2], dir_fd=folder)
        return left

    def _expires_at(self, expires_in_seconds: int) -> int:
        return int(self._now()) + expires_in_seconds

    def _sign_url(self, access: BlobAccess) -> str:
        split_key(access.key)
        if self._signer is None:
            raise StorageRefusedError("This process cannot grant access to files: only the server can.")
        return BLOB_URL_PREFIX + self._signer.sign(BLOB_URL_PURPOSE, access)


class IncomingBlob:
    """Bytes on their way into the folder; leaving it unfinished leaves nothing behind.

    A writer that dies leaves a file in `.incoming`, which the sweep finds.
    """

    def __init__(self, tree: SafeDirectory, parts: list[str], record_digest: RecordDigest, *, overwrite: bool) -> None:
        self._tree = tree
        self._parts = parts
        self._record_digest = record_digest
        self._overwrite = overwrite
        self._name = secrets.token_hex(16)
        with _translate_os_errors():
            self._fd = tree.create([_INCOMING_FOLDER, self._name])
        self._digest = hashlib.sha256()
        self._lock = Lock()
        """Nothing is closed under the hands of a thread that still writes and that nobody waits for any more."""
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, chunk: bytes | bytearray) -> None:
        left = memoryview(chunk)
        with self._lock, _translate_os_errors():
            self._digest.update(chunk)
            self.size += len(chunk)
            while left:
                left = left[os.write(self._fd, left) :]

    def finish(self, size: int | None = None, sha256: str | None = None) -> None:
        """Check what has come against what was said, and put it in its place."""
        if size is not None and size != self.size:
            raise BlobMismatchError("size", f"{counted(self.size, 'byte')} came, not {size}.")
        if sha256 is not None and sha256 != self.sha256:
            raise BlobMismatchError("digest", "The SHA-256 of what came is another one than was said.")
        with self._lock, _translate_os_errors():
            os.fsync(self._fd)
            self._move_into_place()
            stat_written = os.fstat(self._fd)
            self._close()  # from here on nobody can write, and nothing of ours changes the file any more
            if not self._overwrite:
                self._record(stat_written)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def discard(self) -> None:
        """Let go; what was not finished is gone."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1  # whoever writes after this is told that it is not open
        with suppress(FileNotFoundError), self._tree.folder([_INCOMING_FOLDER]) as folder:
            os.unlink(self._name, dir_fd=folder)

    def _record(self, stat_written: os.stat_result) -> None:
        """Vouch for what is in its place, if it is still what was written."""
        with suppress(FileNotFoundError):
            found = self._tree.stat(self._parts)
            if _file_identity(found) == _file_identity(stat_written):
                self._record_digest(found, self.sha256)

    def _move_into_place(self) -> None:
        for _ in range(_PLACE_ATTEMPTS):
            with (
                suppress(FileNotFoundError),
                self._tree.folder([_INCOMING_FOLDER], create_missing=True) as incoming_folder,
            ):
                self._move(incoming_folder)
                return
            if not self._still_linked():
                break
        raise StorageUnavailableError("The bytes were lost on their way into the folder.")

    def _move(self, incoming_folder: int) -> None:
        with self._tree.folder(self._parts[:-1], create_missing=True) as folder:
            if self._overwrite:
                os.rename(self._name, self._parts[-1], src_dir_fd=incoming_folder, dst_dir_fd=folder)
            else:
                try:
                    os.link(
                        self._name,
                        self._parts[-1],
                        src_dir_fd=incoming_folder,
                        dst_dir_fd=folder,
                        follow_symlinks=False,
                    )
                except FileExistsError:
                    raise BlobExistsError from None
            os.fsync(folder)

    def _still_linked(self) -> bool:
        return os.fstat(self._fd).st_nlink > 0


def _file_identity(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _iter_chunks(body: bytes | Path | Iterable[bytes]) -> Iterator[bytes]:
    if isinstance(body, bytes):
        yield body
    elif isinstance(body, Path):
        with body.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    else:
        yield from body


@contextmanager
def _translate_os_errors() -> Iterator[None]:
    """Say in a sentence what the system says in a number."""
    try:
        yield
    except OSError as error:
        if error.errno in _STORAGE_FULL_ERRNOS:
            raise StorageFullError from None
        if error.errno in _PERMISSION_ERRNOS:
            raise StorageRefusedError(f"The files' folder cannot be written: {os.strerror(error.errno)}.") from None
        raise
