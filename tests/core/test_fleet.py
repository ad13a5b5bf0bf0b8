"""The fleet's rules: who is let in, what it may take, and what becomes of its work when it goes."""

from typing import Any

import msgspec
import pytest

from callsheet.core.model import commands as c
from callsheet.core.model.rows import Attempt, Audit, Task, Worker
from callsheet.core.policy.engine_limits import Limits
from tests.core.rule_harness import DRAW, CoreHarness

SECRET = "1" * 64
OTHER = "2" * 64


def come(harness: CoreHarness, worker: str = "gpu", token: str = SECRET, **more: Any) -> c.WorkerState:
    state: c.WorkerState = harness.do(
        c.Register(**{"worker_id": worker, "kinds": ("draw",), "token_hash": token, "concurrency": 2, **more})
    )
    return state


def take(worker: str = "gpu", session: str = SECRET, **more: Any) -> c.Claim:
    return c.Claim(**{"worker_id": worker, "kinds": ("draw",), "session": session, **more})


def held(harness: CoreHarness) -> CoreHarness:
    """Let a worker hold two tasks."""
    come(harness)
    for _ in range(2):
        harness.submit()
    assert len(harness.do(take(count=2))) == 2
    return harness


def actions(harness: CoreHarness) -> list[str]:
    return [line.action for line in harness.all(Audit) if line.action.startswith("worker.")]


# -- coming


def test_a_worker_comes_and_comes_again_under_its_name() -> None:
    """R200, R203, R205, R207, R208."""
    harness = CoreHarness(DRAW)
    assert come(harness) == c.WorkerState("gpu", "approved", ("draw",))
    harness.advance(5)
    assert come(harness, token=OTHER, kinds=("sing", "draw"), concurrency=4).kinds == ("draw", "sing")
    worker = harness.get(Worker, "gpu")
    assert (worker.token_hash, worker.starts, worker.concurrency) == (OTHER, 2, 4)
    assert worker.started_at == worker.created_at + 5_000_000
    assert actions(harness) == ["worker.register"] * 2


def test_a_restart_gives_back_what_was_held_without_using_up_a_try() -> None:
    """R203, R212, H25."""
    harness = held(CoreHarness(DRAW))
    assert come(harness, token=OTHER).requeued == 2
    assert [(task.status, task.attempts_counted, task.ready) for task in harness.all(Task)] == [("retried", 0, 1)] * 2
    assert {attempt.outcome for attempt in harness.all(Attempt)} == {"requeued"}
    assert len(harness.do(take(session=OTHER, count=2))) == 2


def test_a_registration_whose_answer_was_lost_is_not_a_second_start() -> None:
    harness = held(CoreHarness(DRAW))
    assert come(harness).requeued == 0
    assert harness.get(Worker, "gpu").starts == 1


def test_the_fleet_has_a_cap_that_the_gone_do_not_count_in() -> None:
    """R201, weak point 16 of the original."""
    harness = CoreHarness(DRAW, limits=Limits(workers_max=2))
    come(harness, "a")
    come(harness, "b", "b" * 64)
    third = c.Register(worker_id="c", kinds=("draw",), token_hash="c" * 64)
    assert harness.expect_refusal(third).details == {"workers": 2, "max": 2}
    come(harness, "b", "d" * 64)
    harness.do(c.Deregister(worker_id="a", session=SECRET))
    harness.do(third)
    assert harness.expect_refusal(c.Register(worker_id="a", kinds=("draw",), token_hash=OTHER)).code == "fleet_full"


def test_the_cap_holds_within_one_batch() -> None:
    harness = CoreHarness(DRAW, limits=Limits(workers_max=3))
    many = [c.Register(worker_id=f"w{n}", kinds=("draw",), token_hash=f"{n}" * 64) for n in range(5)]
    answers = harness.batch(*many)
    assert sum(isinstance(answer, c.WorkerState) for answer in answers) == 3


# -- claims


