"""A Hypothesis state machine that runs commands on the engine and on the model and compares them, one rule each."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from callsheet.core.model import commands as c
from callsheet.core.model.commands import Command, Lease
from callsheet.core.model.errors import Refusal
from callsheet.core.model.rows import ROWS
from callsheet.core.model.workflow_definition import Backoff, RefundPolicy, RetryPolicy
from tests.support.engine.engine_harness import TENANT, WORKER, EngineHarness, stage
from tests.support.engine.engine_model import Model, ModelRefusal, WorkflowModel

USERS = ("ada", "bob")
KEYS = ("k1", "k2", None)
ACTIVE_JOBS_MAX = 4
PLANS = (
    WorkflowModel("sketch", 5, (("draw", 1),)),
    WorkflowModel("film", 9, (("draw", 2), ("cut", 1)), refund_percent_running=50),
    WorkflowModel("trial", 0, (("cut", 1),), deadline_seconds=90, attempts_max=1),
)
NUMBERS = st.integers(0, 99)
"""Below 100: Hypothesis also draws larger integers from the source of all imported modules. The examples would then
depend on which other tests were collected, even with `derandomize`."""


def reset_database(harness: EngineHarness) -> None:
    """Empty every table, and create the tenant and the workflows."""
    connection = harness.database.connect()
    connection.begin()
    for row in reversed(ROWS):
        connection.run(f"DELETE FROM {row.TABLE}")
    connection.commit()
    connection.close()
    harness.tenant(active_jobs_max=ACTIVE_JOBS_MAX)
    for plan in PLANS:
        backoff = Backoff(base_seconds=plan.wait_seconds, factor=2, jitter=0)
        harness.workflow(
            plan.name,
            price=plan.price,
            stages=[stage(kind, tasks=count) for kind, count in plan.stages],
            retry=RetryPolicy(attempts_max=plan.attempts_max, requeues_max=plan.requeues_max, backoff=backoff),
            refunds=RefundPolicy(canceled_running=plan.refund_percent_running),
            lease_seconds=plan.lease_seconds,
            deadline_seconds=plan.deadline_seconds,
            cancel_grace_seconds=plan.grace_seconds,
        )


class EngineMachine(RuleBasedStateMachine):
    """The engine and the model of jobs, tasks and wallets.

    No rule has a precondition: the engine decides which task is leased first, so a step may find other rows in a
    replay, and what Hypothesis draws must not depend on them. A step without anything to do does nothing.
    """

    def __init__(self, harness: EngineHarness, reached: set[str]) -> None:
        super().__init__()
        self.harness = harness
        self.reached = reached
        reset_database(harness)
        self.model = Model(harness.clock.now(), USERS, ACTIVE_JOBS_MAX)
        self.leases: list[Lease] = []
        self.read_connection = harness.database.connect(reading=True)
        for user in USERS:
            self.top_up(user, 20)
        for plan in PLANS:
            self.submit(USERS[0], plan, 1, None)

    def teardown(self) -> None:
        self.read_connection.close()
        for job in self.model.jobs.values():
            self.reached |= {job.status, f"run {job.run}", *(out for task in job.tasks for out in task.outcomes)}
        assert self.harness.find_violations() == []

    def compare(self, command: Command, expected: Any) -> tuple[Any, Any]:
        """Run a command on the engine and on the model; both refuse it with the same code, or both answer."""
        answer = self.harness.engine.execute_many([command])[0]
        refusal = answer.code if isinstance(answer, Refusal) else None
        try:
            expected_result = expected()
        except ModelRefusal as refused:
            expected_result = refused
        if isinstance(expected_result, ModelRefusal):
            self.reached.add(str(expected_result))
            assert refusal == str(expected_result), (
                f"{command}: the model returned {expected_result!r}, the engine {answer!r}"
            )
            return None, None
        assert not isinstance(answer, Exception), f"{command}: the engine returned {answer!r}"
        return answer, expected_result

    def job(self, number: int) -> str:
        return list(self.model.jobs)[-1 - number % min(len(self.model.jobs), 6)]

    def live(self) -> list[Lease]:
        return [lease for lease in self.leases if self.model.holds(lease)]

    # -- users

    @rule(user=st.sampled_from(USERS), amount=st.integers(1, 30))
    def top_up(self, user, amount):
        self.harness.top_up(amount, user)
        self.model.balance[user] += amount

    @rule(user=st.sampled_from(USERS), plan=st.sampled_from(PLANS), body=st.integers(1, 2), key=st.sampled_from(KEYS))
    def submit(self, user, plan, body, key):
        command = self.harness.submission(plan.name, user, input=body, idempotency_key=key)
        answer, expected_result = self.compare(command, lambda: self.model.submit(user, plan, body, key))
        if answer is None:
            return
        assert answer.replay == isinstance(expected_result, str)
        if isinstance(expected_result, str):
            assert answer.job_id == expected_result
        else:
            tasks = [task.id for task in self.harness.tasks(answer.job_id)]
            self.model.add_job(answer.job_id, expected_result, key, tasks)

    def _job_rule(self, command, job_id, expected):
        answer, _ = self.compare(command, expected)
        if answer is not None:
            job = self.model.jobs[job_id]
            assert (answer.status, answer.run) == (job.status, job.run)

    @rule(number=NUMBERS, grace=st.sampled_from([0, 30]))
    def cancel(self, number, grace):
        job = self.job(number)
        command = c.Cancel(tenant=TENANT, job_id=job, grace_seconds=grace)
        self._job_rule(command, job, lambda: self.model.cancel(job, grace))

    @rule(number=NUMBERS)
    def pause(self, number):
        job = self.job(number)
        self._job_rule(c.Pause(tenant=TENANT, job_id=job), job, lambda: self.model.pause(job))

    @rule(number=NUMBERS)
    def resume(self, number):
        job = self.job(number)
        self._job_rule(c.Resume(tenant=TENANT, job_id=job), job, lambda: self.model.resume(job))

    @rule(number=NUMBERS, ended=st.sampled_from([True, True, False]))
    def retry(self, number, ended):
        retryable_ids = [key for key, job in self.model.jobs.items() if job.status in {"failed", "expired"}]
        job = retryable_ids[number % len(retryable_ids)] if ended and retryable_ids else self.job(number)
        self._job_rule(c.Retry(tenant=TENANT, job_id=job, actor="admin"), job, lambda: self.model.retry(job))

    @rule(number=NUMBERS, skip_unless_zero=st.integers(0, 2))
    def delete(self, number, skip_unless_zero):
        if skip_unless_zero == 0:
            job = self.job(number)
            self._job_rule(c.Delete(tenant=TENANT, job_id=job), job, lambda: self.model.delete(job))

    # -- workers

    @rule(kind=st.sampled_from(["draw", "draw", "cut"]), count=st.integers(1, 3))
    def claim(self, kind, count):
        ready = self.model.ready(kind)
        leased_tasks = self.harness.claim(kind, count=count)
        assert {leased.lease.task_id for leased in leased_tasks} <= ready
        assert len(leased_tasks) == min(count, len(ready))
        self.record_leases(leased_tasks, WORKER)

    def record_leases(self, leased_tasks, worker):
        for leased in leased_tasks:
            self.model.lease(leased.lease, worker)
            self.leases.append(leased.lease)
            assert leased.lease.attempt == len(self.model.find_task(leased.lease)[1].tokens)

    @rule(number=NUMBERS)
    def heartbeat(self, number):
        if live := self.live():
            self._heartbeat(live[number % len(live)])

    def _heartbeat(self, lease, by=None):
        answer, stop = self.compare(c.Heartbeat(lease=lease, worker_id=by), lambda: self.model.heartbeat(lease, by))
        if answer is not None:
            assert answer.cancel == stop

    @rule(number=NUMBERS, how=st.sampled_from(["completed", "failed", "requeued"]),
          retryable=st.booleans())  # fmt: skip
    def report(self, number, how, retryable):
        if not self.live():
            self.claim("draw" if number % 2 else "cut", 1)
        if live := self.live():
            self._report(live[number % len(live)], how, retryable)

    @rule(number=NUMBERS, how=st.sampled_from(["completed", "failed", "requeued", "heartbeat"]),
          by=st.sampled_from([None, WORKER, "gpu-1", "gpu-2"]))  # fmt: skip
    def report_anything(self, number, how, by):
        """Report with any earlier lease: most are lost, and some belong to another worker."""
        lease = self.leases[number % len(self.leases)] if self.leases else None
        if lease and how == "heartbeat":
            self._heartbeat(lease, by)
        elif lease:
            self._report(lease, how, retryable=False, by=by)

    def _report(self, lease, how, retryable, by=None):
        command: Command = c.Complete(lease=lease, worker_id=by)
        if how == "failed":
            command = c.Fail(lease=lease, retryable=retryable, worker_id=by)
        elif how == "requeued":
            command = c.Requeue(lease=lease, reason="spot notice", worker_id=by)
        answer, expected_result = self.compare(
            command, lambda: self.model.report(lease, how, retryable=retryable, by=by)
        )
        if answer is not None:
            marks = {"accepted": (False, False), "replay": (True, False), "skipped": (False, True)}
            assert (answer.replay, answer.skipped is not None) == marks[expected_result]
            job, task = self.model.find_task(lease)
            assert (answer.job_status, answer.status) == (job.status, task.status)

    # -- time

    @rule(seconds=st.sampled_from([61, 31, 2, 1]))
    def advance(self, seconds):
        self.harness.advance(seconds)
        self.model.advance(seconds)

    @rule()
    def a_worker_dies(self):
        """Send no heartbeat for longer than any lease lasts."""
        if self.live():
            self.advance(61)

    # -- invariants

    @invariant()
    def jobs_match_the_model(self):
        found = self.read_connection.run("SELECT id, status, run, stages_completed, deleted_at IS NOT NULL FROM job")
        assert {row[0]: (*row[1:4], bool(row[4])) for row in found} == {
            key: (job.status, job.run, job.stages_completed, job.deleted) for key, job in self.model.jobs.items()
        }

    @invariant()
    def tasks_match_the_model(self):
        found = self.read_connection.run(
            "SELECT id, status, attempts, attempts_counted, requeues, "
            "CASE WHEN token_hash IS NOT NULL THEN worker_id END FROM task"
        )
        assert {row[0]: tuple(row[1:]) for row in found} == {
            task.id: (*task.seen, task.holder) for job in self.model.jobs.values() for task in job.tasks
        }

    @invariant()
    def wallets_match_the_model(self):
        found = {
            row[0]: tuple(row[1:]) for row in self.read_connection.run("SELECT user_id, balance, reserved FROM wallet")
        }
        for user in USERS:
            assert found.get(user, (0, 0)) == (self.model.balance[user], self.model.reserved[user])
