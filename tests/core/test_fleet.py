"""The fleet's rules: who is let in, what it may take, and what becomes of its work when it goes."""

from typing import Any

import msgspec
import pytest

from callsheet.core import commands as c
from callsheet.core.limits import Limits
from callsheet.core.rows import Attempt, Audit, Task, Worker
from tests.core.world import DRAW, World

SECRET = "1" * 64
OTHER = "2" * 64


def come(world: World, worker: str = "gpu", token: str = SECRET, **more: Any) -> c.WorkerState:
    state: c.WorkerState = world.do(
        c.Register(**{"worker_id": worker, "kinds": ("draw",), "token_hash": token, "concurrency": 2, **more})
    )
    return state


def take(worker: str = "gpu", session: str = SECRET, **more: Any) -> c.Claim:
    return c.Claim(**{"worker_id": worker, "kinds": ("draw",), "session": session, **more})


def held(world: World) -> World:
    """Let a worker hold two tasks."""
    come(world)
    for _ in range(2):
        world.submit()
    assert len(world.do(take(count=2))) == 2
    return world


def actions(world: World) -> list[str]:
    return [line.action for line in world.all(Audit) if line.action.startswith("worker.")]


# -- coming


def test_a_worker_comes_and_comes_again_under_its_name() -> None:
    """R200, R203, R205, R207, R208."""
    world = World(DRAW)
    assert come(world) == c.WorkerState("gpu", "approved", ("draw",))
    world.pass_(5)
    assert come(world, token=OTHER, kinds=("sing", "draw"), concurrency=4).kinds == ("draw", "sing")
    worker = world.get(Worker, "gpu")
    assert (worker.token_hash, worker.starts, worker.concurrency) == (OTHER, 2, 4)
    assert worker.started_at == worker.created_at + 5_000_000
    assert actions(world) == ["worker.register"] * 2


def test_a_restart_gives_back_what_was_held_without_using_up_a_try() -> None:
    """R203, R212, H25."""
    world = held(World(DRAW))
    assert come(world, token=OTHER).requeued == 2
    assert [(task.status, task.attempts_charged, task.ready) for task in world.all(Task)] == [("retried", 0, 1)] * 2
    assert {attempt.outcome for attempt in world.all(Attempt)} == {"requeued"}
    assert len(world.do(take(session=OTHER, count=2))) == 2


def test_a_registration_whose_answer_was_lost_is_not_a_second_start() -> None:
    world = held(World(DRAW))
    assert come(world).requeued == 0
    assert world.get(Worker, "gpu").starts == 1


def test_the_fleet_has_a_cap_that_the_gone_do_not_count_in() -> None:
    """R201, weak point 16 of the original."""
    world = World(DRAW, limits=Limits(workers_max=2))
    come(world, "a")
    come(world, "b", "b" * 64)
    third = c.Register(worker_id="c", kinds=("draw",), token_hash="c" * 64)
    assert world.refused(third).details == {"workers": 2, "max": 2}
    come(world, "b", "d" * 64)
    world.do(c.Deregister(worker_id="a", session=SECRET))
    world.do(third)
    assert world.refused(c.Register(worker_id="a", kinds=("draw",), token_hash=OTHER)).code == "fleet_full"


def test_the_cap_holds_within_one_batch() -> None:
    world = World(DRAW, limits=Limits(workers_max=3))
    many = [c.Register(worker_id=f"w{n}", kinds=("draw",), token_hash=f"{n}" * 64) for n in range(5)]
    answers = world.batch(*many)
    assert sum(isinstance(answer, c.WorkerState) for answer in answers) == 3


# -- claims