@pytest.mark.parametrize("how", ["nobody", "another token", "an earlier start", "revoked", "gone"])
def test_who_is_not_let_in_takes_nothing(how: str) -> None:
    """R195, R210, L6: decided in the very transaction that would lease."""
    harness = CoreHarness(DRAW)
    harness.submit()
    claim = take()
    if how != "nobody":
        come(harness)
    if how == "another token":
        claim = take(session=OTHER)
    elif how == "an earlier start":
        come(harness, token=OTHER)
    elif how == "revoked":
        harness.do(c.RevokeWorker(worker_id="gpu"))
    elif how == "gone":
        harness.do(c.Deregister(worker_id="gpu", session=SECRET))
    assert harness.expect_refusal(claim).code == "invalid_worker_token"


def test_a_worker_waits_for_its_approval_and_for_its_kinds() -> None:
    """R195, R209."""
    harness = CoreHarness(DRAW)
    harness.submit()
    come(harness, approved=False, kinds=("draw", "sing"))
    assert harness.expect_refusal(take()).code == "worker_not_approved"
    harness.do(c.UpdateWorker(worker_id="gpu", approved=True, kinds=("sing",)))
    assert harness.expect_refusal(take()).code == "kind_not_assigned"
    harness.do(c.UpdateWorker(worker_id="gpu", kinds=()))
    assert len(harness.do(take())) == 1


def test_a_draining_worker_gets_no_more_and_a_new_start_begins_fresh() -> None:
    """R195."""
    harness = CoreHarness(DRAW)
    harness.submit()
    come(harness)
    harness.do(c.UpdateWorker(worker_id="gpu", draining=True))
    assert harness.expect_refusal(take()).code == "worker_draining"
    come(harness, token=OTHER)
    assert len(harness.do(take(session=OTHER))) == 1


def test_no_worker_holds_more_than_it_can_do_at_once_however_its_claims_come() -> None:
    """R156, L8."""
    harness = CoreHarness(DRAW)
    come(harness, concurrency=3)
    for _ in range(9):
        harness.submit()
    first, second, third = harness.batch(take(count=2), take(count=2), take())
    assert (len(first), len(second)) == (2, 1)
    assert third.code == "worker_full"
    harness.do(c.Complete(lease=first[0].lease))
    assert len(harness.do(take(count=5))) == 1


def test_what_a_worker_never_heard_of_is_given_back() -> None:
    harness = held(CoreHarness(DRAW))
    known, lost = sorted(task.id for task in harness.all(Task))
    assert harness.do(take(held_task_ids=(known,))) == []  # what is free now is offered to the next claim
    assert [harness.get(Task, key).status for key in (known, lost)] == ["running", "retried"]
    (leased,) = harness.do(take(held_task_ids=(known,)))
    assert (leased.lease.task_id, leased.lease.attempt) == (lost, 2)


def test_what_went_astray_is_found_even_if_the_worker_names_a_lease_that_it_lost() -> None:
    harness = held(CoreHarness(DRAW))
    (astray,) = [task.id for task in harness.all(Task)][1:]
    mine = [task.id for task in harness.all(Task) if task.id != astray]
    assert harness.do(take(held_task_ids=(*mine, "a lease of yesterday"))) == []
    assert harness.get(Task, astray).status == "retried"


# -- going


@pytest.mark.parametrize(
    ("leave", "status", "action"),
    [
        (c.Deregister(worker_id="gpu", session=SECRET, reason="spot"), "offline", "worker.deregister"),
        (c.RevokeWorker(worker_id="gpu"), "revoked", "worker.revoke"),
    ],
)
def test_who_goes_or_is_put_out_loses_nothing_of_the_work(leave: c.Command, status: str, action: str) -> None:
    """R210 to R212."""
    harness = held(CoreHarness(DRAW))
    assert (harness.do(leave).status, actions(harness)[-1]) == (status, action)
    assert [(task.status, task.attempts_counted) for task in harness.all(Task)] == [("retried", 0)] * 2
    worker = harness.get(Worker, "gpu")
    assert (worker.token_hash, worker.ended_at) == (None, harness.now)


def test_a_goodbye_from_an_earlier_start_changes_nothing() -> None:
    harness = held(CoreHarness(DRAW))
    come(harness, token=OTHER)
    assert harness.expect_refusal(c.Deregister(worker_id="gpu", session=SECRET)).code == "invalid_worker_token"


