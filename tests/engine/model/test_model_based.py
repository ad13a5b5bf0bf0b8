"""Random lives against a small model: after every step, statuses, attempts, money and the fleet are what it says."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from callsheet.config import Settings
from callsheet.core.decisions import claim, fleet
from callsheet.core.decisions.lease import expire_lease
from callsheet.core.model import commands as c
from callsheet.core.model.errors import Conflict
from callsheet.core.model.rows import Worker
from callsheet.core.policy.engine_limits import Limits
from tests.engine.model.job_state_machine import PLANS, USERS, EngineMachine
from tests.support.engine.concurrency import find_violations
from tests.support.engine.engine_harness import EngineHarness
from tests.support.engine.fleet_model import FleetModel

NAMES = st.sampled_from(["gpu-1", "gpu-1", "gpu-2", "gpu-3"])
KINDS = st.sampled_from([("draw",), ("cut", "draw"), ("cut",)])
WORKERS_MAX, SILENCE_SECONDS = 2, 45
SETTINGS = Settings(
    limits=Limits(workers_max=WORKERS_MAX, worker_timeout_seconds=SILENCE_SECONDS), database_retry_seconds=5
)  # fmt: skip
PHASES = {"sqlite": (Phase.generate, Phase.shrink), "postgresql": (Phase.generate,)}
"""A life that fails on both is made small on SQLite, where it costs less."""
EXAMPLES = {"sqlite": 60, "postgresql": 16}


def bounds(database: str) -> settings:
    return settings(
        max_examples=EXAMPLES[database], phases=PHASES[database], stateful_step_count=40, derandomize=True,
        deadline=None, database=None, suppress_health_check=list(HealthCheck),
    )  # fmt: skip


class FleetStateMachine(EngineMachine):
    """The same, with workers that are let in by name, and an operator who has his way with them."""

    def __init__(self, harness: EngineHarness, reached: set[str]) -> None:
        super().__init__(harness, reached)
        self.fleet = FleetModel(self.model, WORKERS_MAX, SILENCE_SECONDS)
        self.tokens = [f"{0:064x}"]
        for name, concurrency in (("gpu-1", 1), ("gpu-2", 2)):
            self.register(name, ("draw", "cut"), concurrency, approved=True, same=False)

    def token(self) -> str:
        self.tokens.append(f"{len(self.tokens):064x}")
        return self.tokens[-1]

    def run_and_check(self, command, expected, what=""):
        """Let somebody come, go or be dealt with, and look at the worker afterwards."""
        answer, released = self.compare(command, expected)
        if answer is not None:
            worker = self.fleet.workers[command.worker_id]
            assert (answer.status, answer.kinds, answer.requeued) == (worker.status, worker.kinds, released)
            self.reached |= {f"{what} gave back"} if released else set()

    # -- coming, working, going

    @rule(name=NAMES, kinds=KINDS, concurrency=st.sampled_from([1, 1, 2]),
          approved=st.sampled_from([True, True, False]), same=st.sampled_from([False, False, True]))  # fmt: skip
    def register(self, name, kinds, concurrency, approved, same):
        self.claim_next(name)
        known = self.fleet.workers.get(name)
        token = known.token if same and known and known.token else self.token()
        command = c.Register(
            worker_id=name, kinds=kinds, token_hash=token, concurrency=concurrency, approved=approved
        )  # fmt: skip
        self.run_and_check(
            command, lambda: self.fleet.register(name, kinds, token, concurrency, approved=approved), "a restart"
        )  # fmt: skip

    @rule(name=NAMES, kinds=KINDS, count=st.integers(1, 3), knows=st.sampled_from(["all", "unsaid"]),
          stale=st.integers(0, 5))  # fmt: skip
    def work(self, name, kinds, count, knows, stale):
        """Claim as a worker of the fleet; one that knows less than it holds did not hear an answer."""
        known = self.fleet.workers.get(name)
        token = known.token if stale and known and known.token else self.tokens[-1 - stale % len(self.tokens)]
        mine = tuple(task.id for _, task in self.fleet.tasks_of(name))
        held_task_ids = {"all": mine, "unsaid": None, "less": mine[1:]}[knows]
        before = self.model.ready(*kinds)
        command = c.Claim(worker_id=name, kinds=kinds, count=count, session=token, held_task_ids=held_task_ids)
        got, places = self.compare(command, lambda: self.fleet.claim(name, token, kinds, held_task_ids))
        if got is None:
            return
        most, after = min(count, places), self.model.ready(*kinds)
        ids = {leased.lease.task_id for leased in got}
        assert ids <= after
        if before == after:  # what came back just now may be had the next time
            assert len(ids) == min(most, len(after))
        assert len(ids) <= most
        self.reached |= {"an answer was lost"} if knows == "less" and mine else set()
        self.record_leases(got, name)

    @rule(name=NAMES, kinds=KINDS)
    def lose_an_answer(self, name, kinds):
        self.claim_next(name)
        self.work(name, kinds, count=1, knows="less", stale=1)

    def claim_next(self, name):
        """Do what a worker does next, whatever was decided about it."""
        known = self.fleet.workers.get(name)
        kinds = (known and known.kinds) or ("draw",)
        if not self.model.ready(*kinds):
            self.submit(USERS[1], PLANS[0] if "draw" in kinds else PLANS[2], 1, None)
        self.work(name, kinds, count=1, knows="all", stale=1)

    @rule(name=NAMES, stale=st.sampled_from([False, False, True]))
    def deregister(self, name, stale):
        self.claim_next(name)
        known = self.fleet.workers.get(name)
        token = known.token if known and known.token and not stale else self.tokens[0]
        self.run_and_check(
            c.Deregister(worker_id=name, session=token), lambda: self.fleet.deregister(name, token), "a goodbye"
        )

    @rule(name=NAMES)
    def heartbeat_all(self, name):
        """What a worker does all the time, with all that it holds; and now and then that it was heard is noted."""
        self.harness.do(c.RecordHeartbeats(workers=(name,)))
        self.fleet.record_heartbeat(name)
        tasks_of = {task.id for _, task in self.fleet.tasks_of(name)}
        for lease in [lease for lease in self.live() if lease.task_id in tasks_of]:
            self._heartbeat(lease, name)

    @rule(name=NAMES)
    def fall_silent(self, name):
        """Be heard of no more, while a lease still lasts."""
        self.claim_next(name)
        self.advance(SILENCE_SECONDS + 1)
        self.run_and_check(c.TickWorker(worker_id=name), lambda: self.fleet.tick(name), "silence")

    # -- what an operator does

    def decide(self, name, expected, what, **change):
        """Carry out what an operator decided, and see what the worker notices of it."""
        self.run_and_check(c.UpdateWorker(worker_id=name, **change), expected, what)
        self.claim_next(name)

    @rule(name=NAMES, draining=st.sampled_from([True, True, False]))
    def drain(self, name, draining):
        self.decide(name, lambda: self.fleet.drain(name, draining=draining), "drain", draining=draining)

    @rule(name=NAMES, approved=st.booleans())
    def approve(self, name, approved):
        self.decide(name, lambda: self.fleet.approve(name, approved=approved), "approve", approved=approved)

    @rule(name=NAMES, kinds=st.sampled_from([("draw",), ("cut",), ()]))
    def assign(self, name, kinds):
        self.decide(name, lambda: self.fleet.assign(name, *kinds), "assign", kinds=kinds)
        self.work(name, ("cut", "draw"), count=1, knows="all", stale=1)  # it asks for all that it can do

    @rule(name=NAMES, again=st.booleans())
    def revoke(self, name, again):
        self.claim_next(name)
        self.run_and_check(c.RevokeWorker(worker_id=name), lambda: self.fleet.revoke(name), "revoke")
        self.register(name, ("draw",), 1, approved=True, same=False)
        if again:
            self.approve(name, approved=True)

    @rule(name=NAMES)
    def rotate(self, name):
        token = self.token()
        self.run_and_check(
            c.RotateWorker(worker_id=name, token_hash=token), lambda: self.fleet.rotate(name, token), "rotate"
        )

    # -- what must always be true

    @invariant()
    def workers_are_as_the_model_says(self):
        found = self.read_connection.run(
            "SELECT id, status, approved_at IS NOT NULL, token_hash, concurrency, starts, draining_at IS NOT NULL, "
            "last_seen_at FROM worker"
        )
        assert {row[0]: tuple(row[1:]) for row in found} == {
            name: worker.seen for name, worker in self.fleet.workers.items()
        }

    @invariant()
    def nobody_holds_more_than_it_can_do_and_who_is_out_holds_nothing(self):
        found = self.read_connection.run(
            "SELECT worker_id FROM task WHERE status = 'running' AND token_hash IS NOT NULL"
        )
        tasks_of = Counter(row[0] for row in found)
        for name, worker in self.fleet.workers.items():
            assert tasks_of[name] <= (worker.concurrency if worker.live else 0)


REACHED = {
    "sqlite": {
        "completed", "failed", "canceled", "expired", "paused", "running", "queued", "run 2", "lost", "requeued",
        "worker_full", "invalid_worker_token", "a restart gave back", "revoke gave back",
    },
    "postgresql": {"completed", "failed", "canceled", "requeued", "invalid_worker_token", "a restart gave back"},
}  # fmt: skip
"""What the examples must at least come to, or the rules are too timid."""


def test_random_lives_agree_with_the_model(database_url):
    """R27, R34, R71, R194, R195, R208, R210, R241, R261, R273, R274, H2, H7, H8, H16-H20."""
    reached: set[str] = set()
    with EngineHarness(database_url, SETTINGS) as harness:
        begin = partial(FleetStateMachine, harness, reached)
        run_state_machine_as_test(begin, settings=bounds(harness.database.name))  # type: ignore[arg-type]
        assert find_violations(harness) == []
    assert reached >= REACHED[harness.database.name]


def run_every_rule(life: FleetStateMachine) -> None:
    """Let everything befall the fleet that can, and look after every step."""
    compare: dict[str, Any] = {"kinds": ("cut", "draw"), "approved": True, "same": False}
    steps: list[Callable[[], object]] = [
        lambda: life.register("gpu-3", concurrency=1, **compare),  # two are here, and two may be
        lambda: life.deregister("gpu-2", stale=True),
        lambda: life.deregister("gpu-2", stale=False),
        lambda: life.register("gpu-2", ("draw",), 1, approved=False, same=False),  # its approval lasted
        lambda: life.work("gpu-2", ("cut",), 1, "all", stale=1),
        lambda: life.assign("gpu-2", ("cut",)),
        lambda: life.approve("gpu-2", approved=False),
        lambda: life.approve("gpu-2", approved=True),
        lambda: life.drain("gpu-2", draining=True),
        lambda: life.heartbeat_all("gpu-2"),
        lambda: life.register("gpu-2", concurrency=1, **compare),
        lambda: life.lose_an_answer("gpu-2", ("cut", "draw")),
        lambda: life.work("gpu-2", ("draw",), 1, "all", stale=1),
        lambda: life.fall_silent("gpu-2"),
        lambda: life.rotate("gpu-2"),
        lambda: life.register("gpu-2", concurrency=1, **compare),
        lambda: life.revoke("gpu-2", again=False),
        lambda: life.work("gpu-2", ("draw",), 1, "all", stale=0),
        *(partial(life.report_anything, number, "heartbeat", by) for number in range(9) for by in ("gpu-1", "gpu-2")),
    ]
    for step in steps:
        step()
        life.jobs_are_as_the_model_says()
        life.tasks_are_as_the_model_says()
        life.workers_are_as_the_model_says()
        life.nobody_holds_more_than_it_can_do_and_who_is_out_holds_nothing()


def test_a_life_in_which_everything_befalls_the_fleet_agrees_with_the_model(database_url):
    """What random lives come to seldom: here they come to it for certain."""
    reached: set[str] = set()
    with EngineHarness(database_url, SETTINGS) as harness:
        life = FleetStateMachine(harness, reached)
        run_every_rule(life)
        life.teardown()
    assert reached >= {
        "fleet_full", "worker_revoked", "invalid_worker_token", "worker_not_approved", "worker_draining", "worker_full",
        "kind_not_assigned", "kind_not_offered", "worker_ended", "lease_not_found", "lease_lost",
        "a restart gave back", "a goodbye gave back", "revoke gave back", "silence gave back", "an answer was lost",
    }  # fmt: skip


# -- faults that it must find


def a_restart_costs_an_attempt(ws, job, task, *_said):
    return expire_lease(ws, job, task)


def a_full_worker_gets_more(ws, command, honest=claim.free_slots):
    try:
        return honest(ws, command)
    except Conflict as refusal:
        if refusal.code != "worker_full":
            raise
        return command.count


def a_draining_worker_gets_more(ws, command, honest=claim.free_slots):
    worker = ws.find(Worker, command.worker_id)
    if worker is not None:
        ws.put(replace(worker, draining_at=None))
    return honest(ws, command)


def a_revoked_token_is_still_good(ws, worker, status, reason, honest=fleet._end_worker):  # noqa: SLF001 - where the fault is
    state = honest(ws, worker, status, reason)
    if status == "revoked":
        ws.put(replace(ws.get(Worker, worker.id), token_hash=worker.token_hash))
    return state


def a_task_of_a_lost_claim_stays_leased(
    ws, worker_id, reason, keep_task_ids=None, leased_until=None, honest=claim.requeue_held_tasks
):
    return honest(ws, worker_id, reason, (), leased_until) if keep_task_ids is None else 0


FAULTS = [
    (claim, "requeue_task", a_restart_costs_an_attempt),
    (claim, "free_slots", a_full_worker_gets_more),
    (claim, "free_slots", a_draining_worker_gets_more),
    (claim, "requeue_held_tasks", a_task_of_a_lost_claim_stays_leased),
    (fleet, "_end_worker", a_revoked_token_is_still_good),
]


@pytest.mark.parametrize(("module", "name", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_a_planted_fault_is_found(module, name, fault, monkeypatch, tmp_path):
    monkeypatch.setattr(module, name, fault)
    with EngineHarness(str(tmp_path / "callsheet.db"), SETTINGS) as harness:
        life = FleetStateMachine(harness, set())
        with pytest.raises(AssertionError):
            run_every_rule(life)
        life.read_connection.close()