@pytest.mark.parametrize("how", ["nobody", "another token", "an earlier start", "revoked", "gone"])
def test_who_is_not_let_in_takes_nothing(how: str) -> None:
    """R195, R210, L6: decided in the very transaction that would lease."""
    world = World(DRAW)
    world.submit()
    claim = take()
    if how != "nobody":
        come(world)
    if how == "another token":
        claim = take(session=OTHER)
    elif how == "an earlier start":
        come(world, token=OTHER)
    elif how == "revoked":
        world.do(c.RevokeWorker(worker_id="gpu"))
    elif how == "gone":
        world.do(c.Deregister(worker_id="gpu", session=SECRET))
    assert world.refused(claim).code == "not_admitted"


def test_a_worker_waits_for_its_approval_and_for_its_kinds() -> None:
    """R195, R209."""
    world = World(DRAW)
    world.submit()
    come(world, approved=False, kinds=("draw", "sing"))
    assert world.refused(take()).code == "worker_not_approved"
    world.do(c.SetWorker(worker_id="gpu", approved=True, kinds=("sing",)))
    assert world.refused(take()).code == "kind_not_assigned"
    world.do(c.SetWorker(worker_id="gpu", kinds=()))
    assert len(world.do(take())) == 1


def test_a_draining_worker_gets_no_more_and_a_new_start_begins_fresh() -> None:
    """R195."""
    world = World(DRAW)
    world.submit()
    come(world)
    world.do(c.SetWorker(worker_id="gpu", draining=True))
    assert world.refused(take()).code == "worker_draining"
    come(world, token=OTHER)
    assert len(world.do(take(session=OTHER))) == 1


def test_no_worker_holds_more_than_it_can_do_at_once_however_its_claims_come() -> None:
    """R156, L8."""
    world = World(DRAW)
    come(world, concurrency=3)
    for _ in range(9):
        world.submit()
    first, second, third = world.batch(take(count=2), take(count=2), take())
    assert (len(first), len(second)) == (2, 1)
    assert third.code == "worker_full"
    world.do(c.Complete(lease=first[0].lease))
    assert len(world.do(take(count=5))) == 1


def test_what_a_worker_never_heard_of_is_given_back() -> None:
    world = held(World(DRAW))
    known, lost = sorted(task.id for task in world.all(Task))
    assert world.do(take(holds=(known,))) == []  # what is free now is offered to the next claim
    assert [world.get(Task, key).status for key in (known, lost)] == ["running", "retried"]
    (leased,) = world.do(take(holds=(known,)))
    assert (leased.lease.task_id, leased.lease.attempt) == (lost, 2)


def test_what_went_astray_is_found_even_if_the_worker_names_a_lease_that_it_lost() -> None:
    world = held(World(DRAW))
    (astray,) = [task.id for task in world.all(Task)][1:]
    mine = [task.id for task in world.all(Task) if task.id != astray]
    assert world.do(take(holds=(*mine, "a lease of yesterday"))) == []
    assert world.get(Task, astray).status == "retried"


# -- going


@pytest.mark.parametrize(
    ("leave", "status", "action"),
    [
        (c.Deregister(worker_id="gpu", session=SECRET, reason="spot"), "gone", "worker.deregister"),
        (c.RevokeWorker(worker_id="gpu"), "revoked", "worker.revoke"),
    ],
)
def test_who_goes_or_is_put_out_loses_nothing_of_the_work(leave: c.Command, status: str, action: str) -> None:
    """R210 to R212."""
    world = held(World(DRAW))
    assert (world.do(leave).status, actions(world)[-1]) == (status, action)
    assert [(task.status, task.attempts_charged) for task in world.all(Task)] == [("retried", 0)] * 2
    worker = world.get(Worker, "gpu")
    assert (worker.token_hash, worker.ended_at) == (None, world.now)


def test_a_goodbye_from_an_earlier_start_changes_nothing() -> None:
    world = held(World(DRAW))
    come(world, token=OTHER)
    assert world.refused(c.Deregister(worker_id="gpu", session=SECRET)).code == "not_admitted"


