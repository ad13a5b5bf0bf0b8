"""Cleanup of storage: expired files and orphans are deleted in time, files in use never are."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callsheet.blobs import object_keys
from callsheet.blobs.base import StorageUnavailableError
from callsheet.core.model.clock import SECOND
from callsheet.core.model.commands import Complete, DeleteFiles, FinishUpload
from callsheet.core.model.rows import Audit, File
from callsheet.core.policy.engine_limits import Limits
from callsheet.engine.loops.file_retention import FileRetention
from callsheet.engine.loops.orphan_files import OrphanCollector, StorageCounts
from callsheet.engine.verify_stored_files import verify_files
from callsheet.settings import Settings
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

SHORT_RETENTION = Settings(
    limits=Limits(upload_timeout_seconds=500, upload_retention_seconds=2_000), database_retry_seconds=5
)


@pytest.fixture
def blobs(harness: EngineHarness, tmp_path: Path) -> VirtualTimeBlobs:
    return VirtualTimeBlobs(tmp_path / "files", harness.clock)


@pytest.fixture
def orphans(harness: EngineHarness, blobs: VirtualTimeBlobs) -> OrphanCollector:
    return OrphanCollector(harness.reads, blobs, GRACE_SECONDS, page=3)


def row(harness: EngineHarness, file: File) -> File:
    return File(*harness.reads.fetch("files_by_id", ids=[file.id])[0])


def audit(harness: EngineHarness) -> list[Audit]:
    """Return the audit entries of files that the retention deleted."""
    entries = [Audit(*found) for found in harness.reads.fetch("audit_of_tenant", tenant=TENANT, before="~", count=50)]
    return [entry for entry in entries if (entry.actor, entry.action) == ("retention", "files.delete")]


# -- retention


def test_an_expired_file_is_deleted_with_its_bytes_and_an_audit_entry(
    open_harness: OpenHarness, tmp_path: Path
) -> None:
    harness = open_harness(SHORT_RETENTION)
    blobs = VirtualTimeBlobs(tmp_path / "files", harness.clock)
    retention = FileRetention(harness.engine, blobs, page=2)
    harness.workflow("brief", retention_seconds=2_000)
    job = harness.submit_job("brief")
    lease = harness.claim_one()
    blobs.put(key_of(lease))
    harness.do(Complete(lease=lease, files=(PICTURE,)))
    files = [upload_file(harness, blobs) for _ in range(4)]
    [output] = [File(*found) for found in harness.reads.fetch("files_of", id=job)]
    harness.advance(1_999)
    assert (retention.run_once(harness.clock.now()), len(blobs.all())) == (0, 5)
    harness.advance(1)
    assert (retention.run_once(harness.clock.now()), blobs.all()) == (5, set())
    assert {row(harness, file).status for file in (*files, output)} == {"deleted"}
    assert retention.run_once(harness.clock.now()) == 0
    deleted = [msgspec.json.decode(entry.data or "") for entry in audit(harness)]
    assert (sum(one["files"] for one in deleted), sum(one["bytes"] for one in deleted)) == (5, 5 * len(BODY))


def test_without_a_retention_setting_files_are_kept_forever(harness: EngineHarness, blobs: VirtualTimeBlobs) -> None:
    file = upload_file(harness, blobs)
    harness.advance(10 * 366 * 86_400)
    assert FileRetention(harness.engine, blobs).run_once(harness.clock.now()) == 0
    assert blobs.all() == {object_keys.file_key(file)}


def test_an_unfinished_upload_is_deleted_after_its_timeout(harness: EngineHarness, blobs: VirtualTimeBlobs) -> None:
    empty, unfinished = create_upload(harness), create_upload(harness)
    blobs.put(object_keys.file_key(unfinished))
    retention = FileRetention(harness.engine, blobs)
    harness.advance(Limits().upload_timeout_seconds - 1)
    assert retention.run_once(harness.clock.now()) == 0
    harness.advance(1)
    assert (retention.run_once(harness.clock.now()), blobs.all()) == (2, set())
    assert harness.expect_refusal(FinishUpload(tenant=TENANT, file_id=empty.id)).code == "file_not_found"


def test_a_file_of_an_open_job_is_kept_past_its_retention(open_harness: OpenHarness, tmp_path: Path) -> None:
    harness = open_harness(SHORT_RETENTION)
    blobs = VirtualTimeBlobs(tmp_path / "files", harness.clock)
    retention = FileRetention(harness.engine, blobs)
    file = upload_file(harness, blobs)
    harness.submit_job(input={"picture": {"$file": file.id}})
    lease = harness.claim_one(lease_seconds=50_000)
    harness.advance(2_000)
    assert (retention.run_once(harness.clock.now()), len(blobs.all())) == (0, 1)
    harness.complete(lease)
    harness.advance(3_600)
    assert (retention.run_once(harness.clock.now()), blobs.all()) == (1, set())


def test_bytes_that_could_not_be_deleted_are_deleted_as_orphans_later(
    open_harness: OpenHarness, tmp_path: Path
) -> None:
    """The rows are committed before the bytes are deleted, so a crash in between leaves the same state."""
    harness = open_harness(SHORT_RETENTION)
    blobs = VirtualTimeBlobs(tmp_path / "files", harness.clock)
    for _ in range(3):
        upload_file(harness, blobs)
    harness.advance(2_000)
    blobs.unavailable = True
    with pytest.raises(StorageUnavailableError):
        FileRetention(harness.engine, blobs, page=1).run_once(harness.clock.now())
    blobs.unavailable = False
    assert (FileRetention(harness.engine, blobs).run_once(harness.clock.now()), len(blobs.all())) == (0, 3)
    run_full_pass(OrphanCollector(harness.reads, blobs, GRACE_SECONDS), harness.clock.now())
    assert blobs.all() == set()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_deletion_whose_commit_failed_happens_once_and_its_bytes_are_deleted(
    open_harness: OpenHarness, tmp_path: Path, when: Any
) -> None:
    harness = open_harness(SHORT_RETENTION)
    blobs = VirtualTimeBlobs(tmp_path / "files", harness.clock)
    with faulty_engine(harness.database, fail_once(when)) as engine:
        file = engine.execute(upload_command())
    assert [row(harness, file).id, row(harness, file).status] == [file.id, "uploading"]
    blobs.put(object_keys.file_key(file))
    harness.do(FinishUpload(tenant=TENANT, file_id=file.id))
    harness.advance(2_000)
    with faulty_engine(harness.database, fail_once(when)) as engine:
        FileRetention(engine, blobs).run_once(harness.clock.now())
    assert row(harness, file).status == "deleted"
    assert [entry.data for entry in audit(harness)] == [f'{{"bytes":{len(BODY)},"files":1}}']
    run_full_pass(OrphanCollector(harness.reads, blobs, GRACE_SECONDS), harness.clock.now())
    assert blobs.all() == set()


# -- orphans


def test_uploads_of_a_running_lease_are_never_deleted(
    harness: EngineHarness, blobs: VirtualTimeBlobs, orphans: OrphanCollector
) -> None:
    harness.submit_job()
    lease = harness.claim_one(lease_seconds=50 * GRACE_SECONDS)
    blobs.put(key_of(lease))
    blobs.put(key_of(lease, None))
    harness.advance(40 * GRACE_SECONDS)
    run_full_pass(orphans, harness.clock.now())
    assert blobs.all() == {key_of(lease), key_of(lease, None)}
    harness.do(Complete(lease=lease, files=(PICTURE,)))
    run_full_pass(orphans, harness.clock.now())
    assert blobs.all() == {key_of(lease)}, "the preview is deleted after its attempt"


def test_a_late_upload_of_an_expired_lease_is_deleted_and_the_output_stays(
    harness: EngineHarness, blobs: VirtualTimeBlobs, orphans: OrphanCollector
) -> None:
    # R236
    harness.submit_job()
    stale = harness.claim_one(lease_seconds=1)
    harness.advance(2)
    harness.advance(60)
    fresh = harness.claim_one(worker="w2")
    for lease in (stale, fresh):
        blobs.put(key_of(lease))
    blobs.put(key_of(fresh, 2))
    harness.do(Complete(lease=fresh, files=(PICTURE,)))
    harness.advance(GRACE_SECONDS - 1)
    run_full_pass(orphans, harness.clock.now())
    assert len(blobs.all()) == 3
    harness.advance(1)
    run_full_pass(orphans, harness.clock.now())
    assert blobs.all() == {key_of(fresh)}, "only the file of the accepted output stays"


def test_bytes_uploaded_after_a_deletion_are_deleted(
    harness: EngineHarness, blobs: VirtualTimeBlobs, orphans: OrphanCollector
) -> None:
    # R367
    upload = upload_file(harness, blobs)
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.delete(job)
    harness.do(DeleteFiles(tenant=TENANT, file_ids=(upload.id,)))
    blobs.delete_prefix(object_keys.job_prefix(TENANT, job))
    blobs.delete([object_keys.file_key(upload)])
    blobs.put(key_of(lease))
    blobs.put(object_keys.file_key(upload))
    harness.advance(GRACE_SECONDS)
    run_full_pass(orphans, harness.clock.now())
    assert blobs.all() == set()


def test_objects_without_a_row_are_deleted_unless_they_are_older_than_the_database(
    harness: EngineHarness, blobs: VirtualTimeBlobs, orphans: OrphanCollector
) -> None:
    unknown = "00000000-0000-7000-8000-000000000000"
    newer = [object_keys.upload_key(TENANT, unknown), object_keys.output_key(TENANT, unknown, unknown, 1, 1)]
    older = [object_keys.upload_key("t2", unknown), object_keys.preview_key("t2", unknown, unknown, 1)]
    for key in (*newer, *older):
        blobs.put(key)
    written_at = harness.clock.now() - SECOND
    for key in older:
        os.utime(blobs.path(key), ns=(written_at * 1_000,) * 2)
    blobs.put("not/ours")
    harness.advance(GRACE_SECONDS)
    assert orphans.scan_page(harness.clock.now()).after is not None
    scanned = OrphanCollector(harness.reads, blobs, GRACE_SECONDS).scan_page(harness.clock.now())
    assert scanned.counts == StorageCounts(objects=5, unknown=2, foreign=1, orphans=2, bytes=2 * len(BODY))
    run_full_pass(orphans, harness.clock.now())
    assert blobs.all() == {*older, "not/ours"}


def test_a_pass_reads_page_by_page_and_then_starts_again(
    harness: EngineHarness, blobs: VirtualTimeBlobs, orphans: OrphanCollector
) -> None:
    files = [upload_file(harness, blobs) for _ in range(7)]
    assert run_full_pass(orphans, harness.clock.now()) == 3
    late = create_upload(harness)
    blobs.put(object_keys.file_key(late))
    harness.do(DeleteFiles(tenant=TENANT, file_ids=(late.id,)))
    harness.advance(GRACE_SECONDS)
    assert run_full_pass(orphans, harness.clock.now()) == 3
    assert blobs.all() == {object_keys.file_key(file) for file in files}


# -- verification


def test_a_ready_file_with_missing_or_wrong_bytes_is_a_violation(
    harness: EngineHarness, blobs: VirtualTimeBlobs
) -> None:
    files = [upload_file(harness, blobs) for _ in range(5)]
    create_upload(harness)
    assert verify_files(harness.reads, blobs, page=2) == []
    blobs.delete([object_keys.file_key(files[0])])
    blobs.put(object_keys.file_key(files[1]), BODY + b"!", overwrite=True)
    blobs.put(object_keys.file_key(files[2]), BODY[:-1] + b"!", overwrite=True)
    [violation] = verify_files(harness.reads, blobs, page=2)
    assert (violation.name, violation.count) == ("O8", 3)
    assert {(one["file"], one["stored_bytes"]) for one in violation.rows} == {
        (files[0].id, None), (files[1].id, len(BODY) + 1), (files[2].id, len(BODY)),
    }  # fmt: skip
    assert verify_files(harness.reads, blobs, newest=2, page=1) == []
    assert verify_files(harness.reads, blobs, newest=3)[0].count == 1
