"""Signed digest records: a file that was verified during its upload is not read again, unless its record is invalid."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from callsheet.blobs import object_keys
from callsheet.blobs.base import BlobMismatchError, Stat, verify_claim
from callsheet.blobs.local import LocalBlobs
from callsheet.http.auth.authenticator import Signer
from tests.support.doubles.blob_stores import digest
from tests.support.io_counter import bytes_read

KEY, OTHER = object_keys.output_key("acme", "job", "task", 1, 1), object_keys.output_key("acme", "job", "task", 2, 1)
MEGABYTE = 1024 * 1024
BODY = b"0123456789abcdef" * (4 * MEGABYTE // 16)
OTHER_BODY = bytes(reversed(BODY))
NOW = 2_000_000_000.0


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    made = LocalBlobs(tmp_path, Signer(b"secret"))
    made.put(KEY, BODY)
    made.put(OTHER, OTHER_BODY)
    return made


def record_of(blobs: LocalBlobs, key: str) -> Path:
    """Return the record of a key: the file that is deleted with it."""
    folder = blobs.path("x").parent / ".checked"
    before = set(folder.iterdir())
    kept = {path: path.read_bytes() for path in before}
    blobs._digest_records.delete(key)  # noqa: SLF001 - the name of a record is private
    (deleted,) = before - set(folder.iterdir())
    deleted.write_bytes(kept[deleted])
    return deleted


def verify_and_count(blobs: LocalBlobs, body: bytes = BODY) -> int:
    """Verify a claim; return how many bytes were read for it."""
    before = bytes_read()
    verify_claim(blobs, KEY, size=len(body), sha256=digest(body))
    return bytes_read() - before


# -- valid records


def test_a_file_that_was_verified_during_its_upload_is_not_read_again(blobs: LocalBlobs) -> None:
    assert verify_and_count(blobs) < MEGABYTE
    assert blobs.stat_verified(KEY) == Stat(len(BODY), digest(BODY))
    with pytest.raises(BlobMismatchError, match="SHA-256"):
        verify_and_count(blobs, OTHER_BODY)


@pytest.mark.usefixtures("blobs")
def test_a_restarted_server_trusts_its_own_records(tmp_path: Path) -> None:
    assert verify_and_count(LocalBlobs(tmp_path, Signer(b"secret"))) < MEGABYTE


def test_storing_the_same_bytes_again_does_not_read_the_existing_ones(blobs: LocalBlobs) -> None:
    before = bytes_read()
    blobs.put(KEY, BODY)
    assert bytes_read() - before < MEGABYTE
    assert verify_and_count(blobs) < MEGABYTE, "the record is still valid"


def test_stat_reads_the_bytes_even_if_there_is_a_record(blobs: LocalBlobs) -> None:
    before = bytes_read()
    assert blobs.stat(KEY) == Stat(len(BODY), digest(BODY))
    assert bytes_read() - before >= len(BODY)


# -- invalid records


def overwrite(blobs: LocalBlobs) -> None:
    """Write other bytes into the same file and restore its modification time."""
    path = blobs.path(KEY)
    found = path.stat()
    with path.open("r+b") as file:
        file.write(OTHER_BODY)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (found.st_ino, found.st_mtime_ns)


def replace(blobs: LocalBlobs) -> None:
    """Replace it by another file of the same size and time."""
    path = blobs.path(KEY)
    found = path.stat()
    shutil.move(blobs.path(OTHER), path)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def swap(blobs: LocalBlobs) -> None:
    """Replace the folder and the record by those of another key, which match each other; no file is touched."""
    record_of(blobs, OTHER).replace(record_of(blobs, KEY))
    shutil.rmtree(blobs.path(KEY).parent)
    blobs.path(OTHER).parent.rename(blobs.path(KEY).parent)


def forge(blobs: LocalBlobs) -> None:
    """Replace the file and write its record with another secret."""
    folder = blobs.path("x").parent
    blobs.path(KEY).unlink()
    LocalBlobs(folder, Signer(b"a guess")).put(KEY, OTHER_BODY)


def store_again(blobs: LocalBlobs) -> None:
    blobs.put(KEY, OTHER_BODY, overwrite=True)


@pytest.mark.parametrize("plant", [overwrite, replace, swap, forge, store_again])
def test_replaced_bytes_are_detected(blobs: LocalBlobs, plant: Callable[[LocalBlobs], None]) -> None:
    plant(blobs)
    assert blobs.stat_verified(KEY) == Stat(len(OTHER_BODY), None)
    with pytest.raises(BlobMismatchError) as mismatch:
        verify_and_count(blobs)
    assert mismatch.value.field == "digest"
    assert verify_and_count(blobs, OTHER_BODY) >= len(OTHER_BODY), (
        "the bytes are read, and their true digest is accepted"
    )


def other_digest(record: Path) -> None:
    """Write another digest under the old signature."""
    text = record.read_bytes()
    record.write_bytes(text[:-8] + bytes(reversed(text[-8:])))


def another_record(record: Path) -> None:
    (other,) = (path for path in record.parent.iterdir() if path != record)
    record.write_bytes(other.read_bytes())


def a_pipe(record: Path) -> None:
    record.unlink()
    os.mkfifo(record)


def a_link(record: Path) -> None:
    kept = record.with_name("kept")
    record.rename(kept)
    record.symlink_to(kept)


@pytest.mark.parametrize(
    "plant",
    [
        other_digest, another_record, a_pipe, a_link, Path.unlink, lambda record: record.write_bytes(b""),
        lambda record: record.write_bytes(b"\xff\0" * 9_999), lambda record: record.write_text(digest(OTHER_BODY)),
        lambda record: shutil.rmtree(record.parent),
    ],
    ids=["digest", "of another key", "pipe", "link", "deleted", "empty", "binary", "unsigned", "folder deleted"],
)  # fmt: skip
def test_an_invalid_record_is_ignored(blobs: LocalBlobs, plant: Callable[[Path], None]) -> None:
    plant(record_of(blobs, KEY))
    assert blobs.stat_verified(KEY) == Stat(len(BODY), None)
    assert verify_and_count(blobs) >= len(BODY)


def test_without_the_secret_every_byte_is_read(blobs: LocalBlobs, tmp_path: Path) -> None:
    for other in (LocalBlobs(tmp_path), LocalBlobs(tmp_path, Signer(b"another"))):
        assert verify_and_count(other) >= len(BODY)
    assert blobs.stat_verified(KEY) == Stat(len(BODY), digest(BODY))


# -- cleanup


def test_a_record_is_deleted_with_its_file_and_old_records_are_swept(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path, Signer(b"secret"), now=lambda: NOW)
    for key in (KEY, OTHER):
        blobs.put(key, b"mine")
    folder = tmp_path / ".checked"
    assert (len(list(folder.iterdir())), len(blobs.list("", "", 9))) == (2, 2)
    blobs.delete([KEY])
    (left,) = folder.iterdir()
    os.utime(left, (NOW, NOW - 99))
    blobs.sweep(100)
    assert list(folder.iterdir()) == [left]
    blobs.sweep(98)
    assert list(folder.iterdir()) == []
    verify_claim(blobs, OTHER, size=4, sha256=digest(b"mine"))


def test_a_folder_that_cannot_store_records_stores_files(tmp_path: Path) -> None:
    (tmp_path / ".checked").write_text("in the way")
    blobs = LocalBlobs(tmp_path, Signer(b"secret"))
    blobs.put(KEY, BODY)
    assert blobs.stat_verified(KEY) == Stat(len(BODY), None)
    assert verify_and_count(blobs) >= len(BODY)
    assert blobs.delete([KEY]).files == 1
