"""Random histories against a model: after every step, statuses, attempts, credits and workers match it."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from callsheet.core.decisions import claim, fleet
from callsheet.core.decisions.lease import expire_lease
from callsheet.core.model import commands as c
from callsheet.core.model.errors import Conflict
from callsheet.core.model.rows import Worker
from callsheet.core.policy.engine_limits import Limits
from callsheet.settings import Settings
from tests.engine.model.job_state_machine import PLANS, USERS, EngineMachine
from tests.support.engine.engine_harness import EngineHarness
from tests.support.engine.fleet_model import FleetModel

NAMES = st.sampled_from(["gpu-1", "gpu-1", "gpu-2", "gpu-3"])
KINDS = st.sampled_from([("draw",), ("cut", "draw"), ("cut",)])
WORKERS_MAX, TIMEOUT_SECONDS = 2, 45
SETTINGS = Settings(
    limits=Limits(workers_max=WORKERS_MAX, worker_timeout_seconds=TIMEOUT_SECONDS), database_retry_seconds=5
)  # fmt: skip
PHASES = {"sqlite": (Phase.generate, Phase.shrink), "postgresql": (Phase.generate,)}
"""A failing history is shrunk on SQLite only, which is faster."""
EXAMPLES = {"sqlite": 60, "postgresql": 20}


def bounds(database: str) -> settings:
    return settings(
        max_examples=EXAMPLES[database], phases=PHASES[database], stateful_step_count=40, derandomize=True,
        deadline=None, database=None, suppress_health_check=list(HealthCheck),
    )  # fmt: skip


class FleetStateMachine(EngineMachine):
    """The same with registered workers, and an operator who approves, drains, assigns and revokes them."""

    def __init__(self, harness: EngineHarness, reached: set[str]) -> None:
        super().__init__(harness, reached)
        self.fleet = FleetModel(self.model, WORKERS_MAX, TIMEOUT_SECONDS)
        self.tokens = [f"{0:064x}"]
        for name, concurrency in (("gpu-1", 1), ("gpu-2", 2)):
            self.register(name, ("draw", "cut"), concurrency, approved=True, same=False)

    def token(self) -> str:
        self.tokens.append(f"{len(self.tokens):064x}")
        return self.tokens[-1]

    def run_and_check(self, command, expected, action=""):
        """Run a command about a worker on both sides, and compare the worker."""
        answer, released = self.compare(command, expected)
        if answer is not None:
            worker = self.fleet.workers[command.worker_id]
            assert (answer.status, answer.kinds, answer.requeued) == (worker.status, worker.kinds, released)
            self.reached |= {f"{action}: requeued"} if released else set()

    # -- workers

    @rule(name=NAMES, kinds=KINDS, concurrency=st.sampled_from([1, 1, 2]),
          approved=st.sampled_from([True, True, False]), same=st.sampled_from([False, False, True]))  # fmt: skip
    def register(self, name, kinds, concurrency, approved, same, running=()):
        self.claim_next(name)
        known = self.fleet.workers.get(name)
        token = known.token if same and known and known.token else self.token()
        command = c.Register(
            worker_id=name, kinds=kinds, token_hash=token, concurrency=concurrency, approved=approved,
            held_task_ids=running,
        )  # fmt: skip
        self.run_and_check(
            command, lambda: self.fleet.register(name, kinds, token, concurrency, approved=approved, running=running),
            "restart",
        )  # fmt: skip

    @rule(name=NAMES, kinds=KINDS, count=st.integers(1, 3), knows=st.sampled_from(["all", "unspecified"]),
          stale=st.integers(0, 5))  # fmt: skip
    def work(self, name, kinds, count, knows, stale):
        """Claim as a registered worker; one that knows fewer tasks than it holds has missed an answer."""
        known = self.fleet.workers.get(name)
        token = known.token if stale and known and known.token else self.tokens[-1 - stale % len(self.tokens)]
        held = tuple(task.id for _, task in self.fleet.tasks_of(name))
        held_task_ids = {"all": held, "unspecified": None, "less": held[1:]}[knows]
        before = self.model.ready(*kinds)
        command = c.Claim(worker_id=name, kinds=kinds, count=count, token_hash=token, held_task_ids=held_task_ids)
        leased_tasks, places = self.compare(command, lambda: self.fleet.claim(name, token, kinds, held_task_ids))
        if leased_tasks is None:
            return
        most, after = min(count, places), self.model.ready(*kinds)
        ids = {leased.lease.task_id for leased in leased_tasks}
        assert ids <= after
        if before == after:  # tasks that this claim requeued are claimable by the next one
            assert len(ids) == min(most, len(after))
        assert len(ids) <= most
        self.reached |= {"an answer was lost"} if knows == "less" and held else set()
        self.record_leases(leased_tasks, name)

    @rule(name=NAMES, kinds=KINDS)
    def lose_an_answer(self, name, kinds):
        self.claim_next(name)
        self.work(name, kinds, count=1, knows="less", stale=1)

    def claim_next(self, name):
        """Claim as the worker would, whatever the operator decided about it."""
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
            c.Deregister(worker_id=name, token_hash=token),
            lambda: self.fleet.deregister(name, token),
            "deregister",
        )

    @rule(name=NAMES)
    def heartbeat_all(self, name):
        """Send a heartbeat for every lease of a worker, and record its last contact."""
        self.harness.do(c.RecordHeartbeats(workers=(name,)))
        self.fleet.record_heartbeat(name)
        tasks_of = {task.id for _, task in self.fleet.tasks_of(name)}
        for lease in [lease for lease in self.live() if lease.task_id in tasks_of]:
            self._heartbeat(lease, name)

    @rule(name=NAMES)
    def fall_silent(self, name):
        """Send nothing for longer than the worker timeout, while a lease still lasts."""
        self.claim_next(name)
        self.advance(TIMEOUT_SECONDS + 1)
        self.run_and_check(c.TickWorker(worker_id=name), lambda: self.fleet.tick(name), "timeout")

    # -- the operator

    def update(self, name, expected, action, **change):
        """Run an operator's update, and then a claim of the worker."""
        self.run_and_check(c.UpdateWorker(worker_id=name, **change), expected, action)
        self.claim_next(name)

    @rule(name=NAMES, draining=st.sampled_from([True, True, False]))
    def drain(self, name, draining):
        self.update(name, lambda: self.fleet.drain(name, draining=draining), "drain", draining=draining)

    @rule(name=NAMES, approved=st.booleans())
    def approve(self, name, approved):
        self.update(name, lambda: self.fleet.approve(name, approved=approved), "approve", approved=approved)

    @rule(name=NAMES, kinds=st.sampled_from([("draw",), ("cut",), ()]))
    def assign(self, name, kinds):
        self.update(name, lambda: self.fleet.assign(name, *kinds), "assign", kinds=kinds)
        self.work(name, ("cut", "draw"), count=1, knows="all", stale=1)  # it claims all kinds that it offers

    @rule(name=NAMES, approve_again=st.booleans())
    def revoke(self, name, approve_again):
        self.claim_next(name)
        self.run_and_check(c.RevokeWorker(worker_id=name), lambda: self.fleet.revoke(name), "revoke")
        self.register(name, ("draw",), 1, approved=True, same=False)
        if approve_again:
            self.approve(name, approved=True)

    @rule(name=NAMES)
    def rotate(self, name):
        self.claim_next(name)
        token = self.token()
        self.run_and_check(
            c.RotateWorker(worker_id=name, token_hash=token), lambda: self.fleet.rotate(name, token), "rotate"
        )
        held = tuple(task.id for _, task in self.fleet.tasks_of(name))
        if held and len(self.tokens) % 2:  # the process registers again with its tasks
            self.register(name, ("draw", "cut"), 2 if len(held) > 1 else 1, approved=True, same=False, running=held)
            self.reached |= {"rotate: continued"}

    # -- invariants

    @invariant()
    def workers_match_the_model(self):
        found = self.read_connection.run(
            "SELECT id, status, approved_at IS NOT NULL, token_hash, concurrency, starts, draining_at IS NOT NULL, "
            "last_seen_at FROM worker"
        )
        assert {row[0]: tuple(row[1:]) for row in found} == {
            name: worker.seen for name, worker in self.fleet.workers.items()
        }

    @invariant()
    def workers_hold_no_more_than_their_concurrency(self):
        found = self.read_connection.run(
            "SELECT worker_id FROM task WHERE status = 'running' AND token_hash IS NOT NULL"
        )
        tasks_of = Counter(row[0] for row in found)
        for name, worker in self.fleet.workers.items():
            assert tasks_of[name] <= (worker.concurrency if worker.live else 0)


