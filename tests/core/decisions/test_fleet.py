"""Workers: registration, claims, deregistration and the tasks they hold."""

from typing import Any

import msgspec
import pytest

from callsheet.core.model import commands as c
from callsheet.core.model.rows import Attempt, Audit, Task, Worker
from callsheet.core.policy.engine_limits import Limits
from tests.core.rule_harness import DRAW, CoreHarness

SECRET = "1" * 64
OTHER = "2" * 64


def register(harness: CoreHarness, worker: str = "gpu", token: str = SECRET, **more: Any) -> c.WorkerState:
    state: c.WorkerState = harness.do(
        c.Register(**{"worker_id": worker, "kinds": ("draw",), "token_hash": token, "concurrency": 2, **more})
    )
    return state


def claim(worker: str = "gpu", token_hash: str = SECRET, **more: Any) -> c.Claim:
    return c.Claim(**{"worker_id": worker, "kinds": ("draw",), "token_hash": token_hash, **more})


def harness_with_two_leases() -> CoreHarness:
    """Return a harness in which the worker holds the leases of two tasks."""
    harness = CoreHarness(DRAW)
    register(harness)
    for _ in range(2):
        harness.submit()
    assert len(harness.do(claim(count=2))) == 2
    return harness


def audited_actions(harness: CoreHarness) -> list[str]:
    return [entry.action for entry in harness.all(Audit) if entry.action.startswith("worker.")]


# -- registration


def test_a_worker_registers_and_registers_again_under_its_id() -> None:
    """R199, R203, R207, R208."""
    harness = CoreHarness(DRAW)
    assert register(harness) == c.WorkerState("gpu", "approved", ("draw",))
    harness.advance(5)
    assert register(harness, token=OTHER, kinds=("sing", "draw"), concurrency=4).kinds == ("draw", "sing")
    worker = harness.get(Worker, "gpu")
    assert (worker.token_hash, worker.starts, worker.concurrency) == (OTHER, 2, 4)
    assert worker.started_at == worker.created_at + 5_000_000
    assert audited_actions(harness) == ["worker.register"] * 2


def test_the_tasks_of_a_restarted_worker_are_requeued_without_counting_an_attempt() -> None:
    """R203, H25."""
    harness = harness_with_two_leases()
    assert register(harness, token=OTHER).requeued == 2
    assert [(task.status, task.attempts_counted, task.ready) for task in harness.all(Task)] == [("retried", 0, 1)] * 2
    assert {attempt.outcome for attempt in harness.all(Attempt)} == {"requeued"}
    assert len(harness.do(claim(token_hash=OTHER, count=2))) == 2


def test_a_worker_that_registers_again_keeps_the_leases_of_the_tasks_it_runs() -> None:
    """R195."""
    harness = harness_with_two_leases()
    running, lost = (task.id for task in harness.all(Task))
    harness.do(c.UpdateWorker(worker_id="gpu", draining=True))
    assert register(harness, token=OTHER, held_task_ids=(running, "unknown")).requeued == 1
    assert [harness.get(Task, key).status for key in (running, lost)] == ["running", "retried"]
    assert harness.get(Worker, "gpu").draining_at is not None


def test_a_worker_that_registers_again_keeps_no_more_leases_than_its_concurrency() -> None:
    """L8."""
    harness = harness_with_two_leases()
    held = tuple(task.id for task in harness.all(Task))
    assert register(harness, token=OTHER, held_task_ids=held, concurrency=1).requeued == 1


def test_a_repeated_registration_with_the_same_token_is_not_a_second_start() -> None:
    harness = harness_with_two_leases()
    assert register(harness).requeued == 0
    assert harness.get(Worker, "gpu").starts == 1


def test_the_number_of_workers_is_limited_and_ended_workers_do_not_count() -> None:
    """R201."""
    harness = CoreHarness(DRAW, limits=Limits(workers_max=2))
    register(harness, "a")
    register(harness, "b", "b" * 64)
    third = c.Register(worker_id="c", kinds=("draw",), token_hash="c" * 64)
    assert harness.expect_refusal(third).details == {"workers": 2, "max": 2}
    register(harness, "b", "d" * 64)
    harness.do(c.Deregister(worker_id="a", token_hash=SECRET))
    harness.do(third)
    assert harness.expect_refusal(c.Register(worker_id="a", kinds=("draw",), token_hash=OTHER)).code == "fleet_full"


