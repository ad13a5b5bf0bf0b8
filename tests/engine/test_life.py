"""A job's life from queued to its end, the record it leaves, and that nothing leaves an end."""

import json
from itertools import pairwise

import pytest

from callsheet.core.commands import Approve, Cancel, Heartbeat, Hold, Pause, Requeue, Resume, Retry
from callsheet.core.errors import Unknown
from tests.support.studio import Studio, stage


def test_a_job_goes_from_queued_through_running_to_completed(studio: Studio) -> None:
    # R4, R10, R14, R17, R25, R48, R384, R385, R420, R421
    job = studio.ask(input={"prompt": "a cat"})
    assert studio.status(job) == "queued"
    studio.clock.advance(1)
    lease = studio.take()
    assert studio.status(job) == "running"
    studio.clock.advance(2)
    state = studio.complete(lease, {"url": "x"})
    assert (state.status, state.job_status) == ("completed", "completed")
    assert studio.events(job) == [
        "job.created", "task.leased", "stage.started", "job.started", "task.completed", "stage.completed",
        "job.completed",
    ]  # fmt: skip
    assert studio.moves(job) == [(None, "queued"), ("queued", "running"), ("running", "completed")]


def test_the_times_of_a_job_follow_each_other(studio: Studio) -> None:
    # R103, R106, R109, R116, R118, R193, R314, J7
    job = studio.ask()
    row = studio.job(job)
    assert (row.started_at, row.finished_at) == (None, None)
    studio.clock.advance(3)
    studio.requeue(studio.take())
    started = studio.job(job).started_at
    studio.clock.advance(3)
    lease = studio.take()
    assert (studio.job(job).started_at, studio.job(job).finished_at) == (started, None)
    studio.clock.advance(3)
    studio.complete(lease)
    row = studio.job(job)
    assert row.started_at == started == row.created_at + 3_000_000
    assert row.finished_at == row.created_at + 9_000_000


def test_event_numbers_are_dense_and_their_times_never_go_back(studio: Studio) -> None:
    # R25, R137, J2, J3, J4
    studio.workflow("film", stages=[stage("draw", tasks=3), stage("cut", gate=True)])
    job = studio.ask("film")
    for leased in studio.claim(count=3):
        studio.clock.advance(1)
        studio.beat(leased.lease, progress=50)
        studio.complete(leased.lease)
    studio.clock.advance(-5)
    studio.approve(job, 2)
    studio.finish(job, "cut")
    events = studio.read.events(job)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert all(one.at <= other.at for one, other in pairwise(events))
    moves = studio.moves(job)
    assert all(one[1] == other[0] for one, other in pairwise(moves))
    assert studio.read.events(job, after=len(events) - 2) == events[-2:]


def test_a_clock_that_goes_back_changes_no_history(studio: Studio) -> None:
    # H26, R118, J7
    job = studio.ask()
    studio.clock.advance(-3_600)
    lease = studio.take()
    studio.clock.advance(-3_600)
    studio.complete(lease)
    row = studio.job(job)
    assert row.started_at is not None
    assert row.finished_at is not None
    assert row.created_at <= row.started_at <= row.finished_at


def test_a_result_is_kept_as_it_was_handed_in(studio: Studio) -> None:
    # R6, R48, R97, R296
    job = studio.ask(input={"n": 1})
    lease = studio.take()
    studio.complete(lease, {"files": ["a", "b"], "text": "猫"})
    documents = {(d.owner_id, d.name): d.body for d in studio.read.documents(job)}
    assert documents == {
        (job, "input"): '{"n":1}',
        (lease.task_id, "output:1"): '{"files":["a","b"],"text":"猫"}',
    }
    empty = studio.ask()
    studio.complete(studio.take())
    assert [d.body for d in studio.read.documents(empty)] == ["null"], "even nothing is written down as what was made"


def test_a_failure_keeps_its_cause_without_its_secrets(studio: Studio) -> None:
    # R60, R61, R63, R98, R110, R251, R253, R263
    job = studio.ask()
    report = '{"exception_message": "CUDA out of memory at /srv/models/x.ckpt token=abc123secret", "trace": "..."}'
    state = studio.fail(studio.take(), report)
    assert (state.status, state.job_status) == ("failed", "failed")
    row = studio.job(job)
    assert (row.error_code, row.error_message) == ("task_failed", "CUDA out of memory at [path] [secret]")
    assert studio.runs(job)[0].error_message == row.error_message
    assert studio.tasks(job)[0].error_message == row.error_message
    assert "abc123secret" not in repr(studio.snapshot())


