"""What was checked while a file was put is not read again; whatever is wrong about that word, the bytes are."""

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
LIE = bytes(reversed(BODY))
NOW = 2_000_000_000.0


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    made = LocalBlobs(tmp_path, Signer(b"secret"))
    made.put(KEY, BODY)
    made.put(OTHER, LIE)
    return made


def record_of(blobs: LocalBlobs, key: str) -> Path:
    """Return the record of a key: the one that goes with it."""
    folder = blobs.path("x").parent / ".checked"
    before = set(folder.iterdir())
    kept = {path: path.read_bytes() for path in before}
    blobs._digest_records.delete(key)  # noqa: SLF001 - its name is nobody else's business
    (gone,) = before - set(folder.iterdir())
    gone.write_bytes(kept[gone])
    return gone


def look(blobs: LocalBlobs, body: bytes = BODY) -> int:
    """Check a claim; return how many bytes were read for it."""
    before = bytes_read()
    verify_claim(blobs, KEY, size=len(body), sha256=digest(body))
    return bytes_read() - before


# -- what is believed


def test_what_was_checked_when_it_was_put_is_not_read_again(blobs: LocalBlobs) -> None:
    assert look(blobs) < MEGABYTE
    assert blobs.stat_verified(KEY) == Stat(len(BODY), digest(BODY))
    with pytest.raises(BlobMismatchError, match="SHA-256"):
        look(blobs, LIE)


@pytest.mark.usefixtures("blobs")
def test_a_server_that_starts_again_believes_what_it_wrote_down(tmp_path: Path) -> None:
    assert look(LocalBlobs(tmp_path, Signer(b"secret"))) < MEGABYTE


def test_the_same_bytes_put_again_are_compared_without_reading_those_that_are_there(blobs: LocalBlobs) -> None:
    before = bytes_read()
    blobs.put(KEY, BODY)
    assert bytes_read() - before < MEGABYTE
    assert look(blobs) < MEGABYTE, "the record stands"


def test_a_proof_reads_the_bytes_whatever_is_written_down(blobs: LocalBlobs) -> None:
    before = bytes_read()
    assert blobs.stat(KEY) == Stat(len(BODY), digest(BODY))
    assert bytes_read() - before >= len(BODY)


# -- what is not


def overwrite(blobs: LocalBlobs) -> None:
    """Write other bytes into the same file, and set its time back."""
    path = blobs.path(KEY)
    found = path.stat()
    with path.open("r+b") as file:
        file.write(LIE)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (found.st_ino, found.st_mtime_ns)


def replace(blobs: LocalBlobs) -> None:
    """Put another file in its place, of the same size and time."""
    path = blobs.path(KEY)
    found = path.stat()
    shutil.move(blobs.path(OTHER), path)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def swap(blobs: LocalBlobs) -> None:
    """Replace the folder and the record by those of another key, which are true of each other; no file is touched."""
    record_of(blobs, OTHER).replace(record_of(blobs, KEY))
    shutil.rmtree(blobs.path(KEY).parent)
    blobs.path(OTHER).parent.rename(blobs.path(KEY).parent)


def forge(blobs: LocalBlobs) -> None:
    """Replace the file, and let somebody without the secret write its record."""
    folder = blobs.path("x").parent
    blobs.path(KEY).unlink()
    LocalBlobs(folder, Signer(b"a guess")).put(KEY, LIE)


def put_over(blobs: LocalBlobs) -> None:
    blobs.put(KEY, LIE, overwrite=True)


@pytest.mark.parametrize("plant", [overwrite, replace, swap, forge, put_over])
def test_other_bytes_in_a_files_place_are_found(blobs: LocalBlobs, plant: Callable[[LocalBlobs], None]) -> None:
    plant(blobs)
    assert blobs.stat_verified(KEY) == Stat(len(LIE), None)
    with pytest.raises(BlobMismatchError) as lie:
        look(blobs)
    assert lie.value.field == "digest"
    assert look(blobs, LIE) >= len(LIE), "they are read, and the truth about them holds"


def other_digest(record: Path) -> None:
    """Say another digest, under the old signature."""
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
        lambda record: record.write_bytes(b"\xff\0" * 9_999), lambda record: record.write_text(digest(LIE)),
        lambda record: shutil.rmtree(record.parent),
    ],
    ids=["digest", "another's", "pipe", "link", "gone", "empty", "bytes", "unsigned", "all gone"],
)  # fmt: skip
def test_a_record_that_is_not_ours_is_not_believed(blobs: LocalBlobs, plant: Callable[[Path], None]) -> None:
    plant(record_of(blobs, KEY))
    assert blobs.stat_verified(KEY) == Stat(len(BODY), None)
    assert look(blobs) >= len(BODY)


def test_without_the_secret_every_byte_is_read(blobs: LocalBlobs, tmp_path: Path) -> None:
    for other in (LocalBlobs(tmp_path), LocalBlobs(tmp_path, Signer(b"another"))):
        assert look(other) >= len(BODY)
    assert blobs.stat_verified(KEY) == Stat(len(BODY), digest(BODY))


# -- tidiness


def test_a_record_goes_with_its_file_and_old_ones_are_swept(tmp_path: Path) -> None:
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


def test_a_folder_that_takes_no_records_takes_files(tmp_path: Path) -> None:
    (tmp_path / ".checked").write_text("in the way")
    blobs = LocalBlobs(tmp_path, Signer(b"secret"))
    blobs.put(KEY, BODY)
    assert blobs.stat_verified(KEY) == Stat(len(BODY), None)
    assert look(blobs) >= len(BODY)
    assert blobs.delete([KEY]).files == 1