def test_a_revoked_worker_comes_back_only_when_it_is_approved() -> None:
    world = World(DRAW)
    come(world)
    world.do(c.RevokeWorker(worker_id="gpu"))
    assert world.refused(c.Register(worker_id="gpu", kinds=("draw",), token_hash=OTHER)).code == "worker_revoked"
    assert world.do(c.SetWorker(worker_id="gpu", approved=True)).status == "gone"
    assert come(world, token=OTHER).status == "approved"


def test_a_rotated_token_keeps_the_leases_and_one_that_ended_has_none() -> None:
    world = held(World(DRAW))
    lease = next(iter(world.all(Attempt)))
    world.do(c.RotateWorker(worker_id="gpu", token_hash=OTHER))
    assert world.refused(take()).code == "not_admitted"
    assert world.get(Task, lease.task_id).status == "running"
    world.do(c.RevokeWorker(worker_id="gpu"))
    assert world.refused(c.RotateWorker(worker_id="gpu", token_hash=SECRET)).code == "worker_ended"


def test_a_worker_that_is_silent_for_long_makes_room_and_one_that_was_heard_stays() -> None:
    """R203."""
    world = World(DRAW)
    come(world, "quiet")
    come(world, "loud", OTHER)
    world.pass_(7_199)
    assert world.do(c.Seen(workers=("loud", "nobody"))) == 1
    assert world.do(c.TickWorker(worker_id="quiet")).status == "approved"
    world.pass_(1)
    assert [world.do(c.TickWorker(worker_id=name)).status for name in ("quiet", "loud")] == ["gone", "approved"]
    assert actions(world)[-1] == "worker.silent"


def test_a_worker_that_nobody_knows_is_unknown() -> None:
    world = World(DRAW)
    for command in (
        c.SetWorker(worker_id="x"), c.RevokeWorker(worker_id="x"), c.RotateWorker(worker_id="x", token_hash=OTHER),
        c.TickWorker(worker_id="x"),
    ):  # fmt: skip
        assert world.refused(command).code == "worker_not_found"


def test_an_approval_lasts_when_a_worker_goes_and_comes_again_and_ends_when_it_is_revoked() -> None:
    world = World(DRAW)
    assert come(world, approved=False).status == "pending"
    world.do(c.SetWorker(worker_id="gpu", approved=True))
    world.do(c.Deregister(worker_id="gpu", session=SECRET))
    assert come(world, token=OTHER, approved=False).status == "approved"
    world.do(c.RevokeWorker(worker_id="gpu"))
    world.do(c.SetWorker(worker_id="gpu", approved=True))
    assert come(world, token="3" * 64, approved=False).status == "approved"  # approved once, not twice
    world.do(c.SetWorker(worker_id="gpu", approved=False))
    assert world.refused(take(session="3" * 64)).code == "worker_not_approved"
    assert come(world, token="4" * 64, approved=False).status == "pending"


# -- whose lease


def test_a_lease_is_its_workers_and_what_was_submitted_is_found_by_the_next_try() -> None:
    """R159."""
    world = held(World(DRAW))
    task = next(task for task in world.all(Task) if task.status == "running")
    world.do(c.RevokeWorker(worker_id="gpu"))
    come(world, "b", OTHER)
    (leased,) = world.do(take("b", OTHER))
    for command in (
        c.Heartbeat(lease=leased.lease, worker_id="gpu"), c.Complete(lease=leased.lease, worker_id="gpu"),
        c.Submitting(lease=leased.lease, provider="p", ref="r", worker_id="gpu"),
    ):  # fmt: skip
        assert world.refused(command).code == "lease_not_found"
    world.do(c.Submitting(lease=leased.lease, provider="p", ref="r", worker_id="b"))
    world.do(c.Requeue(lease=leased.lease, reason="spot", cause="spot", worker_id="b"))
    again = world.do(take("b", OTHER, count=2))
    resumed = {one.lease.task_id: one.resumed for one in again}
    assert resumed[leased.lease.task_id] == c.Resumed("p", "r")
    assert task.id in resumed
    assert msgspec.json.encode(resumed)
    told = [event.data for event in world.events(leased.lease.job_id)]
    assert "spot" in str(told)
    assert '"r"' not in str(told)


