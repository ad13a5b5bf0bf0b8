"""Files of an output: stored with it or not at all, and deleted with their job."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.model.commands import (
    AddTasks,
    Complete,
    CreateUpload,
    Delete,
    DeleteFiles,
    FinishUpload,
    Lease,
    OutputFile,
    Retry,
)
from callsheet.core.model.errors import Refusal
from callsheet.core.model.ids import child_id
from callsheet.core.model.rows import File
from callsheet.core.policy.engine_limits import Limits
from callsheet.settings import Settings
from tests.support.databases.faulty_database import fail_once, faulty_engine
from tests.support.engine.engine_harness import TENANT, USER, EngineHarness, OpenHarness, stage

PICTURE = OutputFile(1, "picture.png", "image/png", 48_211, "a" * 64)
SOUND = OutputFile(2, "tone.wav", "audio/wav", 0, "b" * 64)
ONLY_SOUND = replace(SOUND, no=1)


def complete(harness: EngineHarness, lease: Lease, *files: OutputFile, output: Any = None) -> Any:
    return harness.do(Complete(lease=lease, output=output, files=files))


def files(harness: EngineHarness, job_id: str) -> list[File]:
    return [File(*row) for row in harness.reads.fetch("files_of", id=job_id)]


def test_files_are_stored_with_the_task_and_attempt_that_completed(harness: EngineHarness) -> None:
    job = harness.submit_job()
    harness.requeue(harness.claim_one())
    lease = harness.claim_one()
    complete(harness, lease, PICTURE, SOUND)
    attempt_id = child_id(lease.task_id, 2)
    assert files(harness, job) == [
        File(
            child_id(attempt_id, file.no), TENANT, USER, job, lease.task_id, 2, file.no, file.name, file.media_type,
            file.bytes, file.sha256, harness.clock.now(), "ready", None,
        )
        for file in (PICTURE, SOUND)
    ]  # fmt: skip


def test_an_output_without_files_stores_none(harness: EngineHarness) -> None:
    job = harness.submit_job()
    complete(harness, harness.claim_one())
    assert (harness.status(job), files(harness, job)) == ("completed", [])


def test_every_task_of_a_stage_has_its_own_files(harness: EngineHarness) -> None:
    harness.workflow("film", stages=[stage("draw", tasks=3)])
    job = harness.submit_job("film")
    for leased in harness.claim(count=3):
        complete(harness, leased.lease, PICTURE, SOUND)
    stored = files(harness, job)
    assert len({file.id for file in stored}) == 6
    assert sorted(file.no for file in stored) == [1, 1, 1, 2, 2, 2]


def test_the_numbers_of_files_can_have_gaps(harness: EngineHarness) -> None:
    job = harness.submit_job()
    complete(harness, harness.claim_one(), PICTURE, replace(SOUND, no=7))
    assert [file.no for file in files(harness, job)] == [1, 7]
    assert not harness.find_violations()


INVALID_FILES: list[tuple[str, tuple[OutputFile, ...], str]] = [
    ("number zero", (replace(PICTURE, no=0),), "invalid_file"),
    ("number above the limit", (PICTURE, replace(SOUND, no=65)), "invalid_file"),
    ("duplicate number", (PICTURE, replace(SOUND, no=1)), "invalid_file"),
    ("out of order", (SOUND, PICTURE), "invalid_file"),
    ("no name", (replace(PICTURE, name=""),), "invalid_file"),
    ("name with a line break", (replace(PICTURE, name="a\r\nb"),), "invalid_file"),
    ("name that is a path", (replace(PICTURE, name="../a"),), "invalid_file"),
    ("long name", (replace(PICTURE, name="x" * 129),), "invalid_file"),
    ("no media type", (replace(PICTURE, media_type=""),), "invalid_file"),
    ("media type with a line break", (replace(PICTURE, media_type="image/png\r\nx: y"),), "invalid_file"),
    ("no digest", (replace(PICTURE, sha256=""),), "invalid_file"),
    ("digest with a line break", (replace(PICTURE, sha256="a" * 62 + "\r\n"),), "invalid_file"),
    ("uppercase digest", (replace(PICTURE, sha256="A" * 64),), "invalid_file"),
    ("negative size", (replace(PICTURE, bytes=-1),), "out_of_range"),
    ("too large", (replace(PICTURE, bytes=Limits().file_bytes_max + 1),), "out_of_range"),
    ("too many files", tuple(replace(PICTURE, no=n) for n in range(1, 66)), "out_of_range"),
]


@pytest.mark.parametrize(("outputs", "code"), [case[1:] for case in INVALID_FILES], ids=[c[0] for c in INVALID_FILES])
def test_invalid_files_are_refused_and_nothing_is_stored(
    harness: EngineHarness, outputs: tuple[OutputFile, ...], code: str
) -> None:
    job = harness.submit_job()
    lease = harness.claim_one()
    before = harness.snapshot()
    assert harness.expect_refusal(Complete(lease=lease, files=outputs)).code == code
    assert harness.snapshot() == before
    complete(harness, lease, PICTURE)
    assert (harness.status(job), len(files(harness, job))) == ("completed", 1)


def test_the_limits_of_files_are_settings(open_harness: OpenHarness) -> None:
    harness = open_harness(Settings(limits=Limits(files_per_task_max=1, file_bytes_max=10)))
    harness.submit_job()
    lease = harness.claim_one()
    small = replace(PICTURE, bytes=10)
    assert harness.expect_refusal(Complete(lease=lease, files=(small, replace(SOUND, bytes=1)))).code == "out_of_range"
    assert harness.expect_refusal(Complete(lease=lease, files=(replace(small, bytes=11),))).code == "out_of_range"
    assert complete(harness, lease, small).status == "completed"


def test_a_stale_lease_stores_no_files(harness: EngineHarness) -> None:
    """The first worker reports after its task was reassigned to the second."""
    job = harness.submit_job()
    stale = harness.claim_one(lease_seconds=1)
    harness.advance(2)
    harness.advance(60)
    fresh = harness.claim_one(worker="w2")
    before = harness.snapshot()
    assert harness.expect_refusal(Complete(lease=stale, files=(PICTURE,))).code == "lease_lost"
    assert harness.snapshot() == before
    complete(harness, fresh, ONLY_SOUND)
    assert harness.expect_refusal(Complete(lease=stale, files=(PICTURE,))).code == "lease_lost"
    assert [(file.name, file.attempt) for file in files(harness, job)] == [("tone.wav", 2)]


def test_a_repeated_completion_stores_its_files_once(harness: EngineHarness) -> None:
    job = harness.submit_job()
    lease = harness.claim_one()
    complete(harness, lease, PICTURE, output=1)
    before = harness.snapshot()
    assert complete(harness, lease, PICTURE, output=1).replay
    assert harness.snapshot() == before
    assert len(files(harness, job)) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_completion_whose_commit_failed_stores_its_files_once(harness: EngineHarness, when: Any) -> None:
    job = harness.submit_job()
    lease = harness.claim_one()
    with faulty_engine(harness.database, fail_once(when)) as engine:
        engine.execute(Complete(lease=lease, files=(PICTURE, SOUND)))
    assert [file.no for file in files(harness, job)] == [1, 2]


def test_a_canceled_job_stores_no_files(harness: EngineHarness) -> None:
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.cancel(job, grace_seconds=0)
    assert complete(harness, lease, PICTURE).skipped
    assert files(harness, job) == []


def test_deleting_a_job_deletes_its_files_and_no_others(harness: EngineHarness) -> None:
    jobs = [harness.submit_job(), harness.submit_job()]
    for leased in harness.claim(count=2):
        complete(harness, leased.lease, PICTURE, SOUND)
    deleted = files(harness, jobs[0])
    harness.delete(jobs[0])
    assert (files(harness, jobs[0]), len(files(harness, jobs[1]))) == ([], 2)
    assert list(harness.reads.fetch("file_of_tenant", id=deleted[0].id, tenant=TENANT)) == []


def test_a_retry_keeps_the_files_of_completed_tasks(harness: EngineHarness) -> None:
    harness.workflow("film", stages=[stage("draw", tasks=2)])
    job = harness.submit_job("film")
    first, second = harness.claim(count=2)
    complete(harness, first.lease, PICTURE)
    harness.fail(second.lease)
    harness.retry(job)
    complete(harness, harness.claim_one(), PICTURE)
    assert (harness.status(job), len(files(harness, job))) == ("completed", 2)


def test_a_file_is_not_found_by_another_tenant(harness: EngineHarness) -> None:
    job = harness.submit_job()
    complete(harness, harness.claim_one(), PICTURE)
    (file,) = files(harness, job)
    assert list(harness.reads.fetch("file_of_tenant", id=file.id, tenant="other")) == []
    assert len(harness.reads.fetch("file_of_tenant", id=file.id, tenant=TENANT)) == 1


# -- files that inputs refer to


def upload_file(harness: EngineHarness) -> str:
    command = CreateUpload(tenant=TENANT, user=USER, name="a.png", media_type="image/png", bytes=1, sha256="a" * 64)
    file: File = harness.do(command)
    harness.do(FinishUpload(tenant=TENANT, file_id=file.id))
    return file.id


def test_each_task_of_a_job_can_use_its_own_file(harness: EngineHarness) -> None:
    harness.workflow("open", price=0, stages=[], inline=True)
    files = [upload_file(harness) for _ in range(100)]
    inputs = [{"picture": {"$file": key}} for key in files]
    job = harness.submit_job(
        "open", input=files[:1], stages=[stage(f"s{n}", "draw", inputs=inputs[n::10]) for n in range(10)]
    )
    more = harness.submit_job("open", stages=[stage()])
    harness.do(AddTasks(tenant=TENANT, job_id=more, stage_id=harness.stages(more)[0].id, inputs=inputs))
    for used in (job, more):
        found = harness.reads.fetch("job_files", keys=[(used, key) for key in files])
        assert len(found) == 100


def test_a_retry_as_a_new_job_needs_the_files_of_the_old_one(harness: EngineHarness) -> None:
    files = [upload_file(harness) for _ in range(40)]
    job = harness.submit_job(input=[{"$file": key} for key in files])
    harness.fail(harness.claim_one())
    retried = harness.retry(job, retry_as="new_job").job_id
    assert len(harness.reads.fetch("job_files", keys=[(retried, key) for key in files])) == 40
    harness.cancel(retried, grace_seconds=0)
    harness.do(DeleteFiles(tenant=TENANT, file_ids=(files[7],)))
    assert (
        harness.expect_refusal(Retry(tenant=TENANT, job_id=job, retry_as="new_job", actor="admin")).code
        == "file_not_found"
    )


def test_a_file_can_be_deleted_after_the_job_that_used_it(harness: EngineHarness) -> None:
    file = upload_file(harness)
    job = harness.submit_job(input={"$file": file})
    assert harness.expect_refusal(DeleteFiles(tenant=TENANT, file_ids=(file,))).code == "file_in_use"
    harness.delete(job)
    assert not harness.reads.fetch("job_files", keys=[(job, file)])
    assert len(harness.do(DeleteFiles(tenant=TENANT, file_ids=(file,))).files) == 1


@pytest.mark.parametrize("end", ["cancel", "delete", "deadline"])
def test_a_job_with_the_maximum_number_of_stages_can_be_ended(harness: EngineHarness, end: str) -> None:
    """Missing rows are loaded in as many rounds as the decision needs."""
    harness.workflow("open", price=0, stages=[], inline=True, deadline_seconds=100)
    job = harness.submit_job("open", stages=[stage(f"s{n}", "draw") for n in range(Limits().stages_per_job_max)])
    if end == "cancel":
        harness.cancel(job, grace_seconds=0)
    elif end == "delete":
        assert harness.delete(job).status == "canceled"
        return
    else:
        harness.advance(100)
    assert harness.status(job) == {"cancel": "canceled", "deadline": "expired"}[end]


@pytest.mark.parametrize("first", ["submit", "delete"])
def test_a_file_is_either_used_or_deleted(harness: EngineHarness, first: str) -> None:
    file = upload_file(harness)
    commands = [harness.submission(input={"$file": file}), DeleteFiles(tenant=TENANT, file_ids=(file,))]
    results = harness.engine.execute_many(commands if first == "submit" else commands[::-1])
    assert [isinstance(result, Refusal) for result in results] == [False, True]


def test_a_retry_is_refused_if_a_file_of_the_job_was_deleted(harness: EngineHarness) -> None:
    """O7: the retry fails, not the worker later."""
    file = upload_file(harness)
    job = harness.submit_job(input={"$file": file})
    harness.fail(harness.claim_one())
    assert harness.retry(job).status == "queued"
    assert harness.expect_refusal(DeleteFiles(tenant=TENANT, file_ids=(file,))).code == "file_in_use"
    harness.fail(harness.claim_one())
    harness.do(DeleteFiles(tenant=TENANT, file_ids=(file,)))
    assert harness.expect_refusal(Retry(tenant=TENANT, job_id=job, actor="admin")).code == "file_not_found"


def test_a_retry_is_refused_if_an_output_of_an_earlier_stage_was_deleted(harness: EngineHarness) -> None:
    harness.workflow("film", stages=[stage("draw"), stage("cut")])
    job = harness.submit_job("film")
    complete(harness, harness.claim_one(), PICTURE)
    harness.fail(harness.claim_one("cut"))
    (output,) = files(harness, job)
    harness.do(DeleteFiles(tenant=TENANT, file_ids=(output.id,)))
    balance = harness.balance()
    assert harness.expect_refusal(Retry(tenant=TENANT, job_id=job)).code == "file_deleted"
    assert (harness.status(job), harness.balance()) == ("failed", balance)
    assert harness.retry(job, retry_as="new_job").status == "queued"


@pytest.mark.parametrize("together", [False, True])
def test_a_job_whose_file_an_open_job_uses_cannot_be_deleted(harness: EngineHarness, together: bool) -> None:
    """O7: deleting a job deletes its files, so a job whose file is in use stays."""
    producer = harness.submit_job()
    complete(harness, harness.claim_one(), PICTURE)
    submit = harness.submission(input={"$file": files(harness, producer)[0].id})
    delete = Delete(tenant=TENANT, job_id=producer)
    if together:  # in one batch the order of the two is open
        submitted, deleted = harness.engine.execute_many([submit, delete])
        assert isinstance(deleted, Refusal) != isinstance(submitted, Refusal)
        refused = deleted if isinstance(deleted, Refusal) else submitted
        assert refused.code == ("file_in_use" if refused is deleted else "file_not_found")
    else:
        consumer = harness.do(submit).job_id
        assert harness.expect_refusal(delete).code == "file_in_use"
        harness.cancel(consumer, grace_seconds=0)
        assert harness.delete(producer).status == "completed"
        assert harness.expect_refusal(submit).code == "file_not_found"
