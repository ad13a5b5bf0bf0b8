"""Files of a result: rows that come with it or not at all, and go with their job."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.config import Settings
from callsheet.core.commands import AddTasks, AskUpload, Complete, Delete, DropFiles, FinishUpload, Lease, Made, Retry
from callsheet.core.errors import Refusal
from callsheet.core.ids import child
from callsheet.core.limits import Limits
from callsheet.core.rows import File
from tests.engine.conftest import OpenStudio
from tests.support.faulty import faulty_engine, once
from tests.support.studio import TENANT, USER, Studio, stage

PICTURE = Made(1, "picture.png", "image/png", 48_211, "a" * 64)
SOUND = Made(2, "tone.wav", "audio/wav", 0, "b" * 64)


def hand_in(studio: Studio, lease: Lease, *files: Made, output: Any = None) -> Any:
    return studio.do(Complete(lease=lease, output=output, files=files))


def files(studio: Studio, job_id: str) -> list[File]:
    return [File(*row) for row in studio.read.fetch("files_of", id=job_id)]


def test_files_are_kept_with_the_result_under_its_task_and_epoch(studio: Studio) -> None:
    job = studio.ask()
    studio.requeue(studio.take())
    lease = studio.take()
    hand_in(studio, lease, PICTURE, SOUND)
    epoch = child(lease.task_id, 2)
    assert files(studio, job) == [
        File(
            child(epoch, made.no), TENANT, USER, job, lease.task_id, 2, made.no, made.name, made.media_type, made.bytes,
            made.sha256, studio.clock.now(), "ready", None,
        )
        for made in (PICTURE, SOUND)
    ]  # fmt: skip


def test_a_result_without_files_keeps_none(studio: Studio) -> None:
    job = studio.ask()
    hand_in(studio, studio.take())
    assert (studio.status(job), files(studio, job)) == ("completed", [])


def test_every_task_of_a_stage_has_files_of_its_own(studio: Studio) -> None:
    studio.workflow("film", stages=[stage("draw", tasks=3)])
    job = studio.ask("film")
    for leased in studio.claim(count=3):
        hand_in(studio, leased.lease, PICTURE, SOUND)
    kept = files(studio, job)
    assert len({file.id for file in kept}) == 6
    assert sorted(file.no for file in kept) == [1, 1, 1, 2, 2, 2]


def test_a_file_that_could_not_be_put_leaves_a_gap(studio: Studio) -> None:
    job = studio.ask()
    hand_in(studio, studio.take(), PICTURE, replace(SOUND, no=7))
    assert [file.no for file in files(studio, job)] == [1, 7]
    assert not studio.broken()


BAD: list[tuple[str, tuple[Made, ...], str]] = [
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
    studio: Studio, made: tuple[Made, ...], code: str
) -> None:
    job = studio.ask()
    lease = studio.take()
    before = studio.snapshot()
    assert studio.refused(Complete(lease=lease, files=made)).code == code
    assert studio.snapshot() == before
    hand_in(studio, lease, PICTURE)
    assert (studio.status(job), len(files(studio, job))) == ("completed", 1)


def test_limits_are_the_houses_own(open_studio: OpenStudio) -> None:
    studio = open_studio(Settings(limits=Limits(files_per_task_max=1, file_bytes_max=10)))
    studio.ask()
    lease = studio.take()
    small = replace(PICTURE, bytes=10)
    assert studio.refused(Complete(lease=lease, files=(small, replace(SOUND, bytes=1)))).code == "out_of_range"
    assert studio.refused(Complete(lease=lease, files=(replace(small, bytes=11),))).code == "out_of_range"
    assert hand_in(studio, lease, small).status == "completed"


def test_a_stale_lease_keeps_nothing(studio: Studio) -> None:
    """Fenced: the first worker comes back after the second was given the task."""
    job = studio.ask()
    stale = studio.take(lease_seconds=1)
    studio.advance(2)
    studio.advance(60)
    fresh = studio.take(worker="w2")
    before = studio.snapshot()
    assert studio.refused(Complete(lease=stale, files=(PICTURE,))).code == "lease_lost"
    assert studio.snapshot() == before
    hand_in(studio, fresh, SOUND_ALONE)
    assert studio.refused(Complete(lease=stale, files=(PICTURE,))).code == "lease_lost"
    assert [(file.name, file.attempt) for file in files(studio, job)] == [("tone.wav", 2)]


SOUND_ALONE = replace(SOUND, no=1)


def test_a_result_that_is_told_twice_has_its_files_once(studio: Studio) -> None:
    job = studio.ask()
    lease = studio.take()
    hand_in(studio, lease, PICTURE, output=1)
    before = studio.snapshot()
    assert hand_in(studio, lease, PICTURE, output=1).replay
    assert studio.snapshot() == before
    assert len(files(studio, job)) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_result_whose_commit_was_cut_has_its_files_once(studio: Studio, when: Any) -> None:
    job = studio.ask()
    lease = studio.take()
    with faulty_engine(studio.database, once(when)) as engine:
        engine.execute(Complete(lease=lease, files=(PICTURE, SOUND)))
    assert [file.no for file in files(studio, job)] == [1, 2]


def test_a_canceled_job_takes_no_files_any_more(studio: Studio) -> None:
    job = studio.ask()
    lease = studio.take()
    studio.cancel(job, grace_seconds=0)
    assert hand_in(studio, lease, PICTURE).skipped
    assert files(studio, job) == []


def test_a_deleted_jobs_files_go_and_its_neighbours_stay(studio: Studio) -> None:
    jobs = [studio.ask(), studio.ask()]
    for leased in studio.claim(count=2):
        hand_in(studio, leased.lease, PICTURE, SOUND)
    gone = files(studio, jobs[0])
    studio.delete(jobs[0])
    assert (files(studio, jobs[0]), len(files(studio, jobs[1]))) == ([], 2)
    assert list(studio.read.fetch("file_of_tenant", id=gone[0].id, tenant=TENANT)) == []


def test_files_of_completed_tasks_outlive_a_retry(studio: Studio) -> None:
    studio.workflow("film", stages=[stage("draw", tasks=2)])
    job = studio.ask("film")
    first, second = studio.claim(count=2)
    hand_in(studio, first.lease, PICTURE)
    studio.fail(second.lease)
    studio.retry(job)
    hand_in(studio, studio.take(), PICTURE)
    assert (studio.status(job), len(files(studio, job))) == ("completed", 2)


def test_a_file_is_another_tenants_to_nobody(studio: Studio) -> None:
    job = studio.ask()
    hand_in(studio, studio.take(), PICTURE)
    (file,) = files(studio, job)
    assert list(studio.read.fetch("file_of_tenant", id=file.id, tenant="other")) == []
    assert len(studio.read.fetch("file_of_tenant", id=file.id, tenant=TENANT)) == 1


# -- used by inputs


def bring(studio: Studio) -> str:
    command = AskUpload(tenant=TENANT, user=USER, name="a.png", media_type="image/png", bytes=1, sha256="a" * 64)
    file: File = studio.do(command)
    studio.do(FinishUpload(tenant=TENANT, file_id=file.id))
    return file.id


def test_a_job_of_many_tasks_uses_a_file_for_each(studio: Studio) -> None:
    studio.workflow("open", price=0, stages=[], inline=True)
    files = [bring(studio) for _ in range(100)]
    inputs = [{"picture": {"$file": key}} for key in files]
    job = studio.ask("open", input=files[:1], stages=[stage(f"s{n}", "draw", inputs=inputs[n::10]) for n in range(10)])
    more = studio.ask("open", stages=[stage()])
    studio.do(AddTasks(tenant=TENANT, job_id=more, stage_id=studio.stages(more)[0].id, inputs=inputs))
    for used in (job, more):
        found = studio.read.fetch("uses", keys=[(used, key) for key in files])
        assert len(found) == 100


def test_a_retry_as_a_new_job_uses_the_files_again_and_not_without_them(studio: Studio) -> None:
    files = [bring(studio) for _ in range(40)]
    job = studio.ask(input=[{"$file": key} for key in files])
    studio.fail(studio.take())
    again = studio.retry(job, retry_as="new_job").job_id
    assert len(studio.read.fetch("uses", keys=[(again, key) for key in files])) == 40
    studio.cancel(again, grace_seconds=0)
    studio.do(DropFiles(tenant=TENANT, file_ids=(files[7],)))
    assert studio.refused(Retry(tenant=TENANT, job_id=job, retry_as="new_job", actor="admin")).code == "file_not_found"


def test_a_deleted_job_needs_no_file_any_more(studio: Studio) -> None:
    file = bring(studio)
    job = studio.ask(input={"$file": file})
    assert studio.refused(DropFiles(tenant=TENANT, file_ids=(file,))).code == "file_in_use"
    studio.delete(job)
    assert not studio.read.fetch("uses", keys=[(job, file)])
    assert len(studio.do(DropFiles(tenant=TENANT, file_ids=(file,))).files) == 1


@pytest.mark.parametrize("end", ["cancel", "delete", "deadline"])
def test_a_job_of_as_many_stages_as_there_may_be_can_be_ended(studio: Studio, end: str) -> None:
    """What a decision misses is loaded for as long as that helps, however many rounds it takes."""
    studio.workflow("open", price=0, stages=[], inline=True, deadline_seconds=100)
    job = studio.ask("open", stages=[stage(f"s{n}", "draw") for n in range(Limits().stages_per_job_max)])
    if end == "cancel":
        studio.cancel(job, grace_seconds=0)
    elif end == "delete":
        studio.delete(job)
        return
    else:
        studio.advance(100)
    assert studio.status(job) == {"cancel": "canceled", "deadline": "expired"}[end]


@pytest.mark.parametrize("first", ["submit", "drop"])
def test_a_file_is_used_or_dropped_and_never_both(studio: Studio, first: str) -> None:
    file = bring(studio)
    asks = [studio.submission(input={"$file": file}), DropFiles(tenant=TENANT, file_ids=(file,))]
    results = studio.engine.execute_many(asks if first == "submit" else asks[::-1])
    assert [isinstance(result, Refusal) for result in results] == [False, True]


def test_a_job_is_not_opened_again_without_its_files(studio: Studio) -> None:
    """O7: what was dropped after the job had ended is missed by the retry, not by the worker."""
    file = bring(studio)
    job = studio.ask(input={"$file": file})
    studio.fail(studio.take())
    assert studio.retry(job).status == "queued"
    assert studio.refused(DropFiles(tenant=TENANT, file_ids=(file,))).code == "file_in_use"
    studio.fail(studio.take())
    studio.do(DropFiles(tenant=TENANT, file_ids=(file,)))
    assert studio.refused(Retry(tenant=TENANT, job_id=job, actor="admin")).code == "file_not_found"


def test_a_job_is_not_opened_again_without_what_its_earlier_stages_made(studio: Studio) -> None:
    studio.workflow("film", stages=[stage("draw"), stage("cut")])
    job = studio.ask("film")
    hand_in(studio, studio.take(), PICTURE)
    studio.fail(studio.take("cut"))
    (made,) = files(studio, job)
    studio.do(DropFiles(tenant=TENANT, file_ids=(made.id,)))
    paid = studio.balance()
    assert studio.refused(Retry(tenant=TENANT, job_id=job)).code == "file_dropped"
    assert (studio.status(job), studio.balance()) == ("failed", paid)
    assert studio.retry(job, retry_as="new_job").status == "queued"


@pytest.mark.parametrize("together", [False, True])
def test_a_job_whose_file_another_needs_is_not_deleted(studio: Studio, together: bool) -> None:
    """O7: the files of a job go with it; one that an open job needs must stay, and so must its maker."""
    maker = studio.ask()
    hand_in(studio, studio.take(), PICTURE)
    ask = studio.submission(input={"$file": files(studio, maker)[0].id})
    asks = [ask, Delete(tenant=TENANT, job_id=maker)]
    if together:  # in one batch, or in two at once: whoever is first
        used, gone = studio.engine.execute_many(asks)
        assert isinstance(gone, Refusal) != isinstance(used, Refusal)
        refused = gone if isinstance(gone, Refusal) else used
        assert refused.code == ("file_in_use" if refused is gone else "file_not_found")
    else:
        user = studio.do(ask).job_id
        assert studio.refused(asks[1]).code == "file_in_use"
        studio.cancel(user, grace_seconds=0)
        assert studio.delete(maker).status == "completed"
        assert studio.refused(ask).code == "file_not_found"