@pytest.mark.parametrize("ending", ["completed", "failed", "canceled", "expired"])
def test_nothing_leaves_an_end_but_a_retry(studio: Studio, ending: str) -> None:
    # R23, R24, R71, R113, R305, R306, R314, R389, J6, J9
    job = studio.ask(deadline_seconds=100)
    if ending == "canceled":
        studio.cancel(job)
    elif ending == "expired":
        studio.advance(100)
    else:
        (studio.complete if ending == "completed" else studio.fail)(studio.take())
    assert (studio.job(job).finished_at, studio.runs(job)[0].finished_at) == (studio.clock.now(),) * 2
    before = studio.snapshot()
    part = studio.stages(job)[0].id
    assert studio.refused(Pause(tenant="acme", job_id=job)).code == "illegal_transition"
    assert studio.refused(Resume(tenant="acme", job_id=job)).code == "illegal_transition"
    assert studio.refused(Approve(tenant="acme", job_id=job, stage_id=part, approver="x")).code == "illegal_transition"
    assert studio.refused(Hold(tenant="acme", job_id=job, stage_id=part)).code == "job_ended"
    if ending == "canceled":
        assert studio.cancel(job).changed is False
    else:
        assert studio.refused(Cancel(tenant="acme", job_id=job)).code == "illegal_transition"
    if ending in {"completed", "canceled"}:
        assert studio.refused(Retry(tenant="acme", job_id=job)).code == "illegal_transition"
    assert studio.claim() == []
    assert studio.advance(10**6) == 0
    assert studio.snapshot() == before


@pytest.mark.parametrize("ending", ["completed", "failed", "canceled", "expired"])
def test_nothing_is_told_of_a_run_that_has_ended(studio: Studio, ending: str) -> None:
    # R112, J12
    job = studio.ask(deadline_seconds=100)
    lease = studio.take()
    if ending == "canceled":
        studio.cancel(job, grace_seconds=0)
    elif ending == "expired":
        studio.advance(100)
    else:
        (studio.complete if ending == "completed" else studio.fail)(lease)
    told = studio.events(job)
    assert told[-1] == f"job.{ending}"
    late = Heartbeat(lease=lease, progress=99, message="Nearly there", log=("late",))
    studio.engine.execute_many([late, Requeue(lease=lease, reason="late")])
    assert (studio.events(job), studio.status(job)) == (told, ending)


CAUSES = [
    "The model did not answer within 120 seconds", "Connection reset by peer", "No space left on device",
    "FFmpeg exited with 1", "No voice is configured",
]  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES)
def test_whatever_went_wrong_is_said_in_its_own_words(studio: Studio, cause: str) -> None:
    # R110, R154
    job = studio.ask()
    studio.fail(studio.take(), cause)
    row = studio.job(job)
    assert (row.status, row.error_message, row.finished_at) == ("failed", cause, studio.clock.now())
    assert studio.read.documents(job) == []
    assert studio.balance() == 100


def test_another_tenants_job_looks_absent(studio: Studio) -> None:
    # R159, H23
    studio.tenant("other")
    job = studio.ask()
    before = studio.snapshot()
    for command in (Cancel, Pause, Resume, Retry):
        assert studio.refused(command(tenant="other", job_id=job)).code == "job_not_found"
    with pytest.raises(Unknown):
        studio.job(job, tenant="other")
    assert studio.snapshot() == before


def test_a_job_that_was_never_made_is_not_found(studio: Studio) -> None:
    # R124
    for job in ("", "nothing", "01a1e2ed-b97d-758d-b457-f41d3fb37d91", "x" * 10_000):
        assert studio.refused(Cancel(tenant="acme", job_id=job)).code == "job_not_found"


def test_progress_is_told_within_its_range_and_never_goes_back(studio: Studio) -> None:
    # R107, R267, J12
    job = studio.ask()
    lease = studio.take()
    studio.beat(lease, progress=40, message="Half of it")
    studio.beat(lease, progress=30)
    assert (studio.job(job).progress, studio.tasks(job)[0].message) == (40, "Half of it")
    for wrong in (-1, 101):
        with pytest.raises(Exception, match="progress must be"):
            studio.beat(lease, progress=wrong)
    studio.complete(lease)
    assert studio.job(job).progress == 100
    told = [json.loads(event.data or "") for event in studio.read.events(job) if event.type == "task.progressed"]
    assert told == [{"message": "Half of it", "progress": 40}, {"message": None, "progress": 30}]


def test_progress_of_several_stages_adds_up(studio: Studio) -> None:
    # R267
    studio.workflow("film", stages=[stage("draw", tasks=2), stage("cut")])
    job = studio.ask("film")
    first, second = studio.claim(count=2)
    studio.beat(first.lease, progress=50)
    assert studio.job(job).progress == 12
    studio.complete(first.lease)
    studio.complete(second.lease)
    assert studio.job(job).progress == 50
    studio.beat(studio.take("cut"), progress=80)
    assert studio.job(job).progress == 90
