"""Blob store in a local folder. A blob is written once, atomically, and synced to disk before the call returns."""

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
    MARKERS_FOLDER,
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
    digest_blob,
    validate_blob_claim,
)
from callsheet.blobs.digest_records import RECORDS_FOLDER, DigestRecords
from callsheet.blobs.file_lock import FileLock
from callsheet.blobs.object_keys import split_key, split_prefix
from callsheet.blobs.safe_directory import FileEntry, PagedWalk, SafeDirectory
from callsheet.core.model.plural import pluralize
from callsheet.transport.sha256 import digest_stream

BLOB_URL_PREFIX: Final = "/v1/blobs/"
_INCOMING_FOLDER: Final = ".incoming"
_STORAGE_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PERMISSION_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP})
_PLACE_ATTEMPTS: Final = 100
"""How often to retry if a concurrent delete removes the target folder."""


RecordDigest = Callable[[os.stat_result, str], None]
"""Receives the stat result of a written file and the SHA-256 of its bytes."""


class LocalBlobs:
    """Blobs in one folder, which several processes may share."""

    def __init__(self, folder: Path, signer: PayloadSigner | None = None, now: Callable[[], float] = time.time) -> None:
        self._tree = SafeDirectory(folder)
        self._pages = PagedWalk(self._tree)
        self._signer = signer
        self._digest_records = DigestRecords(self._tree, signer)
        self._now = now

    # -- grants: signed URLs of this server; http/routes/signed_files.py serves them

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
                if stat is None or (stat.sha256 or digest_blob(self, key)) != incoming.sha256:
                    raise

    def incoming(self, key: str, *, overwrite: bool = False) -> "IncomingBlob":
        """Start writing a blob in chunks. A key has one writer at a time, over all processes."""
        return IncomingBlob(self._tree, split_key(key), partial(self._digest_records.write, key), overwrite=overwrite)

    def open(self, key: str) -> IO[bytes]:
        return os.fdopen(self._tree.open(split_key(key)), "rb")

    def exists(self, key: str) -> bool:
        """Return whether a blob exists, without reading it."""
        return self._stat_or_none(key) is not None

    def stat(self, key: str) -> Stat | None:
        """Return size and digest of a blob; reads its bytes."""
        try:
            with self.open(key) as file:
                digest = digest_stream(file)
                return Stat(file.tell(), digest)
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
            raise ValueError("the prefix is empty: pass the prefix of the blobs to delete")
        with _translate_os_errors():
            sizes = self._tree.remove_all(parts)
        return DeleteSummary(len(sizes), sum(sizes))

    def list(self, prefix: str, after: str, count: int) -> Sequence[BlobEntry]:
        files = self._pages.read(split_prefix(prefix), after, count)
        return [BlobEntry(file.path, file.size, file.modified_ns // 1_000) for file in files]

    def sweep(self, idle_seconds: float) -> DeleteSummary:
        self._remove_idle(RECORDS_FOLDER, idle_seconds)  # without a record, the bytes are read again
        removed = self._remove_idle(_INCOMING_FOLDER, idle_seconds)
        return DeleteSummary(len(removed), sum(file.size for file in removed))

    def markers(self) -> Sequence[str]:
        with _translate_os_errors():
            return [file.path.rpartition("/")[2] for file in self._tree.walk([MARKERS_FOLDER], "")]

    def has_marker(self, name: str) -> bool:
        with _translate_os_errors():
            try:
                return bool(self._tree.stat([MARKERS_FOLDER, name]))
            except FileNotFoundError:
                return False

    def add_marker(self, name: str) -> None:
        with _translate_os_errors(), suppress(FileExistsError):
            fd = self._tree.create([MARKERS_FOLDER, name])
            os.fsync(fd)
            os.close(fd)
            with self._tree.folder([MARKERS_FOLDER]) as folder:
                os.fsync(folder)

    def remove_marker(self, name: str) -> None:
        with _translate_os_errors():
            self._tree.remove([MARKERS_FOLDER, name])

    def path(self, key: str) -> Path:
        """Return the path of a blob."""
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
        """Delete the files of an internal folder that were not written for `idle_seconds`."""
        older_than = (self._now() - idle_seconds) * 1e9
        idle = [file for file in self._tree.walk([name], "") if file.modified_ns < older_than]
        with suppress(FileNotFoundError), self._tree.folder([name]) as folder:
            for file in idle:
                with suppress(FileNotFoundError):  # another server may sweep at the same time
                    os.unlink(file.path.rpartition("/")[2], dir_fd=folder)
        return idle

    def _expires_at(self, expires_in_seconds: int) -> int:
        return int(self._now()) + expires_in_seconds

    def _sign_url(self, access: BlobAccess) -> str:
        split_key(access.key)
        if self._signer is None:
            raise StorageRefusedError("This process cannot sign file URLs. Only the server can.")
        return BLOB_URL_PREFIX + self._signer.sign(BLOB_URL_PURPOSE, access)


class IncomingBlob:
    """An upload in progress. If it is not finished, nothing is stored.

    While it is open, it holds a lock on its key. If the writer crashes, the lock is free at once; its file stays in
    `.incoming` until the next sweep.
    """

    def __init__(self, tree: SafeDirectory, parts: list[str], record_digest: RecordDigest, *, overwrite: bool) -> None:
        self._tree = tree
        self._parts = parts
        self._record_digest = record_digest
        self._overwrite = overwrite
        self._name = secrets.token_hex(16)
        with _translate_os_errors():
            self._key_lock = FileLock(tree, [_INCOMING_FOLDER, _lock_name(parts)])
            try:
                self._fd = tree.create([_INCOMING_FOLDER, self._name])
            except OSError:
                self._key_lock.release()
                raise
        self._digest = hashlib.sha256()
        self._lock = Lock()
        """Keeps the descriptor open while a thread writes to it, even if the request was canceled."""
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
        """Check size and digest against the claim, and move the file to its key."""
        if size is not None and size != self.size:
            raise BlobMismatchError("size", f"Received {pluralize(self.size, 'byte')}, not {size} as claimed.")
        if sha256 is not None and sha256 != self.sha256:
            raise BlobMismatchError("digest", "The SHA-256 of the received bytes differs from the claimed one.")
        with self._lock, _translate_os_errors():
            os.fsync(self._fd)
            self._move_into_place()
            stat_written = os.fstat(self._fd)
            self._close()  # nothing can write to the file after this
            if not self._overwrite:
                self._record(stat_written)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def discard(self) -> None:
        """Close the upload and delete it if it was not finished."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1  # a later write fails with EBADF
        with suppress(FileNotFoundError), self._tree.folder([_INCOMING_FOLDER]) as folder:
            os.unlink(self._name, dir_fd=folder)
        self._key_lock.release()

    def _record(self, stat_written: os.stat_result) -> None:
        """Record the digest, if the file at the key is still the one that was written."""
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
        raise StorageUnavailableError("The upload was deleted while it was written. Retry it.")

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


def _lock_name(parts: Sequence[str]) -> str:
    return hashlib.sha256("/".join(parts).encode()).hexdigest() + ".lock"


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
    """Convert an OSError to a BlobError."""
    try:
        yield
    except OSError as error:
        if error.errno in _STORAGE_FULL_ERRNOS:
            raise StorageFullError from None
        if error.errno in _PERMISSION_ERRNOS:
            raise StorageRefusedError(f"The folder for files is not writable: {os.strerror(error.errno)}.") from None
        raise