REACHED = {
    "sqlite": {
        "completed", "failed", "canceled", "expired", "paused", "running", "queued", "run 2", "lost", "requeued",
        "worker_full", "invalid_worker_token", "restart: requeued", "revoke: requeued",
    },
    "postgresql": {"completed", "failed", "canceled", "requeued", "invalid_worker_token"},
}  # fmt: skip
"""Statuses, outcomes and refusals that the examples must reach, or the rules are too weak."""


def test_random_histories_match_the_model(database_url):
    """R71, R194, R195, R208, R210, R241, R261, R273, R274, H2, H7, H8, H16, H17, H19, H20."""
    reached: set[str] = set()
    with EngineHarness(database_url, SETTINGS) as harness:
        factory = partial(FleetStateMachine, harness, reached)
        run_state_machine_as_test(factory, settings=bounds(harness.database.name))  # type: ignore[arg-type]
        assert harness.find_violations() == []
    assert reached >= REACHED[harness.database.name]


def run_every_rule(machine: FleetStateMachine) -> None:
    """Run every rule about workers, and check the invariants after every step."""
    fields: dict[str, Any] = {"kinds": ("cut", "draw"), "approved": True, "same": False}
    steps: list[Callable[[], object]] = [
        lambda: machine.register("gpu-3", concurrency=1, **fields),  # the limit of two workers is reached
        lambda: machine.deregister("gpu-2", stale=True),
        lambda: machine.deregister("gpu-2", stale=False),
        lambda: machine.register("gpu-2", ("draw",), 1, approved=False, same=False),  # it is still approved
        lambda: machine.work("gpu-2", ("cut",), 1, "all", stale=1),
        lambda: machine.assign("gpu-2", ("cut",)),
        lambda: machine.approve("gpu-2", approved=False),
        lambda: machine.approve("gpu-2", approved=True),
        lambda: machine.drain("gpu-2", draining=True),
        lambda: machine.heartbeat_all("gpu-2"),
        lambda: machine.register("gpu-2", concurrency=1, **fields),
        lambda: machine.lose_an_answer("gpu-2", ("cut", "draw")),
        lambda: machine.work("gpu-2", ("draw",), 1, "all", stale=1),
        lambda: machine.fall_silent("gpu-2"),
        lambda: machine.rotate("gpu-2"),
        lambda: machine.rotate("gpu-1"),
        lambda: machine.rotate("gpu-1"),
        lambda: machine.register("gpu-2", concurrency=1, **fields),
        lambda: machine.revoke("gpu-2", approve_again=False),
        lambda: machine.work("gpu-2", ("draw",), 1, "all", stale=0),
        *(
            partial(machine.report_anything, number, "heartbeat", by)
            for number in range(9)
            for by in ("gpu-1", "gpu-2")
        ),
    ]
    for step in steps:
        step()
        machine.jobs_match_the_model()
        machine.tasks_match_the_model()
        machine.workers_match_the_model()
        machine.workers_hold_no_more_than_their_concurrency()


