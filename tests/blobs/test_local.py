"""The local blob store: symbolic links, a full disk, interrupted writers and concurrent deletions."""

import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from callsheet.blobs import object_keys
from callsheet.blobs.base import (
    BlobExistsError,
    BlobMismatchError,
    DeleteSummary,
    Stat,
    StorageFullError,
    StorageRefusedError,
    StorageUnavailableError,
)
from callsheet.blobs.local import LocalBlobs
from tests.support.doubles.blob_stores import digest

KEY = object_keys.output_key("acme", "job", "task", 1, 1)
SECRET = b"another tenant's"
MEGABYTE = 1024 * 1024


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    return LocalBlobs(tmp_path / "files")


def leftover_names(blobs: LocalBlobs) -> list[str]:
    folder = blobs.path("x").parent / ".incoming"
    return [path.name for path in folder.iterdir()] if folder.exists() else []


# -- lists


def list_all(blobs: LocalBlobs, page: int) -> list[str]:
    """List all keys, page by page."""
    found: list[str] = []
    while True:
        part = blobs.list("", found[-1] if found else "", page)
        found += [one.key for one in part]
        if len(part) < page:
            return found


def test_listing_all_pages_walks_the_folder_once(blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [object_keys.output_key("acme", f"job-{no:02}", "task", 1, 1) for no in range(20)]
    for key in jobs:
        blobs.put(key, b"x")
    scanned: list[int] = []
    real = os.scandir

    def scandir(where: int) -> Any:
        scanned.append(where)
        return real(where)

    monkeypatch.setattr(os, "scandir", scandir)
    folders = 3 + 3 * len(jobs)  # the root, acme and its jobs; and per job itself, its task and its attempt
    for page in (1, 3, 7, 20, 100):
        scanned.clear()
        assert list_all(blobs, page) == jobs
        assert len(scanned) == folders


def test_interleaved_listings_and_deletions_do_not_disturb_each_other(blobs: LocalBlobs) -> None:
    jobs = [object_keys.output_key("acme", f"job-{no}", "task", 1, 1) for no in range(8)]
    for key in jobs:
        blobs.put(key, b"x")
    first = [one.key for one in blobs.list("", "", 3)]
    assert [one.key for one in blobs.list("", "", 2)] == jobs[:2]
    assert [one.key for one in blobs.list("acme/jobs/job-2/", jobs[1], 2)] == [jobs[2]]
    assert [one.key for one in blobs.list("", jobs[1], 2)] == jobs[2:4]
    blobs.delete([jobs[3], jobs[4]])
    assert [one.key for one in blobs.list("", jobs[3], 2)] == jobs[5:7]
    assert (first, [one.key for one in blobs.list("", first[-1], 9)]) == (jobs[:3], jobs[5:])


# -- links


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "1").write_bytes(SECRET)
    return folder


@pytest.mark.parametrize("at", range(1, 6), ids=["tenant", "jobs", "job", "task", "attempt"])
def test_a_symbolic_link_to_a_folder_is_not_followed(blobs: LocalBlobs, outside: Path, at: int) -> None:
    parts = KEY.split("/")
    (outside / "1").unlink()
    inner = outside.joinpath(*parts[at:-1])
    inner.mkdir(parents=True, exist_ok=True)
    (inner / "1").write_bytes(SECRET)
    link = blobs.path("/".join(parts[:at]))
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    assert (blobs.stat(KEY), blobs.exists(KEY), blobs.list("", "", 10)) == (None, False, [])
    with pytest.raises(FileNotFoundError):
        blobs.open(KEY)
    with pytest.raises(StorageRefusedError):
        blobs.put(KEY, b"mine")
    assert blobs.delete([KEY]) == DeleteSummary(0, 0)
    assert blobs.delete_prefix(object_keys.job_prefix("acme", "job")) == DeleteSummary(0, 0)
    assert (inner / "1").read_bytes() == SECRET
    assert leftover_names(blobs) == []


def test_a_symbolic_link_to_a_file_is_neither_read_nor_written_through(blobs: LocalBlobs, outside: Path) -> None:
    path = blobs.path(KEY)
    path.parent.mkdir(parents=True)
    path.symlink_to(outside / "1")
    assert blobs.stat(KEY) is None
    with pytest.raises(FileNotFoundError):
        blobs.open(KEY)
    with pytest.raises(BlobExistsError):
        blobs.put(KEY, b"mine")
    blobs.put(KEY, b"mine", overwrite=True)
    assert (outside / "1").read_bytes() == SECRET
    assert (path.is_symlink(), path.read_bytes()) == (False, b"mine")


def test_a_delete_removes_symbolic_links_and_not_their_targets(blobs: LocalBlobs, outside: Path) -> None:
    blobs.put(KEY, b"mine")
    (blobs.path(KEY).parent / "link").symlink_to(outside / "1")
    (blobs.path(KEY).parent / "folder").symlink_to(outside)
    assert blobs.delete_prefix(object_keys.job_prefix("acme", "job")) == DeleteSummary(1, 4)
    assert (outside / "1").read_bytes() == SECRET
    assert not blobs.path("acme").exists(), "empty folders are deleted too"


