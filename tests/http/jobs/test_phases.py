"""Phases: a finer state than the status, derived from a row and never stored."""

from itertools import product
from typing import Any

from msgspec.structs import replace

from callsheet.core.model import commands
from callsheet.core.model.rows import Job, Task
from callsheet.core.model.state_machines import MACHINES
from callsheet.core.model.workflow_definition import Backoff, RetryPolicy, StageSpec, WorkflowDefinition
from callsheet.queries.render import job_view, task_view
from tests.support.processes.live_server import LiveServer

LATER = RetryPolicy(on="any", attempts_max=3, backoff=Backoff(base_seconds=600, factor=1, jitter=0))


def task_of(live_server: LiveServer, job_id: str) -> dict[str, Any]:
    (task,) = live_server.client("client").get(f"/v1/jobs/{job_id}/tasks").raise_for_status().json()["tasks"]
    found: dict[str, Any] = task
    return found


def test_the_phase_of_a_task_says_whether_it_is_submitted_to_a_provider_or_backing_off(
    live_server: LiveServer,
) -> None:
    """R301."""
    stages = [StageSpec(name="render", kind="phases", provider="acme")]
    live_server.engine.execute(
        commands.PutWorkflow(definition=WorkflowDefinition(name="phases", stages=stages, retry=LATER))
    )
    job_id = live_server.submit(workflow="phases")["id"]
    seen = [task_of(live_server, job_id)]
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("phases",)))
    seen.append(task_of(live_server, job_id))
    call = live_server.engine.execute(commands.RecordIntent(lease=leased.lease, provider="acme"))
    live_server.engine.execute(commands.HandOff(lease=leased.lease, ref="canary-ref"))
    seen.append(task_of(live_server, job_id))
    failed = commands.Outcome("failed", message="busy", retryable=True)
    live_server.engine.execute(commands.ReportOutcome(call_id=call.call_id, job_id=job_id, outcome=failed))
    seen.append(task_of(live_server, job_id))
    assert [(task["status"], task["phase"]) for task in seen] == [
        ("pending", None), ("running", None), ("running", "submitted"), ("retried", "backoff"),
    ]  # fmt: skip
    assert live_server.client("client").get(f"/v1/jobs/{job_id}").json()["status"] == "running"
    assert "canary-ref" not in str(seen)


def test_a_phase_follows_from_the_row_alone_and_is_never_a_stored_status(live_server: LiveServer) -> None:
    """R299, R303, R362: for every combination of columns; `draft` and `deleted` are no statuses either."""
    job_id = live_server.submit()["id"]
    job, (task,) = live_server.engine.reads.job("default", job_id), live_server.engine.reads.tasks(job_id)
    jobs, tasks = (next(machine for machine in MACHINES if machine.entity == name) for name in ("job", "task"))
    moments = (None, 1)
    rows: list[Job | Task] = [
        replace(job, status=status, cancel_requested_at=requested, finished_at=ended)
        for status, requested, ended in product(jobs.statuses, moments, moments)
    ]
    rows += [
        replace(task, status=status, token_hash=mark, due_at=due)
        for status, mark, due in product(tasks.statuses, (None, "x"), moments)
    ]
    phases = {(job_view(row, None) if isinstance(row, Job) else task_view(row)).phase for row in rows}
    assert {"scheduled", "canceling", "submitted", "backoff"} <= phases
    assert not {*phases, "draft", "deleted"} & {status for machine in MACHINES for status in machine.statuses}