def test_the_limit_of_workers_holds_within_one_batch() -> None:
    harness = CoreHarness(DRAW, limits=Limits(workers_max=3))
    registrations = [c.Register(worker_id=f"w{n}", kinds=("draw",), token_hash=f"{n}" * 64) for n in range(5)]
    answers = harness.batch(*registrations)
    assert sum(isinstance(answer, c.WorkerState) for answer in answers) == 3


# -- claims


@pytest.mark.parametrize("how", ["unregistered", "another token", "an earlier start", "revoked", "deregistered"])
def test_a_claim_without_a_valid_worker_token_is_refused(how: str) -> None:
    """R195, R210, L6."""
    harness = CoreHarness(DRAW)
    harness.submit()
    command = claim()
    if how != "unregistered":
        register(harness)
    if how == "another token":
        command = claim(token_hash=OTHER)
    elif how == "an earlier start":
        register(harness, token=OTHER)
    elif how == "revoked":
        harness.do(c.RevokeWorker(worker_id="gpu"))
    elif how == "deregistered":
        harness.do(c.Deregister(worker_id="gpu", token_hash=SECRET))
    assert harness.expect_refusal(command).code == "invalid_worker_token"


def test_a_worker_claims_only_when_it_is_approved_and_its_kinds_are_assigned() -> None:
    """R209."""
    harness = CoreHarness(DRAW)
    harness.submit()
    register(harness, approved=False, kinds=("draw", "sing"))
    assert harness.expect_refusal(claim()).code == "worker_not_approved"
    harness.do(c.UpdateWorker(worker_id="gpu", approved=True, kinds=("sing",)))
    assert harness.expect_refusal(claim()).code == "kind_not_assigned"
    harness.do(c.UpdateWorker(worker_id="gpu", kinds=()))
    assert len(harness.do(claim())) == 1


def test_a_draining_worker_claims_nothing_until_it_starts_again() -> None:
    """R195."""
    harness = CoreHarness(DRAW)
    harness.submit()
    register(harness)
    harness.do(c.UpdateWorker(worker_id="gpu", draining=True))
    assert harness.expect_refusal(claim()).code == "worker_draining"
    register(harness, token=OTHER)
    assert len(harness.do(claim(token_hash=OTHER))) == 1


def test_a_worker_never_holds_more_leases_than_its_concurrency() -> None:
    """R156, L8."""
    harness = CoreHarness(DRAW)
    register(harness, concurrency=3)
    for _ in range(9):
        harness.submit()
    first, second, third = harness.batch(claim(count=2), claim(count=2), claim())
    assert (len(first), len(second)) == (2, 1)
    assert third.code == "worker_full"
    harness.do(c.Complete(lease=first[0].lease))
    assert len(harness.do(claim(count=5))) == 1


def test_a_lease_that_the_worker_does_not_report_as_held_is_requeued() -> None:
    harness = harness_with_two_leases()
    reported, lost = sorted(task.id for task in harness.all(Task))
    assert harness.do(claim(held_task_ids=(reported,))) == []  # the next claim gets the requeued task
    assert [harness.get(Task, key).status for key in (reported, lost)] == ["running", "retried"]
    (leased,) = harness.do(claim(held_task_ids=(reported,)))
    assert (leased.lease.task_id, leased.lease.attempt) == (lost, 2)


def test_an_unreported_lease_is_requeued_even_if_the_worker_reports_a_lease_that_it_lost() -> None:
    harness = harness_with_two_leases()
    reported, unreported = [task.id for task in harness.all(Task)]
    assert harness.do(claim(held_task_ids=(reported, "lost"))) == []
    assert harness.get(Task, unreported).status == "retried"


# -- deregistration and revocation


@pytest.mark.parametrize(
    ("command", "status", "action"),
    [
        (c.Deregister(worker_id="gpu", token_hash=SECRET, reason="spot"), "offline", "worker.deregister"),
        (c.RevokeWorker(worker_id="gpu"), "revoked", "worker.revoke"),
    ],
)
def test_the_tasks_of_a_deregistered_or_revoked_worker_are_requeued(
    command: c.Command, status: str, action: str
) -> None:
    """R211, R212."""
    harness = harness_with_two_leases()
    assert (harness.do(command).status, audited_actions(harness)[-1]) == (status, action)
    assert [(task.status, task.attempts_counted) for task in harness.all(Task)] == [("retried", 0)] * 2
    worker = harness.get(Worker, "gpu")
    assert (worker.token_hash, worker.ended_at) == (None, harness.now)