def test_a_pipe_in_place_of_a_file_does_not_block(blobs: LocalBlobs) -> None:
    blobs.path(KEY).parent.mkdir(parents=True)
    os.mkfifo(blobs.path(KEY))
    assert (blobs.stat(KEY), blobs.exists(KEY), blobs.list("", "", 10)) == (None, False, [])


def test_the_root_folder_can_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "files").symlink_to(tmp_path / "disk")
    LocalBlobs(tmp_path / "files").put(KEY, b"mine")
    assert (tmp_path / "disk" / KEY).read_bytes() == b"mine"


def test_only_the_owner_can_read_stored_files(blobs: LocalBlobs) -> None:
    blobs.put(KEY, b"mine")
    assert blobs.path(KEY).stat().st_mode & 0o777 == 0o600
    assert all(folder.stat().st_mode & 0o077 == 0 for folder in list(blobs.path(KEY).parents)[:6])


# -- complete or absent


def test_a_stream_of_chunks_is_hashed_while_it_is_written(blobs: LocalBlobs) -> None:
    blobs.put(KEY, (b"%d," % number for number in range(1_000)))
    body = b"".join(b"%d," % number for number in range(1_000))
    assert blobs.stat(KEY) == Stat(len(body), digest(body))


@pytest.mark.parametrize(("size", "sha256"), [(5, digest(b"four")), (4, digest(b"five")), (0, digest(b""))])
def test_an_upload_with_a_wrong_size_or_digest_leaves_nothing(blobs: LocalBlobs, size: int, sha256: str) -> None:
    with blobs.incoming(KEY) as incoming:
        incoming.write(b"four")
        with pytest.raises(BlobMismatchError):
            incoming.finish(size, sha256)
    assert (blobs.stat(KEY), leftover_names(blobs)) == (None, [])


def test_an_interrupted_upload_leaves_nothing(blobs: LocalBlobs) -> None:
    def breaking() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        blobs.put(KEY, breaking())
    assert (blobs.stat(KEY), leftover_names(blobs)) == (None, [])


def test_an_abandoned_upload_is_swept_when_it_is_old(tmp_path: Path) -> None:
    now = 2_000_000_000.0
    blobs = LocalBlobs(tmp_path, now=lambda: now)
    dead, alive = blobs.incoming(f"{KEY}-dead"), blobs.incoming(KEY)
    dead.write(b"half")
    folder = tmp_path / ".incoming"
    for path in folder.iterdir():
        old = path.stat().st_size == 4
        os.utime(path, (now, now - 3_601 if old else now - 3_599))
    assert blobs.list("", "", 10) == []
    assert blobs.sweep(3_600) == DeleteSummary(1, 4)
    alive.write(b"whole")
    alive.finish(5, digest(b"whole"))
    alive.discard()
    with pytest.raises(StorageUnavailableError):
        dead.finish()
    dead.discard()
    assert (blobs.stat(KEY), leftover_names(blobs)) == (Stat(5, digest(b"whole")), [])


def test_a_blob_and_its_folders_are_synced_to_the_disk(blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    fsync = os.fsync

    def recording_fsync(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    blobs.put(KEY, b"mine")
    path = blobs.path(KEY)
    assert {one.stat().st_ino for one in (path, *list(path.parents)[:6])} <= synced


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Limit every file of this process to one megabyte; the system reports it like a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_reported_and_leaves_nothing(blobs: LocalBlobs) -> None:
    with pytest.raises(StorageFullError):
        blobs.put(KEY, (b"x" * 100_000 for _ in range(20)))
    assert (blobs.stat(KEY), leftover_names(blobs)) == (None, [])
    blobs.put(KEY, b"small")
    assert blobs.exists(KEY)


def test_a_file_in_place_of_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "acme").write_text("not a folder")
    with pytest.raises(StorageRefusedError, match="is not writable"):
        LocalBlobs(tmp_path / "files").put(KEY, b"mine")


# -- concurrency


def test_concurrent_deletions_do_not_remove_later_uploads(blobs: LocalBlobs) -> None:
    others = [object_keys.output_key("acme", "job", f"task-{number}", 1, 1) for number in range(60)]

    def churn(number: int) -> None:
        for key in others[number::4]:
            blobs.put(key, b"x")
            assert blobs.delete([key]) == DeleteSummary(1, 1)
            assert blobs.delete_prefix("acme/jobs/none/") == DeleteSummary(0, 0)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(churn, range(4))) == [None] * 4
    assert (blobs.list("", "", 10), leftover_names(blobs)) == ([], [])
    blobs.put(KEY, b"after")
    assert blobs.exists(KEY)


def test_a_store_without_a_signer_grants_nothing(blobs: LocalBlobs) -> None:
    with pytest.raises(StorageRefusedError, match="Only the server"):
        blobs.grant_download(KEY, expires_in_seconds=1, name="a", media_type="image/png")
