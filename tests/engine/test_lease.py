"""Leases: one holder at a time, proved by a token, fenced by an epoch; a report repeated gets the same answer."""

import pytest
from msgspec.structs import replace

from callsheet.core.commands import Claim, Command, Complete, Fail, Heartbeat, Intend, Lease, Requeue
from callsheet.core.holding import hashed
from tests.support.studio import Studio, stage


def reports(lease: Lease) -> list[Command]:
    return [
        Heartbeat(lease=lease),
        Heartbeat(lease=lease, progress=50),
        Complete(lease=lease, output={"late": True}),
        Fail(lease=lease, message="late"),
        Requeue(lease=lease, reason="late"),
        Intend(lease=lease, provider="p"),
    ]


def test_a_task_is_handed_out_once(studio: Studio) -> None:
    # R150, R184, R304, R412, L1
    studio.ask()
    assert len(studio.claim(count=5)) == 1
    assert studio.claim(worker="w2") == []


def test_a_lease_is_a_token_an_epoch_and_a_time(studio: Studio) -> None:
    # R191, R196, R205, L3, L10, A1: the time is the database's
    job = studio.ask()
    (leased,) = studio.claim(lease_seconds=77)
    assert (leased.lease.attempt, leased.lease_seconds, len(leased.lease.token) >= 32) == (1, 77, True)
    (task,) = studio.tasks(job)
    assert task.lease_expires_at == studio.clock.now() + 77_000_000
    assert (task.worker_id, task.token_hash) == ("w1", hashed(leased.lease.token))
    assert leased.lease.token not in repr(studio.snapshot()), "only the token's hash is stored"


def test_a_tasks_row_says_whose_it_is_who_has_it_until_when_and_what_went_wrong(studio: Studio) -> None:
    # R179, R182, R185
    studio.workflow("film", stages=[stage("render", provider="cloud")])
    job = studio.ask("film", priority=70)
    (leased,) = studio.claim("render")
    (task,) = studio.tasks(job)
    (queue,) = studio.read.fetch("queues_sharing", kinds=[], workflows=["film"], providers=[])
    assert (task.tenant, task.job_id, task.queue, leased.workflow, leased.kind) == (
        "acme", job, queue[0], "film", "render",
    )  # fmt: skip
    assert studio.stages(job)[0].provider == "cloud"
    assert (task.status, task.token_hash, task.lease_expires_at, task.worker_id) == (
        "running", hashed(leased.lease.token), studio.clock.now() + 900_000_000, "w1",
    )  # fmt: skip
    assert (task.attempts, task.priority) == (1, 70)
    studio.clock.advance(8)
    studio.fail(leased.lease, "FFmpeg exited with 1")
    (task,) = studio.tasks(job)
    assert (task.status, task.error_message) == ("failed", "FFmpeg exited with 1")
    assert (task.finished_at or 0) - (task.started_at or 0) == 8_000_000


def test_the_recipe_says_how_long_a_lease_is(studio: Studio) -> None:
    # R191
    studio.ask()
    assert studio.claim()[0].lease_seconds == 900
    studio.workflow(lease_seconds=60)
    studio.ask()
    assert studio.claim()[0].lease_seconds == 60


def test_a_worker_gets_only_the_kinds_it_names(studio: Studio) -> None:
    # R187, R188, R197, L7
    studio.workflow("film", stages=[stage("cut")])
    studio.ask()
    studio.ask("film")
    assert studio.claim("paint") == []
    assert [leased.kind for leased in studio.claim("cut", count=9)] == ["cut"]
    assert [leased.kind for leased in studio.claim("paint", "draw", count=9)] == ["draw"]


def test_several_kinds_are_served_by_one_claim(studio: Studio) -> None:
    # R188
    studio.workflow("film", stages=[stage("cut")])
    for _ in range(3):
        studio.ask()
        studio.ask("film")
    kinds = [studio.claim("draw", "cut")[0].kind for _ in range(4)]
    assert sorted(kinds[:2]) == sorted(kinds[2:]) == ["cut", "draw"], "the two queues take turns"
    assert len(studio.claim("draw", "cut", count=9)) == 2


def test_a_claim_without_work_is_empty_and_writes_nothing(studio: Studio) -> None:
    # R216
    before = studio.snapshot()
    assert studio.claim("draw", "nothing", count=100) == []
    assert studio.snapshot() == before


@pytest.mark.parametrize(
    "fields",
    [{"kinds": ()}, {"worker_id": ""}, {"count": 0}, {"count": 1_001}, {"lease_seconds": 0}, {"lease_seconds": 86_401}],
)
def test_a_wrong_claim_is_refused(studio: Studio, fields: dict[str, object]) -> None:
    # R188: who names no kind gets nothing
    studio.ask()
    command = replace(Claim(worker_id="w1", kinds=("draw",)), **fields)
    assert studio.refused(command).code in {"invalid_claim", "out_of_range"}
    assert len(studio.claim()) == 1