def test_a_deregistration_with_the_token_of_an_earlier_start_is_refused() -> None:
    harness = harness_with_two_leases()
    register(harness, token=OTHER)
    assert harness.expect_refusal(c.Deregister(worker_id="gpu", token_hash=SECRET)).code == "invalid_worker_token"


def test_a_revoked_worker_can_register_again_only_after_an_approval() -> None:
    harness = CoreHarness(DRAW)
    register(harness)
    harness.do(c.RevokeWorker(worker_id="gpu"))
    registration = c.Register(worker_id="gpu", kinds=("draw",), token_hash=OTHER)
    assert harness.expect_refusal(registration).code == "worker_revoked"
    assert harness.do(c.UpdateWorker(worker_id="gpu", approved=True)).status == "offline"
    assert register(harness, token=OTHER).status == "approved"


def test_rotating_a_token_keeps_the_leases_and_is_refused_for_an_ended_worker() -> None:
    """R210."""
    harness = harness_with_two_leases()
    attempt = next(iter(harness.all(Attempt)))
    harness.do(c.RotateWorker(worker_id="gpu", token_hash=OTHER))
    assert harness.expect_refusal(claim()).code == "invalid_worker_token"
    assert harness.get(Task, attempt.task_id).status == "running"
    harness.do(c.RevokeWorker(worker_id="gpu"))
    assert harness.expect_refusal(c.RotateWorker(worker_id="gpu", token_hash=SECRET)).code == "worker_ended"


def test_a_worker_without_heartbeats_goes_offline() -> None:
    harness = CoreHarness(DRAW)
    register(harness, "silent")
    register(harness, "active", OTHER)
    harness.advance(7_199)
    assert harness.do(c.RecordHeartbeats(workers=("active", "missing"))) == 1
    assert harness.do(c.TickWorker(worker_id="silent")).status == "approved"
    harness.advance(1)
    assert [harness.do(c.TickWorker(worker_id=name)).status for name in ("silent", "active")] == ["offline", "approved"]
    assert audited_actions(harness)[-1] == "worker.silent"


def test_an_unknown_worker_is_not_found() -> None:
    harness = CoreHarness(DRAW)
    for command in (
        c.UpdateWorker(worker_id="missing"),
        c.RevokeWorker(worker_id="missing"),
        c.RotateWorker(worker_id="missing", token_hash=OTHER),
        c.TickWorker(worker_id="missing"),
    ):
        assert harness.expect_refusal(command).code == "worker_not_found"


def test_an_approval_survives_a_deregistration_and_ends_with_a_revocation() -> None:
    harness = CoreHarness(DRAW)
    assert register(harness, approved=False).status == "pending"
    harness.do(c.UpdateWorker(worker_id="gpu", approved=True))
    harness.do(c.Deregister(worker_id="gpu", token_hash=SECRET))
    assert register(harness, token=OTHER, approved=False).status == "approved"
    harness.do(c.RevokeWorker(worker_id="gpu"))
    harness.do(c.UpdateWorker(worker_id="gpu", approved=True))
    assert (
        register(harness, token="3" * 64, approved=False).status == "approved"
    )  # the new approval survives the registration
    harness.do(c.UpdateWorker(worker_id="gpu", approved=False))
    assert harness.expect_refusal(claim(token_hash="3" * 64)).code == "worker_not_approved"
    assert register(harness, token="4" * 64, approved=False).status == "pending"


# -- leases and submissions


def test_only_its_worker_reports_a_lease_and_the_next_attempt_resumes_the_submission() -> None:
    """R310: no event has the provider reference."""
    harness = harness_with_two_leases()
    task = next(task for task in harness.all(Task) if task.status == "running")
    harness.do(c.RevokeWorker(worker_id="gpu"))
    register(harness, "b", OTHER)
    (leased,) = harness.do(claim("b", OTHER))
    for command in (
        c.Heartbeat(lease=leased.lease, worker_id="gpu"), c.Complete(lease=leased.lease, worker_id="gpu"),
        c.RecordSubmission(lease=leased.lease, provider="p", ref="r", worker_id="gpu"),
    ):  # fmt: skip
        assert harness.expect_refusal(command).code == "lease_not_found"
    harness.do(c.RecordSubmission(lease=leased.lease, provider="p", ref="r", worker_id="b"))
    harness.do(c.Requeue(lease=leased.lease, reason="spot", cause="spot", worker_id="b"))
    next_claim = harness.do(claim("b", OTHER, count=2))
    resumed = {one.lease.task_id: one.resumed for one in next_claim}
    assert resumed[leased.lease.task_id] == c.PreviousSubmission("p", "r")
    assert task.id in resumed
    assert msgspec.json.encode(resumed)
    event_data = str([event.data for event in harness.events(leased.lease.job_id)])
    assert "spot" in event_data
    assert '"r"' not in event_data


