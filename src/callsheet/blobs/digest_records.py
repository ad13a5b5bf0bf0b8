"""Signed records of digests that were verified while a blob was written, so that it need not be read again.

A record is valid only for the file that it was written for: the same key, inode, size, modification time and change
time, which no program can set. If there is no valid record, the bytes are read again.
"""

import hashlib
import os
import secrets
from contextlib import suppress
from typing import Final

from msgspec import Struct

from callsheet.blobs.base import PayloadSigner
from callsheet.blobs.safe_directory import SafeDirectory

RECORDS_FOLDER: Final = ".checked"
_PURPOSE: Final = "checked"
_BYTES_MAX: Final = 4_096


class DigestRecord(Struct, frozen=True, array_like=True):
    """Identity of a file and the SHA-256 of its bytes."""

    key: str
    inode: int
    size: int
    modified_ns: int
    changed_ns: int
    sha256: str


class DigestRecords:
    """Signed records, one file per blob, in a separate folder."""

    def __init__(self, tree: SafeDirectory, signer: PayloadSigner | None) -> None:
        self._tree = tree
        self._signer = signer

    def write(self, key: str, stat: os.stat_result, sha256: str) -> None:
        """Store a verified digest. If that fails, the bytes are read again later."""
        if self._signer is None:
            return
        text = self._signer.sign(_PURPOSE, _digest_record(key, stat, sha256)).encode()
        name = _record_name(key)
        temporary_name = f"{name}.{secrets.token_hex(4)}"
        with suppress(OSError), self._tree.folder([RECORDS_FOLDER], create_missing=True) as folder:
            try:
                fd = os.open(temporary_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
                try:
                    os.write(fd, text)
                finally:
                    os.close(fd)
                os.rename(temporary_name, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(temporary_name, dir_fd=folder)
                raise

    def read(self, key: str, stat: os.stat_result) -> str | None:
        """Return the digest of a file that is unchanged since it was verified; None without a valid record."""
        if self._signer is None:
            return None
        try:
            fd = self._tree.open([RECORDS_FOLDER, _record_name(key)])
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb") as file:
            text = file.read(_BYTES_MAX).decode("ascii", "replace")
        record = self._signer.read(_PURPOSE, text, DigestRecord)
        return record.sha256 if record is not None and record == _digest_record(key, stat, record.sha256) else None

    def delete(self, key: str) -> None:
        with suppress(FileNotFoundError), self._tree.folder([RECORDS_FOLDER]) as folder:
            os.unlink(_record_name(key), dir_fd=folder)


def _digest_record(key: str, stat: os.stat_result, sha256: str) -> DigestRecord:
    return DigestRecord(key, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, sha256)


def _record_name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
