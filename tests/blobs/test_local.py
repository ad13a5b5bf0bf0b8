"""The local folder: links lead nowhere, the disk may be full, writers may die, deleters may come in between."""

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


def left_over(blobs: LocalBlobs) -> list[str]:
    folder = blobs.path("x").parent / ".incoming"
    return [path.name for path in folder.iterdir()] if folder.exists() else []


# -- lists


def passed(blobs: LocalBlobs, page: int) -> list[str]:
    """List everything, page by page."""
    found: list[str] = []
    while True:
        part = blobs.list("", found[-1] if found else "", page)
        found += [one.key for one in part]
        if len(part) < page:
            return found


def test_a_pass_over_the_folder_is_one_walk(blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [object_keys.output_key("acme", f"job-{no:02}", "task", 1, 1) for no in range(20)]
    for key in jobs:
        blobs.put(key, b"x")
    looked: list[int] = []
    real = os.scandir

    def scandir(where: int) -> Any:
        looked.append(where)
        return real(where)

    monkeypatch.setattr(os, "scandir", scandir)
    folders = 3 + 3 * len(jobs)  # of all, of acme, of its jobs; and of each job, its task and its try
    for page in (1, 3, 7, 20, 100):
        looked.clear()
        assert passed(blobs, page) == jobs
        assert len(looked) == folders


def test_passes_that_cross_each_other_and_changes_in_between_confuse_no_list(blobs: LocalBlobs) -> None:
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
def test_a_folder_that_is_a_link_is_not_entered(blobs: LocalBlobs, outside: Path, at: int) -> None:
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
    assert left_over(blobs) == []


def test_a_file_that_is_a_link_is_neither_read_nor_written_through(blobs: LocalBlobs, outside: Path) -> None:
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


def test_deleting_removes_links_and_not_what_they_lead_to(blobs: LocalBlobs, outside: Path) -> None:
    blobs.put(KEY, b"mine")
    (blobs.path(KEY).parent / "link").symlink_to(outside / "1")
    (blobs.path(KEY).parent / "folder").symlink_to(outside)
    assert blobs.delete_prefix(object_keys.job_prefix("acme", "job")) == DeleteSummary(1, 4)
    assert (outside / "1").read_bytes() == SECRET
    assert not blobs.path("acme").exists(), "folders that are empty go too"


def test_a_pipe_in_a_files_place_holds_nobody(blobs: LocalBlobs) -> None:
    blobs.path(KEY).parent.mkdir(parents=True)
    os.mkfifo(blobs.path(KEY))
    assert (blobs.stat(KEY), blobs.exists(KEY), blobs.list("", "", 10)) == (None, False, [])


def test_the_folder_itself_may_be_reached_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "files").symlink_to(tmp_path / "disk")
    LocalBlobs(tmp_path / "files").put(KEY, b"mine")
    assert (tmp_path / "disk" / KEY).read_bytes() == b"mine"


def test_only_the_owner_can_read_what_is_kept(blobs: LocalBlobs) -> None:
    blobs.put(KEY, b"mine")
    assert blobs.path(KEY).stat().st_mode & 0o777 == 0o600
    assert all(folder.stat().st_mode & 0o077 == 0 for folder in list(blobs.path(KEY).parents)[:6])


# -- whole or absent


def test_what_comes_in_pieces_is_checked_while_it_is_written(blobs: LocalBlobs) -> None:
    blobs.put(KEY, (b"%d," % number for number in range(1_000)))
    body = b"".join(b"%d," % number for number in range(1_000))
    assert blobs.stat(KEY) == Stat(len(body), digest(body))


@pytest.mark.parametrize(("size", "sha256"), [(5, digest(b"four")), (4, digest(b"five")), (0, digest(b""))])
def test_a_lie_leaves_nothing_behind(blobs: LocalBlobs, size: int, sha256: str) -> None:
    with blobs.incoming(KEY) as incoming:
        incoming.write(b"four")
        with pytest.raises(BlobMismatchError):
            incoming.finish(size, sha256)
    assert (blobs.stat(KEY), left_over(blobs)) == (None, [])


def test_a_writer_that_breaks_leaves_nothing_behind(blobs: LocalBlobs) -> None:
    def breaking() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        blobs.put(KEY, breaking())
    assert (blobs.stat(KEY), left_over(blobs)) == (None, [])


def test_what_a_dead_writer_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    now = 2_000_000_000.0
    blobs = LocalBlobs(tmp_path, now=lambda: now)
    dead, alive = blobs.incoming(KEY), blobs.incoming(KEY)
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
    assert (blobs.stat(KEY), left_over(blobs)) == (Stat(5, digest(b"whole")), [])


def test_a_blob_and_the_way_to_it_are_down_on_the_disk(blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: set[int] = set()
    fsync = os.fsync

    def watched(fd: int) -> None:
        kept.add(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", watched)
    blobs.put(KEY, b"mine")
    path = blobs.path(KEY)
    assert {one.stat().st_ino for one in (path, *list(path.parents)[:6])} <= kept


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file of this process may grow beyond a megabyte: the system says so as it says that a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_named_and_nothing_stays_of_what_came(blobs: LocalBlobs) -> None:
    with pytest.raises(StorageFullError):
        blobs.put(KEY, (b"x" * 100_000 for _ in range(20)))
    assert (blobs.stat(KEY), left_over(blobs)) == (None, [])
    blobs.put(KEY, b"small")
    assert blobs.exists(KEY)


def test_a_file_where_the_folder_should_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "acme").write_text("not a folder")
    with pytest.raises(StorageRefusedError, match="is not writable"):
        LocalBlobs(tmp_path / "files").put(KEY, b"mine")


# -- several at once


def test_deleters_and_writers_at_once_lose_nothing_that_came_after(blobs: LocalBlobs) -> None:
    others = [object_keys.output_key("acme", "job", f"task-{number}", 1, 1) for number in range(60)]

    def churn(number: int) -> None:
        for key in others[number::4]:
            blobs.put(key, b"x")
            assert blobs.delete([key]) == DeleteSummary(1, 1)
            assert blobs.delete_prefix("acme/jobs/none/") == DeleteSummary(0, 0)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(churn, range(4))) == [None] * 4
    assert (blobs.list("", "", 10), left_over(blobs)) == ([], [])
    blobs.put(KEY, b"after")
    assert blobs.exists(KEY)


def test_without_a_signer_nothing_is_granted(blobs: LocalBlobs) -> None:
    with pytest.raises(StorageRefusedError, match="Only the server"):
        blobs.grant_download(KEY, expires_in_seconds=1, name="a", media_type="image/png")