def test_a_failed_attempt_is_not_resumed() -> None:
    harness = CoreHarness(msgspec.structs.replace(DRAW, retry=msgspec.structs.replace(DRAW.retry, on="any")))
    register(harness)
    harness.submit()
    (leased,) = harness.do(claim())
    harness.do(c.RecordSubmission(lease=leased.lease, provider="p", ref="r"))
    harness.do(c.Fail(lease=leased.lease, retryable=True))
    harness.advance(10)
    harness.tick()
    (next_claim,) = harness.do(claim())
    assert next_claim.resumed is None


@pytest.mark.parametrize("submitted", [True, False])
def test_a_failed_attempt_that_asks_for_it_is_resumed(submitted: bool) -> None:
    """R308: after a failed download the next attempt collects the result and does not submit again."""
    harness = CoreHarness(msgspec.structs.replace(DRAW, retry=msgspec.structs.replace(DRAW.retry, on="any")))
    register(harness)
    harness.submit()
    (leased,) = harness.do(claim())
    if submitted:
        harness.do(c.RecordSubmission(lease=leased.lease, provider="p", ref="r"))
    harness.do(c.Fail(lease=leased.lease, retryable=True, resume=True))
    harness.advance(10)
    harness.tick()
    (next_claim,) = harness.do(claim())
    assert next_claim.resumed == (c.PreviousSubmission("p", "r") if submitted else None)


def test_a_submission_is_resumed_after_every_requeue() -> None:
    """R308."""
    harness = CoreHarness(DRAW)
    register(harness)
    harness.submit()
    (leased,) = harness.do(claim())
    harness.do(c.RecordSubmission(lease=leased.lease, provider="p", ref="r"))
    for _ in range(3):
        harness.do(c.Requeue(lease=leased.lease, reason="spot"))
        (leased,) = harness.do(claim())
        assert leased.resumed == c.PreviousSubmission("p", "r")


def test_a_claim_that_waited_requeues_no_task_that_its_worker_got_meanwhile() -> None:
    """The claim reports what the worker held when it began; another server may have leased it more since."""
    harness = CoreHarness(DRAW)
    register(harness, concurrency=3)
    harness.submit()
    (leased,) = harness.do(claim(held_task_ids=()))
    harness.advance(5)
    harness.submit()
    assert len(harness.do(claim(held_task_ids=(), waited_seconds=8.0))) == 1
    assert harness.get(Task, leased.lease.task_id).status == "running"
    harness.submit()
    harness.do(claim(held_task_ids=(), waited_seconds=4.0))
    assert harness.get(Attempt, (leased.lease.task_id, 1)).outcome == "requeued", "the worker never got the answer"


def test_a_withdrawn_approval_stays_withdrawn_after_a_new_start() -> None:
    harness = CoreHarness(DRAW)
    register(harness)
    harness.do(c.UpdateWorker(worker_id="gpu", approved=False))
    harness.do(c.Deregister(worker_id="gpu", token_hash=SECRET))
    assert register(harness, token=OTHER).status == "pending"


def test_a_worker_cannot_be_assigned_only_kinds_that_it_does_not_offer() -> None:
    harness = CoreHarness(DRAW)
    register(harness, kinds=("draw", "upscale"))
    refused = harness.expect_refusal(c.UpdateWorker(worker_id="gpu", kinds=("upscal",)))
    assert (refused.code, refused.message) == (
        "kind_not_offered", "Worker 'gpu' does not offer upscal: assign at least one of draw, upscale.",
    )  # fmt: skip
    assert harness.do(c.UpdateWorker(worker_id="gpu", kinds=("upscale", "soon"))).kinds == ("upscale",)


@pytest.mark.parametrize("invalid", [{"ref": ""}, {"ref": "x" * 256}, {"provider": ""}, {"ref": "a\nb"}])
def test_an_invalid_provider_reference_is_refused(invalid: dict[str, str]) -> None:
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    fields = {"provider": "p", "ref": "r", **invalid}
    refusal = harness.expect_refusal(c.RecordSubmission(lease=lease, provider=fields["provider"], ref=fields["ref"]))
    assert refusal.code in {"invalid_ref", "invalid_provider"}
