"""A second reading of a workflow's policy: what a run costs, when it expires, who approves it, how often it is tried.

It reads the stored definition, the rows and the commands that were sent, and none of the engine's rules.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from callsheet.core.model.clock import SECOND
from callsheet.core.model.commands import Command, Fail, Submit
from tests.sim.checks.inspector import Inspector

_JOB = "SELECT workflow, workflow_version, created_at, start_at, deadline_at, retry_of FROM job WHERE id = ?"
_RUN = "SELECT price, opened_at, status, consumed, refunded FROM run WHERE job_id = ? AND no = ?"
_SPEC = "SELECT spec FROM workflow WHERE name = ? AND version = ?"
_STARTED = "SELECT 1 FROM attempt WHERE job_id = ? AND run = ? LIMIT 1"
_LAST_STAGE = "SELECT delivered, tasks_total FROM stage WHERE job_id = ? ORDER BY no DESC LIMIT 1"
_STAGE_OF_TASK = "SELECT stage_id FROM task WHERE id = ?"
_STAGES_WITH_APPROVAL = "SELECT id FROM stage WHERE job_id = ? AND approval = 1"
_ATTEMPTS = """SELECT sum(uncounted = 0), sum(uncounted = 1) FROM attempt
    WHERE task_id = ? AND run = ? AND no <= ? AND ended_at IS NOT NULL"""
_HAS_CALL = "SELECT 1 FROM call WHERE task_id = ? AND attempt = ?"
TASK_POLICY = """
    SELECT t.id FROM task t JOIN job j ON j.id = t.job_id
    JOIN workflow w ON w.name = j.workflow AND w.version = j.workflow_version
    WHERE t.attempts_max <> w.spec ->> '$.retry.attempts_max' OR t.requeues_max <> w.spec ->> '$.retry.requeues_max'
    OR t.lease_seconds <> w.spec ->> '$.lease_seconds'"""
"""Tasks with other limits than their workflow has."""
_ENDS = frozenset({"completed", "failed", "canceled", "expired"})
_REQUEUED = frozenset({"requeued", "unaccepted"})


class EventRow(NamedTuple):
    """A row of the table of events."""

    id: int
    tx: int
    job_id: str
    seq: int
    tenant: str
    run: int
    at: int
    type: str
    entity_id: str
    source: str | None
    target: str | None
    actor: str
    data: str | None


class PolicyChecks:
    """Compares each event with the policy of its job's workflow."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._submits: dict[str, Submit] = {}
        self._retryable: dict[tuple[str, int], set[bool | None]] = defaultdict(set)
        """What was reported as `retryable` about an attempt: a report may be repeated with another value."""
        self._deadlines: dict[str, int] = {}
        """The time that each job has, in microseconds."""
        self._approved: dict[str, int] = {}
        """The run in which each stage that needs an approval was approved; 0 if it was not."""
        self._checks: dict[str, Callable[[EventRow], Iterator[str]]] = {
            "job.created": self._check_deadline, "job.retried": self._check_deadline,
            "stage.waiting": self._require_approval, "stage.approval_required": self._require_approval,
            "stage.approved": self._record_approval, "stage.opened": self._check_approved,
            "task.leased": self._check_approved,
            "task.retried": self._check_next_attempt, "task.failed": self._check_next_attempt,
        }  # fmt: skip

    def record_sent(self, commands: Sequence[Command]) -> None:
        """Record what users and workers asked for."""
        for command in commands:
            if isinstance(command, Submit):
                self._submits[command.id] = command
            elif isinstance(command, Fail):
                self._retryable[command.lease.task_id, command.lease.attempt].add(command.retryable)

    def check(self, events: Sequence[tuple[Any, ...]]) -> Iterator[str]:
        """Yield what the new events did against the policy."""
        new_events = [EventRow(*row) for row in events]
        required_later = {event.entity_id for event in new_events if event.type == "stage.waiting"}
        for event in new_events:
            if event.type in {"job.created", "stage.added"}:
                own = {stage for (stage,) in self._inspector.rows(_STAGES_WITH_APPROVAL, event.job_id)}
                for stage in own - required_later:
                    self._approved.setdefault(stage, 0)
            if check := self._checks.get(event.type):
                yield from check(event)
            if event.type.startswith("job.") and event.target in _ENDS:
                yield from self._check_price(event)

    def _spec(self, workflow: str, version: int) -> dict[str, Any]:
        spec: dict[str, Any] = json.loads(self._inspector.one(_SPEC, workflow, version))
        return spec

    # -- money

    def _check_price(self, event: EventRow) -> Iterator[str]:
        workflow, version, *_ = self._inspector.rows(_JOB, event.job_id)[0]
        price, _, status, consumed, refunded = self._inspector.rows(_RUN, event.job_id, event.run)[0]
        refunds = self._spec(workflow, version)["refunds"]
        if event.target == "completed":
            delivered, tasks = self._inspector.rows(_LAST_STAGE, event.job_id)[0]
            expected = price - _round_up(price * _round_up(delivered, tasks), 100)
        else:
            started = event.target == "canceled" and self._inspector.rows(_STARTED, event.job_id, event.run)
            expected = price * refunds["canceled_running" if started else event.target] // 100
        if (status, refunded, consumed) != (event.target, expected, price - expected):
            yield (
                f"C1 run {event.run} of {event.job_id} is {status} and got {refunded} of {price} back, "
                f"consumed {consumed}; its policy says {expected}: {refunds}"
            )

    # -- deadlines

    def _check_deadline(self, event: EventRow) -> Iterator[str]:
        workflow, version, created_at, start_at, deadline_at, retry_of = self._inspector.rows(_JOB, event.job_id)[0]
        opened_at = self._inspector.rows(_RUN, event.job_id, event.run)[0][1]
        if event.type == "job.created":
            submit = self._submits.get(event.job_id)
            seconds = submit.deadline_seconds if submit else None
            seconds = seconds or self._spec(workflow, version)["deadline_seconds"]
            self._deadlines[event.job_id] = self._deadlines[retry_of] if retry_of else seconds * SECOND
            wait = int(submit.start_in_seconds * SECOND) if submit else 0
            if start_at != (created_at + wait if wait else None):
                yield f"C2 {event.job_id} starts at {start_at}, {wait / SECOND} s after {created_at}"
        expected = (start_at or opened_at) + self._deadlines[event.job_id]
        if deadline_at != expected:
            yield f"C2 run {event.run} of {event.job_id} expires at {deadline_at}, and its policy says {expected}"

    # -- approvals

    def _require_approval(self, event: EventRow) -> Iterator[str]:
        self._approved[event.entity_id] = 0
        yield from ()

    def _record_approval(self, event: EventRow) -> Iterator[str]:
        self._approved[event.entity_id] = event.run
        yield from ()

    def _check_approved(self, event: EventRow) -> Iterator[str]:
        """A stage that needs an approval opens, and its tasks are leased, only with an approval of the same run."""
        stage = event.entity_id
        if event.type == "task.leased":
            stage = self._inspector.one(_STAGE_OF_TASK, event.entity_id)
        if (approved_run := self._approved.get(stage, event.run)) != event.run:
            yield f"C3 {event.type} of {event.entity_id} in run {event.run}: its approval is of run {approved_run}"

    # -- attempts

    def _check_next_attempt(self, event: EventRow) -> Iterator[str]:
        """After a lost, failed or requeued attempt, the task is tried again exactly while its policy allows it."""
        data = json.loads(event.data or "{}")
        workflow, version, *_ = self._inspector.rows(_JOB, event.job_id)[0]
        retry = self._spec(workflow, version)["retry"]
        attempt, outcome = data["attempt"], data["outcome"]
        counted, requeued = self._inspector.rows(_ATTEMPTS, event.entity_id, event.run, attempt)[0]
        allowed = {True}
        if outcome == "failed":
            if self._inspector.rows(_HAS_CALL, event.entity_id, attempt):
                return  # the provider reported the failure
            allowed = {_may_retry(retry["on"], one) for one in self._retryable[event.entity_id, attempt]}
        within_limits = requeued <= retry["requeues_max"] if outcome in _REQUEUED else counted < retry["attempts_max"]
        expected = {may_retry and within_limits for may_retry in allowed}
        if (event.type == "task.retried") not in expected:
            yield (
                f"C4 {event.type} of {event.entity_id}/{attempt} after it was {outcome}: {counted} attempts and "
                f"{requeued} requeues, and its policy is {retry}"
            )


def _round_up(number: int, by: int) -> int:
    return -(-number // by)


def _may_retry(policy: str, retryable: bool | None) -> bool:
    return {"never": False, "transient": retryable is True, "any": retryable is not False}[policy]