def test_a_heartbeat_prolongs_from_now_and_never_back(studio: Studio) -> None:
    # R227
    job = studio.ask()
    lease = studio.take(lease_seconds=100)
    studio.clock.advance(60)
    assert studio.beat(lease).lease_seconds == 900
    assert studio.beat(lease, lease_seconds=10).lease_seconds == 900, "never back"
    assert studio.beat(lease, lease_seconds=1_000).lease_seconds == 1_000
    assert studio.tasks(job)[0].lease_expires_at == studio.clock.now() + 1_000_000_000
    studio.advance(999)
    assert studio.complete(lease).job_status == "completed"


def test_a_heartbeat_keeps_a_job_that_outlives_its_lease(studio: Studio) -> None:
    # R227, R234
    studio.workflow(lease_seconds=30)
    job = studio.ask()
    lease = studio.take()
    for _ in range(20):
        studio.advance(20)
        studio.beat(lease)
    assert studio.complete(lease).job_status == "completed"
    assert len(studio.read.attempts(lease.task_id)) == 1
    assert studio.events(job).count("task.leased") == 1


def test_a_stale_token_changes_nothing_at_all(studio: Studio) -> None:
    # R194, R228, R240, R250, H7, L5
    studio.ask()
    stale = studio.take(lease_seconds=10)
    studio.advance(10)
    studio.advance(10)
    live = studio.take(worker="w2")
    assert (live.attempt, live.token != stale.token) == (2, True)
    before = studio.snapshot()
    for report in reports(stale):
        assert studio.refused(report).code == "lease_lost"
    assert studio.snapshot() == before
    assert studio.complete(live).job_status == "completed"
    after = studio.snapshot()
    for report in reports(stale):
        assert studio.refused(report).code == "lease_lost"
    assert studio.snapshot() == after


def test_a_foreign_or_made_up_lease_is_refused(studio: Studio) -> None:
    # R159, H7
    job, other = studio.ask(), studio.ask()
    mine, theirs = (leased.lease for leased in studio.claim(count=2))
    before = studio.snapshot()
    for wrong, code in [
        (replace(mine, token=theirs.token), "lease_not_found"),
        (replace(mine, token=""), "lease_not_found"),
        (replace(mine, token=hashed(mine.token)), "lease_not_found"),
        (replace(mine, job_id=other), "task_not_found"),
        (replace(mine, task_id="nothing"), "task_not_found"),
        (replace(mine, job_id="nothing"), "task_not_found"),
    ]:
        for report in reports(wrong):
            assert studio.refused(report).code == code
    assert studio.snapshot() == before
    assert studio.complete(mine).job_id == job


def test_a_completion_repeated_gets_the_same_answer(studio: Studio) -> None:
    # R241, R316, H8
    studio.ask()
    lease = studio.take()
    first = studio.complete(lease, {"a": 1, "b": 2})
    before = studio.snapshot()
    again = studio.complete(lease, {"b": 2, "a": 1})
    assert (first.replay, again.replay) == (False, True)
    assert (again.status, again.job_status) == (first.status, first.job_status)
    assert studio.refused(Complete(lease=lease, output={"a": 2})).code == "lease_lost"
    assert studio.refused(Fail(lease=lease)).code == "lease_lost"
    assert studio.snapshot() == before


def test_a_failure_and_a_requeue_repeated_count_once(studio: Studio) -> None:
    # R252, R316
    job = studio.ask()
    lease = studio.take()
    studio.requeue(lease)
    assert studio.requeue(lease).replay is True
    assert studio.tasks(job)[0].requeues == 1
    lease = studio.take()
    studio.fail(lease, retryable=True)
    assert studio.fail(lease, retryable=True).replay is True
    assert studio.tasks(job)[0].attempts_charged == 1


def test_a_completion_of_another_task_is_not_a_repetition(studio: Studio) -> None:
    # H8
    studio.workflow("pair", stages=[stage("draw", tasks=2)])
    job = studio.ask("pair")
    first, second = (leased.lease for leased in studio.claim(count=2))
    assert studio.complete(first, {"n": 1}).replay is False
    assert studio.complete(second, {"n": 1}).replay is False
    assert studio.status(job) == "completed"


def test_an_output_over_the_limit_is_refused_and_the_lease_kept(studio: Studio) -> None:
    # H9
    studio.ask()
    lease = studio.take()
    before = studio.snapshot()
    assert studio.refused(Complete(lease=lease, output="x" * 1024 * 1024)).code == "output_too_large"
    assert studio.refused(Complete(lease=lease, output=float("nan"))).code == "invalid_output"
    assert studio.refused(Heartbeat(lease=lease, message="x" * 2_001)).code == "message_too_long"
    assert studio.refused(Requeue(lease=lease, reason=" ")).code == "reason_required"
    assert studio.snapshot() == before
    assert studio.complete(lease, "x").job_status == "completed"