def test_a_revoked_worker_comes_back_only_when_it_is_approved() -> None:
    harness = CoreHarness(DRAW)
    come(harness)
    harness.do(c.RevokeWorker(worker_id="gpu"))
    assert (
        harness.expect_refusal(c.Register(worker_id="gpu", kinds=("draw",), token_hash=OTHER)).code == "worker_revoked"
    )
    assert harness.do(c.UpdateWorker(worker_id="gpu", approved=True)).status == "offline"
    assert come(harness, token=OTHER).status == "approved"


def test_a_rotated_token_keeps_the_leases_and_one_that_ended_has_none() -> None:
    harness = held(CoreHarness(DRAW))
    lease = next(iter(harness.all(Attempt)))
    harness.do(c.RotateWorker(worker_id="gpu", token_hash=OTHER))
    assert harness.expect_refusal(take()).code == "invalid_worker_token"
    assert harness.get(Task, lease.task_id).status == "running"
    harness.do(c.RevokeWorker(worker_id="gpu"))
    assert harness.expect_refusal(c.RotateWorker(worker_id="gpu", token_hash=SECRET)).code == "worker_ended"


def test_a_worker_that_is_silent_for_long_makes_room_and_one_that_was_heard_stays() -> None:
    """R203."""
    harness = CoreHarness(DRAW)
    come(harness, "quiet")
    come(harness, "loud", OTHER)
    harness.advance(7_199)
    assert harness.do(c.RecordHeartbeats(workers=("loud", "nobody"))) == 1
    assert harness.do(c.TickWorker(worker_id="quiet")).status == "approved"
    harness.advance(1)
    assert [harness.do(c.TickWorker(worker_id=name)).status for name in ("quiet", "loud")] == ["offline", "approved"]
    assert actions(harness)[-1] == "worker.silent"


def test_a_worker_that_nobody_knows_is_unknown() -> None:
    harness = CoreHarness(DRAW)
    for command in (
        c.UpdateWorker(worker_id="x"), c.RevokeWorker(worker_id="x"), c.RotateWorker(worker_id="x", token_hash=OTHER),
        c.TickWorker(worker_id="x"),
    ):  # fmt: skip
        assert harness.expect_refusal(command).code == "worker_not_found"


def test_an_approval_lasts_when_a_worker_goes_and_comes_again_and_ends_when_it_is_revoked() -> None:
    harness = CoreHarness(DRAW)
    assert come(harness, approved=False).status == "pending"
    harness.do(c.UpdateWorker(worker_id="gpu", approved=True))
    harness.do(c.Deregister(worker_id="gpu", session=SECRET))
    assert come(harness, token=OTHER, approved=False).status == "approved"
    harness.do(c.RevokeWorker(worker_id="gpu"))
    harness.do(c.UpdateWorker(worker_id="gpu", approved=True))
    assert come(harness, token="3" * 64, approved=False).status == "approved"  # approved once, not twice
    harness.do(c.UpdateWorker(worker_id="gpu", approved=False))
    assert harness.expect_refusal(take(session="3" * 64)).code == "worker_not_approved"
    assert come(harness, token="4" * 64, approved=False).status == "pending"


# -- whose lease


def test_a_lease_is_its_workers_and_what_was_submitted_is_found_by_the_next_try() -> None:
    """R159."""
    harness = held(CoreHarness(DRAW))
    task = next(task for task in harness.all(Task) if task.status == "running")
    harness.do(c.RevokeWorker(worker_id="gpu"))
    come(harness, "b", OTHER)
    (leased,) = harness.do(take("b", OTHER))
    for command in (
        c.Heartbeat(lease=leased.lease, worker_id="gpu"), c.Complete(lease=leased.lease, worker_id="gpu"),
        c.RecordSubmission(lease=leased.lease, provider="p", ref="r", worker_id="gpu"),
    ):  # fmt: skip
        assert harness.expect_refusal(command).code == "lease_not_found"
    harness.do(c.RecordSubmission(lease=leased.lease, provider="p", ref="r", worker_id="b"))
    harness.do(c.Requeue(lease=leased.lease, reason="spot", cause="spot", worker_id="b"))
    retrying = harness.do(take("b", OTHER, count=2))
    resumed = {one.lease.task_id: one.resumed for one in retrying}
    assert resumed[leased.lease.task_id] == c.PreviousSubmission("p", "r")
    assert task.id in resumed
    assert msgspec.json.encode(resumed)
    told = [event.data for event in harness.events(leased.lease.job_id)]
    assert "spot" in str(told)
    assert '"r"' not in str(told)


