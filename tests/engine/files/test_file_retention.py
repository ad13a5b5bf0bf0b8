"""Storage that stays tidy: what was kept long enough goes, orphans go within their bound, what is needed never does."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callsheet.blobs import object_keys
from callsheet.blobs.base import StorageUnavailableError
from callsheet.config import Settings
from callsheet.core.model.clock import SECOND
from callsheet.core.model.commands import Complete, DeleteFiles, FinishUpload
from callsheet.core.model.rows import Audit, File
from callsheet.core.policy.engine_limits import Limits
from callsheet.engine.loops.file_retention import FileRetention
from callsheet.engine.loops.orphan_files import OrphanCollector, StorageCounts
from callsheet.engine.stored_files_check import verify_files
from tests.support.databases.faulty_database import fail_once, faulty_engine
from tests.support.doubles.virtual_time_blobs import (
    BODY,
    GRACE_SECONDS,
    PICTURE,
    VirtualTimeBlobs,
    create_upload,
    key_of,
    run_full_pass,
    upload_command,
    upload_file,
)
from tests.support.engine.engine_harness import TENANT, EngineHarness, OpenHarness

KEPT = Settings(limits=Limits(upload_timeout_seconds=500, upload_retention_seconds=2_000), database_retry_seconds=5)


@pytest.fixture
def folder(harness: EngineHarness, tmp_path: Path) -> VirtualTimeBlobs:
    return VirtualTimeBlobs(tmp_path / "files", harness.clock)


@pytest.fixture
def orphans(harness: EngineHarness, folder: VirtualTimeBlobs) -> OrphanCollector:
    return OrphanCollector(harness.reads, folder, GRACE_SECONDS, page=3)


def row(harness: EngineHarness, file: File) -> File:
    return File(*harness.reads.fetch("files_by_id", ids=[file.id])[0])


def audit(harness: EngineHarness) -> list[Audit]:
    """Return what the house says of files that it deleted."""
    lines = [Audit(*found) for found in harness.reads.fetch("audit_of", tenant=TENANT, all=0, before="~", count=50)]
    return [line for line in lines if (line.actor, line.action) == ("retention", "files.delete")]


# -- retention


def test_what_was_kept_long_enough_goes_with_its_bytes_and_a_line_in_the_audit_log(
    open_harness: OpenHarness, tmp_path: Path
) -> None:
    harness = open_harness(KEPT)
    folder = VirtualTimeBlobs(tmp_path / "files", harness.clock)
    keeper = FileRetention(harness.engine, folder, page=2)
    harness.workflow("brief", retention_seconds=2_000)
    job = harness.submit_job("brief")
    lease = harness.claim_one()
    folder.put(key_of(lease))
    harness.do(Complete(lease=lease, files=(PICTURE,)))
    files = [upload_file(harness, folder) for _ in range(4)]
    [made] = [File(*found) for found in harness.reads.fetch("files_of", id=job)]
    harness.advance(1_999)
    assert (keeper.run_once(harness.clock.now()), len(folder.all())) == (0, 5)
    harness.advance(1)
    assert (keeper.run_once(harness.clock.now()), folder.all()) == (5, set())
    assert {row(harness, file).status for file in (*files, made)} == {"deleted"}
    assert keeper.run_once(harness.clock.now()) == 0
    deleted = [msgspec.json.decode(line.data or "") for line in audit(harness)]
    assert (sum(one["files"] for one in deleted), sum(one["bytes"] for one in deleted)) == (5, 5 * len(BODY))


def test_without_a_word_about_it_files_are_kept_for_ever(harness: EngineHarness, folder: VirtualTimeBlobs) -> None:
    file = upload_file(harness, folder)
    harness.advance(10 * 366 * 86_400)
    assert FileRetention(harness.engine, folder).run_once(harness.clock.now()) == 0
    assert folder.all() == {object_keys.file_key(file)}


def test_an_upload_whose_bytes_never_came_or_were_never_finished_goes(
    harness: EngineHarness, folder: VirtualTimeBlobs
) -> None:
    never, unfinished = create_upload(harness), create_upload(harness)
    folder.put(object_keys.file_key(unfinished))
    keeper = FileRetention(harness.engine, folder)
    harness.advance(Limits().upload_timeout_seconds - 1)
    assert keeper.run_once(harness.clock.now()) == 0
    harness.advance(1)
    assert (keeper.run_once(harness.clock.now()), folder.all()) == (2, set())
    assert harness.expect_refusal(FinishUpload(tenant=TENANT, file_id=never.id)).code == "file_not_found"


def test_a_file_that_an_open_job_needs_outlives_its_time(open_harness: OpenHarness, tmp_path: Path) -> None:
    harness = open_harness(KEPT)
    folder = VirtualTimeBlobs(tmp_path / "files", harness.clock)
    keeper = FileRetention(harness.engine, folder)
    file = upload_file(harness, folder)
    harness.submit_job(input={"picture": {"$file": file.id}})
    lease = harness.claim_one(lease_seconds=50_000)
    harness.advance(2_000)
    assert (keeper.run_once(harness.clock.now()), len(folder.all())) == (0, 1)
    harness.complete(lease)
    harness.advance(3_600)
    assert (keeper.run_once(harness.clock.now()), folder.all()) == (1, set())


def test_a_storage_that_is_away_loses_nothing_that_the_collector_does_not_find(
    open_harness: OpenHarness, tmp_path: Path
) -> None:
    """The rows are committed before the bytes go: as after a crash in between."""
    harness = open_harness(KEPT)
    folder = VirtualTimeBlobs(tmp_path / "files", harness.clock)
    for _ in range(3):
        upload_file(harness, folder)
    harness.advance(2_000)
    folder.unavailable = True
    with pytest.raises(StorageUnavailableError):
        FileRetention(harness.engine, folder, page=1).run_once(harness.clock.now())
    folder.unavailable = False
    assert (FileRetention(harness.engine, folder).run_once(harness.clock.now()), len(folder.all())) == (0, 3)
    run_full_pass(OrphanCollector(harness.reads, folder, GRACE_SECONDS), harness.clock.now())
    assert folder.all() == set()


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_cut_commit_leaves_is_done_once_and_its_bytes_are_found(
    open_harness: OpenHarness, tmp_path: Path, when: Any
) -> None:
    harness = open_harness(KEPT)
    folder = VirtualTimeBlobs(tmp_path / "files", harness.clock)
    with faulty_engine(harness.database, fail_once(when)) as engine:
        file = engine.execute(upload_command())
    assert [row(harness, file).id, row(harness, file).status] == [file.id, "uploading"]
    folder.put(object_keys.file_key(file))
    harness.do(FinishUpload(tenant=TENANT, file_id=file.id))
    harness.advance(2_000)
    with faulty_engine(harness.database, fail_once(when)) as engine:
        FileRetention(engine, folder).run_once(harness.clock.now())
    assert row(harness, file).status == "deleted"
    assert [line.data for line in audit(harness)] == [f'{{"bytes":{len(BODY)},"files":1}}']
    run_full_pass(OrphanCollector(harness.reads, folder, GRACE_SECONDS), harness.clock.now())
    assert folder.all() == set()


# -- orphans


def test_what_a_running_lease_has_put_is_never_taken_however_old_it_is(
    harness: EngineHarness, folder: VirtualTimeBlobs, orphans: OrphanCollector
) -> None:
    harness.submit_job()
    lease = harness.claim_one(lease_seconds=50 * GRACE_SECONDS)
    folder.put(key_of(lease))
    folder.put(key_of(lease, None))
    harness.advance(40 * GRACE_SECONDS)
    run_full_pass(orphans, harness.clock.now())
    assert folder.all() == {key_of(lease), key_of(lease, None)}
    harness.do(Complete(lease=lease, files=(PICTURE,)))
    run_full_pass(orphans, harness.clock.now())
    assert folder.all() == {key_of(lease)}, "the preview goes with its try"


def test_a_late_put_of_a_fenced_worker_goes_and_the_result_stays(
    harness: EngineHarness, folder: VirtualTimeBlobs, orphans: OrphanCollector
) -> None:
    # R236
    harness.submit_job()
    stale = harness.claim_one(lease_seconds=1)
    harness.advance(2)
    harness.advance(60)
    fresh = harness.claim_one(worker="w2")
    for lease in (stale, fresh):
        folder.put(key_of(lease))
    folder.put(key_of(fresh, 2))
    harness.do(Complete(lease=fresh, files=(PICTURE,)))
    harness.advance(GRACE_SECONDS - 1)
    run_full_pass(orphans, harness.clock.now())
    assert len(folder.all()) == 3
    harness.advance(1)
    run_full_pass(orphans, harness.clock.now())
    assert folder.all() == {key_of(fresh)}, "neither the stale try's nor what the result does not name"


def test_what_is_put_after_a_deletion_goes(
    harness: EngineHarness, folder: VirtualTimeBlobs, orphans: OrphanCollector
) -> None:
    # R367
    upload = upload_file(harness, folder)
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.delete(job)
    harness.do(DeleteFiles(tenant=TENANT, file_ids=(upload.id,)))
    folder.delete_prefix(object_keys.job_prefix(TENANT, job))
    folder.delete([object_keys.file_key(upload)])
    folder.put(key_of(lease))
    folder.put(object_keys.file_key(upload))
    harness.advance(GRACE_SECONDS)
    run_full_pass(orphans, harness.clock.now())
    assert folder.all() == set()


def test_objects_of_no_row_go_unless_they_are_older_than_the_database(
    harness: EngineHarness, folder: VirtualTimeBlobs, orphans: OrphanCollector
) -> None:
    nobody = "00000000-0000-7000-8000-000000000000"
    now = [object_keys.upload_key(TENANT, nobody), object_keys.output_key(TENANT, nobody, nobody, 1, 1)]
    before = [object_keys.upload_key("t2", nobody), object_keys.preview_key("t2", nobody, nobody, 1)]
    for key in (*now, *before):
        folder.put(key)
    old = harness.clock.now() - SECOND
    for key in before:
        os.utime(folder.path(key), ns=(old * 1_000,) * 2)
    folder.put("not/ours")
    harness.advance(GRACE_SECONDS)
    assert orphans.scan_page(harness.clock.now()).after is not None
    looked = OrphanCollector(harness.reads, folder, GRACE_SECONDS).scan_page(harness.clock.now())
    assert looked.counts == StorageCounts(objects=5, unknown=2, foreign=1, orphans=2, bytes=2 * len(BODY))
    run_full_pass(orphans, harness.clock.now())
    assert folder.all() == {*before, "not/ours"}


def test_a_pass_goes_page_by_page_and_then_begins_again(
    harness: EngineHarness, folder: VirtualTimeBlobs, orphans: OrphanCollector
) -> None:
    files = [upload_file(harness, folder) for _ in range(7)]
    assert run_full_pass(orphans, harness.clock.now()) == 3
    late = create_upload(harness)
    folder.put(object_keys.file_key(late))
    harness.do(DeleteFiles(tenant=TENANT, file_ids=(late.id,)))
    harness.advance(GRACE_SECONDS)
    assert run_full_pass(orphans, harness.clock.now()) == 3
    assert folder.all() == {object_keys.file_key(file) for file in files}


# -- proof


def test_a_ready_file_whose_bytes_are_gone_or_others_is_a_violation(
    harness: EngineHarness, folder: VirtualTimeBlobs
) -> None:
    files = [upload_file(harness, folder) for _ in range(5)]
    create_upload(harness)
    assert verify_files(harness.reads, folder, page=2) == []
    folder.delete([object_keys.file_key(files[0])])
    folder.put(object_keys.file_key(files[1]), BODY + b"!", overwrite=True)
    folder.put(object_keys.file_key(files[2]), BODY[:-1] + b"!", overwrite=True)
    [violation] = verify_files(harness.reads, folder, page=2)
    assert (violation.name, violation.count) == ("O8", 3)
    assert {(one["file"], one["stored_bytes"]) for one in violation.rows} == {
        (files[0].id, None), (files[1].id, len(BODY) + 1), (files[2].id, len(BODY)),
    }  # fmt: skip
    assert verify_files(harness.reads, folder, newest=2, page=1) == []
    assert verify_files(harness.reads, folder, newest=3)[0].count == 1
