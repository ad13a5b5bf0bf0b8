"""Files of a result: rows that come with it or not at all, and go with their job."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.config import Settings
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
from tests.support.databases.faulty_database import fail_once, faulty_engine
from tests.support.engine.engine_harness import TENANT, USER, EngineHarness, OpenHarness, stage

PICTURE = OutputFile(1, "picture.png", "image/png", 48_211, "a" * 64)
SOUND = OutputFile(2, "tone.wav", "audio/wav", 0, "b" * 64)


def complete(harness: EngineHarness, lease: Lease, *files: OutputFile, output: Any = None) -> Any:
    return harness.do(Complete(lease=lease, output=output, files=files))


def files(harness: EngineHarness, job_id: str) -> list[File]:
    return [File(*row) for row in harness.reads.fetch("files_of", id=job_id)]


def test_files_are_kept_with_the_result_under_its_task_and_epoch(harness: EngineHarness) -> None:
    job = harness.submit_job()
    harness.requeue(harness.claim_one())
    lease = harness.claim_one()
    complete(harness, lease, PICTURE, SOUND)
    epoch = child_id(lease.task_id, 2)
    assert files(harness, job) == [
        File(
            child_id(epoch, made.no), TENANT, USER, job, lease.task_id, 2, made.no, made.name, made.media_type,
            made.bytes,
            made.sha256, harness.clock.now(), "ready", None,
        )
        for made in (PICTURE, SOUND)
    ]  # fmt: skip


def test_a_result_without_files_keeps_none(harness: EngineHarness) -> None:
    job = harness.submit_job()
    complete(harness, harness.claim_one())
    assert (harness.status(job), files(harness, job)) == ("completed", [])


def test_every_task_of_a_stage_has_files_of_its_own(harness: EngineHarness) -> None:
    harness.workflow("film", stages=[stage("draw", tasks=3)])
    job = harness.submit_job("film")
    for leased in harness.claim(count=3):
        complete(harness, leased.lease, PICTURE, SOUND)
    kept = files(harness, job)
    assert len({file.id for file in kept}) == 6
    assert sorted(file.no for file in kept) == [1, 1, 1, 2, 2, 2]


def test_a_file_that_could_not_be_put_leaves_a_gap(harness: EngineHarness) -> None:
    job = harness.submit_job()
    complete(harness, harness.claim_one(), PICTURE, replace(SOUND, no=7))
    assert [file.no for file in files(harness, job)] == [1, 7]
    assert not harness.broken()


BAD: list[tuple[str, tuple[OutputFile, ...], str]] = [
    ("not from one", (replace(PICTURE, no=0),), "invalid_file"),
    ("beyond the last", (PICTURE, replace(SOUND, no=65)), "invalid_file"),
    ("one number twice", (PICTURE, replace(SOUND, no=1)), "invalid_file"),
    ("out of order", (SOUND, PICTURE), "invalid_file"),
    ("no name", (replace(PICTURE, name=""),), "invalid_file"),
    ("a name with a line break", (replace(PICTURE, name="a\r\nb"),), "invalid_file"),
    ("a name that is a path", (replace(PICTURE, name="../a"),), "invalid_file"),
    ("a long name", (replace(PICTURE, name="x" * 129),), "invalid_file"),
    ("no type", (replace(PICTURE, media_type=""),), "invalid_file"),
    ("a type with a line break", (replace(PICTURE, media_type="image/png\r\nx: y"),), "invalid_file"),
    ("no digest", (replace(PICTURE, sha256=""),), "invalid_file"),
    ("a digest with a line break", (replace(PICTURE, sha256="a" * 62 + "\r\n"),), "invalid_file"),
    ("a digest in capitals", (replace(PICTURE, sha256="A" * 64),), "invalid_file"),
    ("less than nothing", (replace(PICTURE, bytes=-1),), "out_of_range"),
    ("too large", (replace(PICTURE, bytes=Limits().file_bytes_max + 1),), "out_of_range"),
    ("too many", tuple(replace(PICTURE, no=n) for n in range(1, 66)), "out_of_range"),
]


@pytest.mark.parametrize(("made", "code"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_files_that_cannot_be_are_refused_and_nothing_is_kept(
    harness: EngineHarness, made: tuple[OutputFile, ...], code: str
) -> None:
    job = harness.submit_job()
    lease = harness.claim_one()
    before = harness.snapshot()
    assert harness.expect_refusal(Complete(lease=lease, files=made)).code == code
    assert harness.snapshot() == before
    complete(harness, lease, PICTURE)
    assert (harness.status(job), len(files(harness, job))) == ("completed", 1)


def test_limits_are_the_servers_own(open_harness: OpenHarness) -> None:
    harness = open_harness(Settings(limits=Limits(files_per_task_max=1, file_bytes_max=10)))
    harness.submit_job()
    lease = harness.claim_one()
    small = replace(PICTURE, bytes=10)
    assert harness.expect_refusal(Complete(lease=lease, files=(small, replace(SOUND, bytes=1)))).code == "out_of_range"
    assert harness.expect_refusal(Complete(lease=lease, files=(replace(small, bytes=11),))).code == "out_of_range"
    assert complete(harness, lease, small).status == "completed"


def test_a_stale_lease_keeps_nothing(harness: EngineHarness) -> None:
    """Fenced: the first worker comes back after the second was given the task."""
    job = harness.submit_job()
    stale = harness.claim_one(lease_seconds=1)
    harness.advance(2)
    harness.advance(60)
    fresh = harness.claim_one(worker="w2")
    before = harness.snapshot()
    assert harness.expect_refusal(Complete(lease=stale, files=(PICTURE,))).code == "lease_lost"
    assert harness.snapshot() == before
    complete(harness, fresh, SOUND_ALONE)
    assert harness.expect_refusal(Complete(lease=stale, files=(PICTURE,))).code == "lease_lost"
    assert [(file.name, file.attempt) for file in files(harness, job)] == [("tone.wav", 2)]


SOUND_ALONE = replace(SOUND, no=1)


def test_a_result_that_is_reported_twice_has_its_files_once(harness: EngineHarness) -> None:
    job = harness.submit_job()
    lease = harness.claim_one()
    complete(harness, lease, PICTURE, output=1)
    before = harness.snapshot()
    assert complete(harness, lease, PICTURE, output=1).replay
    assert harness.snapshot() == before
    assert len(files(harness, job)) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_result_whose_commit_was_cut_has_its_files_once(harness: EngineHarness, when: Any) -> None:
    job = harness.submit_job()
    lease = harness.claim_one()
    with faulty_engine(harness.database, fail_once(when)) as engine:
        engine.execute(Complete(lease=lease, files=(PICTURE, SOUND)))
    assert [file.no for file in files(harness, job)] == [1, 2]


def test_a_canceled_job_takes_no_files_any_more(harness: EngineHarness) -> None:
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.cancel(job, grace_seconds=0)
    assert complete(harness, lease, PICTURE).skipped
    assert files(harness, job) == []


def test_a_deleted_jobs_files_go_and_its_neighbours_stay(harness: EngineHarness) -> None:
    jobs = [harness.submit_job(), harness.submit_job()]
    for leased in harness.claim(count=2):
        complete(harness, leased.lease, PICTURE, SOUND)
    gone = files(harness, jobs[0])
    harness.delete(jobs[0])
    assert (files(harness, jobs[0]), len(files(harness, jobs[1]))) == ([], 2)
    assert list(harness.reads.fetch("file_of_tenant", id=gone[0].id, tenant=TENANT)) == []


def test_files_of_completed_tasks_outlive_a_retry(harness: EngineHarness) -> None:
    harness.workflow("film", stages=[stage("draw", tasks=2)])
    job = harness.submit_job("film")
    first, second = harness.claim(count=2)
    complete(harness, first.lease, PICTURE)
    harness.fail(second.lease)
    harness.retry(job)
    complete(harness, harness.claim_one(), PICTURE)
    assert (harness.status(job), len(files(harness, job))) == ("completed", 2)


def test_a_file_is_another_tenants_to_nobody(harness: EngineHarness) -> None:
    job = harness.submit_job()
    complete(harness, harness.claim_one(), PICTURE)
    (file,) = files(harness, job)
    assert list(harness.reads.fetch("file_of_tenant", id=file.id, tenant="other")) == []
    assert len(harness.reads.fetch("file_of_tenant", id=file.id, tenant=TENANT)) == 1


# -- used by inputs


def upload_file(harness: EngineHarness) -> str:
    command = CreateUpload(tenant=TENANT, user=USER, name="a.png", media_type="image/png", bytes=1, sha256="a" * 64)
    file: File = harness.do(command)
    harness.do(FinishUpload(tenant=TENANT, file_id=file.id))
    return file.id


def test_a_job_of_many_tasks_uses_a_file_for_each(harness: EngineHarness) -> None:
    harness.workflow("open", price=0, stages=[], inline=True)
    files = [upload_file(harness) for _ in range(100)]
    inputs = [{"picture": {"$file": key}} for key in files]
    job = harness.submit_job(
        "open", input=files[:1], stages=[stage(f"s{n}", "draw", inputs=inputs[n::10]) for n in range(10)]
    )
    more = harness.submit_job("open", stages=[stage()])
    harness.do(AddTasks(tenant=TENANT, job_id=more, stage_id=harness.stages(more)[0].id, inputs=inputs))
    for used in (job, more):
        found = harness.reads.fetch("uses", keys=[(used, key) for key in files])
        assert len(found) == 100


def test_a_retry_as_a_new_job_uses_the_files_again_and_not_without_them(harness: EngineHarness) -> None:
    files = [upload_file(harness) for _ in range(40)]
    job = harness.submit_job(input=[{"$file": key} for key in files])
    harness.fail(harness.claim_one())
    again = harness.retry(job, retry_as="new_job").job_id
    assert len(harness.reads.fetch("uses", keys=[(again, key) for key in files])) == 40
    harness.cancel(again, grace_seconds=0)
    harness.do(DeleteFiles(tenant=TENANT, file_ids=(files[7],)))
    assert (
        harness.expect_refusal(Retry(tenant=TENANT, job_id=job, retry_as="new_job", actor="admin")).code
        == "file_not_found"
    )


def test_a_deleted_job_needs_no_file_any_more(harness: EngineHarness) -> None:
    file = upload_file(harness)
    job = harness.submit_job(input={"$file": file})
    assert harness.expect_refusal(DeleteFiles(tenant=TENANT, file_ids=(file,))).code == "file_in_use"
    harness.delete(job)
    assert not harness.reads.fetch("uses", keys=[(job, file)])
    assert len(harness.do(DeleteFiles(tenant=TENANT, file_ids=(file,))).files) == 1


@pytest.mark.parametrize("end", ["cancel", "delete", "deadline"])
def test_a_job_of_as_many_stages_as_there_may_be_can_be_ended(harness: EngineHarness, end: str) -> None:
    """What a decision misses is loaded for as long as that helps, however many rounds it takes."""
    harness.workflow("open", price=0, stages=[], inline=True, deadline_seconds=100)
    job = harness.submit_job("open", stages=[stage(f"s{n}", "draw") for n in range(Limits().stages_per_job_max)])
    if end == "cancel":
        harness.cancel(job, grace_seconds=0)
    elif end == "delete":
        harness.delete(job)
        return
    else:
        harness.advance(100)
    assert harness.status(job) == {"cancel": "canceled", "deadline": "expired"}[end]


@pytest.mark.parametrize("first", ["submit", "drop"])
def test_a_file_is_used_or_dropped_and_never_both(harness: EngineHarness, first: str) -> None:
    file = upload_file(harness)
    asks = [harness.submission(input={"$file": file}), DeleteFiles(tenant=TENANT, file_ids=(file,))]
    results = harness.engine.execute_many(asks if first == "submit" else asks[::-1])
    assert [isinstance(result, Refusal) for result in results] == [False, True]


def test_a_job_is_not_opened_again_without_its_files(harness: EngineHarness) -> None:
    """O7: what was deleted after the job had ended is missed by the retry, not by the worker."""
    file = upload_file(harness)
    job = harness.submit_job(input={"$file": file})
    harness.fail(harness.claim_one())
    assert harness.retry(job).status == "queued"
    assert harness.expect_refusal(DeleteFiles(tenant=TENANT, file_ids=(file,))).code == "file_in_use"
    harness.fail(harness.claim_one())
    harness.do(DeleteFiles(tenant=TENANT, file_ids=(file,)))
    assert harness.expect_refusal(Retry(tenant=TENANT, job_id=job, actor="admin")).code == "file_not_found"


def test_a_job_is_not_opened_again_without_what_its_earlier_stages_made(harness: EngineHarness) -> None:
    harness.workflow("film", stages=[stage("draw"), stage("cut")])
    job = harness.submit_job("film")
    complete(harness, harness.claim_one(), PICTURE)
    harness.fail(harness.claim_one("cut"))
    (made,) = files(harness, job)
    harness.do(DeleteFiles(tenant=TENANT, file_ids=(made.id,)))
    paid = harness.balance()
    assert harness.expect_refusal(Retry(tenant=TENANT, job_id=job)).code == "file_deleted"
    assert (harness.status(job), harness.balance()) == ("failed", paid)
    assert harness.retry(job, retry_as="new_job").status == "queued"


@pytest.mark.parametrize("together", [False, True])
def test_a_job_whose_file_another_needs_is_not_deleted(harness: EngineHarness, together: bool) -> None:
    """O7: the files of a job go with it; one that an open job needs must stay, and so must its maker."""
    maker = harness.submit_job()
    complete(harness, harness.claim_one(), PICTURE)
    ask = harness.submission(input={"$file": files(harness, maker)[0].id})
    asks = [ask, Delete(tenant=TENANT, job_id=maker)]
    if together:  # in one batch, or in two at once: whoever is first
        used, gone = harness.engine.execute_many(asks)
        assert isinstance(gone, Refusal) != isinstance(used, Refusal)
        refused = gone if isinstance(gone, Refusal) else used
        assert refused.code == ("file_in_use" if refused is gone else "file_not_found")
    else:
        user = harness.do(ask).job_id
        assert harness.expect_refusal(asks[1]).code == "file_in_use"
        harness.cancel(user, grace_seconds=0)
        assert harness.delete(maker).status == "completed"
        assert harness.expect_refusal(ask).code == "file_not_found"