def test_a_failed_try_is_not_resumed() -> None:
    world = World(msgspec.structs.replace(DRAW, retry=msgspec.structs.replace(DRAW.retry, on="any")))
    come(world)
    world.submit()
    (leased,) = world.do(take())
    world.do(c.Submitting(lease=leased.lease, provider="p", ref="r"))
    world.do(c.Fail(lease=leased.lease, retryable=True))
    world.pass_(10)
    world.tick()
    (again,) = world.do(take())
    assert again.resumed is None


@pytest.mark.parametrize("submitted", [True, False])
def test_a_failed_try_whose_work_elsewhere_is_still_good_is_resumed(submitted: bool) -> None:
    """Paid work that succeeded is collected by the next try, not done again because a download failed."""
    world = World(msgspec.structs.replace(DRAW, retry=msgspec.structs.replace(DRAW.retry, on="any")))
    come(world)
    world.submit()
    (leased,) = world.do(take())
    if submitted:
        world.do(c.Submitting(lease=leased.lease, provider="p", ref="r"))
    world.do(c.Fail(lease=leased.lease, retryable=True, resume=True))
    world.pass_(10)
    world.tick()
    (again,) = world.do(take())
    assert again.resumed == (c.Resumed("p", "r") if submitted else None)


def test_what_was_submitted_is_found_however_often_its_tries_are_cut_short() -> None:
    world = World(DRAW)
    come(world)
    world.submit()
    (leased,) = world.do(take())
    world.do(c.Submitting(lease=leased.lease, provider="p", ref="r"))
    for _ in range(3):
        world.do(c.Requeue(lease=leased.lease, reason="spot"))
        (leased,) = world.do(take())
        assert leased.resumed == c.Resumed("p", "r")


def test_a_claim_that_waited_gives_back_nothing_that_its_worker_got_elsewhere_since() -> None:
    """It said what the worker holds when it came; another server may have given it more meanwhile."""
    world = World(DRAW)
    come(world, concurrency=3)
    world.submit()
    (leased,) = world.do(take(holds=()))
    world.pass_(5)
    world.submit()
    assert len(world.do(take(holds=(), waited_seconds=8.0))) == 1
    assert world.get(Task, leased.lease.task_id).status == "running"
    world.submit()
    world.do(take(holds=(), waited_seconds=4.0))
    assert world.get(Attempt, (leased.lease.task_id, 1)).outcome == "requeued", "the answer to it was lost"


def test_an_approval_that_was_withdrawn_does_not_come_back_by_itself() -> None:
    world = World(DRAW)
    come(world)
    world.do(c.SetWorker(worker_id="gpu", approved=False))
    world.do(c.Deregister(worker_id="gpu", session=SECRET))
    assert come(world, token=OTHER).status == "pending"


def test_a_worker_is_not_put_out_of_work_by_a_slip_of_the_pen() -> None:
    world = World(DRAW)
    come(world, kinds=("draw", "upscale"))
    refused = world.refused(c.SetWorker(worker_id="gpu", kinds=("upscal",)))
    assert (refused.code, refused.message) == (
        "kind_not_offered", "gpu does not do upscal; it offers draw, upscale.",
    )  # fmt: skip
    assert world.do(c.SetWorker(worker_id="gpu", kinds=("upscale", "soon"))).kinds == ("upscale",)


@pytest.mark.parametrize("wrong", [{"ref": ""}, {"ref": "x" * 256}, {"provider": ""}, {"ref": "a\nb"}])
def test_a_reference_that_could_not_be_one_is_refused(wrong: dict[str, str]) -> None:
    world = World(DRAW)
    _, lease = world.started()
    said = {"provider": "p", "ref": "r", **wrong}
    refusal = world.refused(c.Submitting(lease=lease, provider=said["provider"], ref=said["ref"]))
    assert refusal.code in {"invalid_ref", "invalid_provider"}
