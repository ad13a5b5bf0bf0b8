"""Bugs in submits and in the lifecycle of jobs."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.decisions import (
    cascade,
    claim,
    job_actions,
    lease,
    submit,
    transitions,
)
from callsheet.core.model import commands
from callsheet.core.model.rows import Job, Run, Stage
from callsheet.core.model.state_machines import Actor
from callsheet.core.working_set import WorkingSet
from tests.sim.planted.registry import bug, do_nothing, replace_decision


@bug
def active_jobs_are_not_counted_within_a_batch(patch: pytest.MonkeyPatch) -> None:
    real = submit.check_active_jobs

    def check_active_jobs(ws: WorkingSet, tenant: Any, wallet: Any) -> None:
        real(ws, tenant, wallet)
        if (facts.ACTIVE_JOB_COUNT, wallet.id) in ws.facts:
            ws.set_fact(facts.ACTIVE_JOB_COUNT, wallet.id, ws.facts[facts.ACTIVE_JOB_COUNT, wallet.id] - 1)

    patch.setattr(submit, "check_active_jobs", check_active_jobs)
    patch.setattr(job_actions, "check_active_jobs", check_active_jobs)


@bug
def the_body_of_a_key_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(submit, "_fingerprint", lambda _command, _body: "the same for all")


@bug
def a_job_of_another_tenant_can_be_changed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_actions, "get_job", lambda ws, command: ws.get(Job, command.job_id))


@bug
def the_next_stage_never_opens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cascade, "RULES", cascade.RULES[:-1])


@bug
def all_stages_open_at_once(patch: pytest.MonkeyPatch) -> None:
    def submit_and_open_all(ws: WorkingSet, command: commands.Submit) -> commands.SubmitResult:
        answer = submit.submit(ws, command)
        if not answer.replay:
            job = ws.get(Job, answer.job_id)
            for stage in cascade.stages(ws, job)[1:]:
                opened = replace(stage, status="pending")
                ws.put(opened)
                cascade.open_stage(ws, job, opened)
        return answer

    replace_decision(patch, commands.Submit, submit_and_open_all)


@bug
def a_cancel_leaves_waiting_tasks_claimable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_actions, "withdraw", do_nothing)


@bug
def tasks_of_a_paused_job_are_leased(patch: pytest.MonkeyPatch) -> None:
    def accepts_claims(job: Job, stage: Stage) -> bool:
        return job.status in {"queued", "running", "paused"} and stage.status in {"pending", "running"}

    patch.setattr(job_actions, "withdraw", do_nothing)
    for module in (cascade, claim, lease, submit):
        patch.setattr(module, "accepts_claims", accepts_claims)


@bug
def a_late_completion_revives_a_canceled_job(patch: pytest.MonkeyPatch) -> None:
    def complete(ws: WorkingSet, command: commands.Complete) -> commands.TaskState:
        answer = lease.complete(ws, command)
        job = ws.get(Job, command.lease.job_id)
        if answer.skipped and job.status == "canceled":
            ws.put(replace(job, status="completed", error_code=None))
        return answer

    replace_decision(patch, commands.Complete, complete)


@bug
def the_end_of_a_grace_period_is_ignored(patch: pytest.MonkeyPatch) -> None:
    def due(job: Job) -> int | None:
        return None if job.finished_at is not None else job.start_at if job.status == "pending" else None

    patch.setattr(transitions, "due", due)
    patch.setattr(submit, "due", due)


@bug
def a_retry_overwrites_the_earlier_run(patch: pytest.MonkeyPatch) -> None:
    def retry(ws: WorkingSet, command: commands.Retry) -> commands.JobState:
        answer = job_actions.retry(ws, command)
        if command.retry_as == "new_run" and answer.run > 1:
            before = ws.get(Run, (answer.job_id, answer.run - 1))
            ws.put(replace(before, error_code=None, error_message=None))
        return answer

    replace_decision(patch, commands.Retry, retry)


@bug
def the_deadline_of_a_retry_is_counted_from_the_creation(patch: pytest.MonkeyPatch) -> None:
    def retry(ws: WorkingSet, command: commands.Retry) -> commands.JobState:
        before = ws.find(Job, command.job_id)
        answer = job_actions.retry(ws, command)
        job = ws.get(Job, answer.job_id)
        if before is not None and before.deadline_at is not None and job.run > before.run and job.due_at is not None:
            opened_at = before.start_at or ws.get(Run, (before.id, before.run)).opened_at
            at = before.created_at + before.deadline_at - opened_at
            ws.put(replace(job, deadline_at=at, due_at=at))
        return answer

    replace_decision(patch, commands.Retry, retry)


@bug
def a_retry_keeps_the_approval(patch: pytest.MonkeyPatch) -> None:
    _keep_fields_of_stages(patch, "reset", "approved_by", "approved_at")


@bug
def a_retry_forgets_an_approval_that_was_required_while_the_stage_ran(patch: pytest.MonkeyPatch) -> None:
    _keep_fields_of_stages(patch, "require_approval", "approval")


def _keep_fields_of_stages(patch: pytest.MonkeyPatch, changed_by: str, *names: str) -> None:
    """Let an event of a stage change none of these fields."""
    real = transitions.move_stage

    def move_stage(ws: WorkingSet, job: Job, stage: Stage, event: str, actor: Actor, **changes: Any) -> Stage:
        if event == changed_by:
            changes = {name: value for name, value in changes.items() if name not in names}
        return real(ws, job, stage, event, actor, **changes)

    patch.setattr(job_actions, "move_stage", move_stage)