def test_a_failed_try_is_not_resumed() -> None:
    harness = CoreHarness(msgspec.structs.replace(DRAW, retry=msgspec.structs.replace(DRAW.retry, on="any")))
    come(harness)
    harness.submit()
    (leased,) = harness.do(take())
    harness.do(c.RecordSubmission(lease=leased.lease, provider="p", ref="r"))
    harness.do(c.Fail(lease=leased.lease, retryable=True))
    harness.advance(10)
    harness.tick()
    (retrying,) = harness.do(take())
    assert retrying.resumed is None


@pytest.mark.parametrize("submitted", [True, False])
def test_a_failed_try_whose_work_elsewhere_is_still_good_is_resumed(submitted: bool) -> None:
    """Paid work that succeeded is collected by the next try, not done again because a download failed."""
    harness = CoreHarness(msgspec.structs.replace(DRAW, retry=msgspec.structs.replace(DRAW.retry, on="any")))
    come(harness)
    harness.submit()
    (leased,) = harness.do(take())
    if submitted:
        harness.do(c.RecordSubmission(lease=leased.lease, provider="p", ref="r"))
    harness.do(c.Fail(lease=leased.lease, retryable=True, resume=True))
    harness.advance(10)
    harness.tick()
    (retrying,) = harness.do(take())
    assert retrying.resumed == (c.PreviousSubmission("p", "r") if submitted else None)


def test_what_was_submitted_is_found_however_often_its_tries_are_cut_short() -> None:
    harness = CoreHarness(DRAW)
    come(harness)
    harness.submit()
    (leased,) = harness.do(take())
    harness.do(c.RecordSubmission(lease=leased.lease, provider="p", ref="r"))
    for _ in range(3):
        harness.do(c.Requeue(lease=leased.lease, reason="spot"))
        (leased,) = harness.do(take())
        assert leased.resumed == c.PreviousSubmission("p", "r")


def test_a_claim_that_waited_gives_back_nothing_that_its_worker_got_elsewhere_since() -> None:
    """It said what the worker holds when it came; another server may have given it more meanwhile."""
    harness = CoreHarness(DRAW)
    come(harness, concurrency=3)
    harness.submit()
    (leased,) = harness.do(take(held_task_ids=()))
    harness.advance(5)
    harness.submit()
    assert len(harness.do(take(held_task_ids=(), waited_seconds=8.0))) == 1
    assert harness.get(Task, leased.lease.task_id).status == "running"
    harness.submit()
    harness.do(take(held_task_ids=(), waited_seconds=4.0))
    assert harness.get(Attempt, (leased.lease.task_id, 1)).outcome == "requeued", "the answer to it was lost"


def test_an_approval_that_was_withdrawn_does_not_come_back_by_itself() -> None:
    harness = CoreHarness(DRAW)
    come(harness)
    harness.do(c.UpdateWorker(worker_id="gpu", approved=False))
    harness.do(c.Deregister(worker_id="gpu", session=SECRET))
    assert come(harness, token=OTHER).status == "pending"


def test_a_worker_is_not_put_out_of_work_by_a_slip_of_the_pen() -> None:
    harness = CoreHarness(DRAW)
    come(harness, kinds=("draw", "upscale"))
    refused = harness.expect_refusal(c.UpdateWorker(worker_id="gpu", kinds=("upscal",)))
    assert (refused.code, refused.message) == (
        "kind_not_offered", "Worker 'gpu' does not offer upscal: assign at least one of draw, upscale.",
    )  # fmt: skip
    assert harness.do(c.UpdateWorker(worker_id="gpu", kinds=("upscale", "soon"))).kinds == ("upscale",)


@pytest.mark.parametrize("wrong", [{"ref": ""}, {"ref": "x" * 256}, {"provider": ""}, {"ref": "a\nb"}])
def test_a_reference_that_could_not_be_one_is_refused(wrong: dict[str, str]) -> None:
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    said = {"provider": "p", "ref": "r", **wrong}
    refusal = harness.expect_refusal(c.RecordSubmission(lease=lease, provider=said["provider"], ref=said["ref"]))
    assert refusal.code in {"invalid_ref", "invalid_provider"}