def test_a_history_with_every_rule_matches_the_model(database_url):
    """It always reaches what random histories reach rarely."""
    reached: set[str] = set()
    with EngineHarness(database_url, SETTINGS) as harness:
        machine = FleetStateMachine(harness, reached)
        run_every_rule(machine)
        machine.teardown()
    assert reached >= {
        "fleet_full", "worker_revoked", "invalid_worker_token", "worker_not_approved", "worker_draining", "worker_full",
        "kind_not_assigned", "kind_not_offered", "worker_ended", "lease_not_found", "lease_lost",
        "restart: requeued", "deregister: requeued", "revoke: requeued", "timeout: requeued", "an answer was lost",
        "rotate: continued",
    }  # fmt: skip


# -- planted faults


def a_restart_counts_an_attempt(ws, job, task, *_rest):
    return expire_lease(ws, job, task)


def a_full_worker_gets_more(ws, command, original=claim.free_slots):
    try:
        return original(ws, command)
    except Conflict as refusal:
        if refusal.code != "worker_full":
            raise
        return command.count


def a_draining_worker_gets_more(ws, command, original=claim.free_slots):
    worker = ws.find(Worker, command.worker_id)
    if worker is not None:
        ws.put(replace(worker, draining_at=None))
    return original(ws, command)


def a_revoked_token_stays_valid(ws, worker, status, reason, original=fleet._end_worker):  # noqa: SLF001 - where the fault is
    state = original(ws, worker, status, reason)
    if status == "revoked":
        ws.put(replace(ws.get(Worker, worker.id), token_hash=worker.token_hash))
    return state


def a_task_of_a_lost_claim_stays_leased(
    ws, worker_id, reason, keep_task_ids=None, leased_until=None, original=claim.requeue_held_tasks
):
    return original(ws, worker_id, reason, (), leased_until) if keep_task_ids is None else 0


FAULTS = [
    (claim, "requeue_task", a_restart_counts_an_attempt),
    (claim, "free_slots", a_full_worker_gets_more),
    (claim, "free_slots", a_draining_worker_gets_more),
    (claim, "requeue_held_tasks", a_task_of_a_lost_claim_stays_leased),
    (fleet, "_end_worker", a_revoked_token_stays_valid),
]


@pytest.mark.parametrize(("module", "name", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_a_planted_fault_is_found(module, name, fault, monkeypatch, tmp_path):
    monkeypatch.setattr(module, name, fault)
    with EngineHarness(str(tmp_path / "callsheet.db"), SETTINGS) as harness:
        machine = FleetStateMachine(harness, set())
        with pytest.raises(AssertionError):
            run_every_rule(machine)
        machine.read_connection.close()
