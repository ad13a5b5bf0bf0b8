"""Bugs in submits and in the lifecycle of jobs."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core import facts
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
from callsheet.core.working_set import WorkingSet
from tests.sim.planted.registry import bug, do_nothing, replace_decision


@bug
def the_cap_is_not_counted_within_a_batch(patch: pytest.MonkeyPatch) -> None:
    real = submit.check_active_jobs

    def check_active_jobs(ws: WorkingSet, tenant: Any, wallet: Any) -> None:
        real(ws, tenant, wallet)
        if (facts.ACTIVE_JOB_COUNT, wallet.id) in ws.facts:
            ws.set_fact(facts.ACTIVE_JOB_COUNT, wallet.id, ws.facts[facts.ACTIVE_JOB_COUNT, wallet.id] - 1)

    patch.setattr(submit, "check_active_jobs", check_active_jobs)
    patch.setattr(job_actions, "check_active_jobs", check_active_jobs)


@bug
def the_body_behind_a_key_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(submit, "_fingerprint", lambda _command, _body: "the same for all")


@bug
def another_tenants_job_may_be_touched(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_actions, "get_job", lambda ws, command: ws.get(Job, command.job_id))


@bug
def the_next_stage_never_opens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cascade, "RULES", cascade.RULES[:-1])


@bug
def all_stages_open_at_once(patch: pytest.MonkeyPatch) -> None:
    def submitted(ws: WorkingSet, command: commands.Submit) -> commands.SubmitResult:
        answer = submit.submit(ws, command)
        if not answer.replay:
            job = ws.get(Job, answer.job_id)
            for stage in cascade.stages(ws, job)[1:]:
                opened = replace(stage, status="pending")
                ws.put(opened)
                cascade.open_stage(ws, job, opened)
        return answer

    replace_decision(patch, commands.Submit, submitted)


@bug
def a_cancel_leaves_waiting_tasks_claimable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_actions, "withdraw", do_nothing)


@bug
def tasks_of_a_paused_job_are_leased(patch: pytest.MonkeyPatch) -> None:
    def offers_too(job: Job, stage: Stage) -> bool:
        return job.status in {"queued", "running", "paused"} and stage.status in {"pending", "running"}

    patch.setattr(job_actions, "withdraw", do_nothing)
    for module in (cascade, claim, lease, submit):
        patch.setattr(module, "accepts_claims", offers_too)


@bug
def a_late_result_revives_a_canceled_job(patch: pytest.MonkeyPatch) -> None:
    def complete(ws: WorkingSet, command: commands.Complete) -> commands.TaskState:
        answer = lease.complete(ws, command)
        job = ws.get(Job, command.lease.job_id)
        if answer.skipped and job.status == "canceled":
            ws.put(replace(job, status="completed", error_code=None))
        return answer

    replace_decision(patch, commands.Complete, complete)


@bug
def the_end_of_a_grace_is_ignored(patch: pytest.MonkeyPatch) -> None:
    def due(job: Job) -> int | None:
        return None if job.finished_at is not None else job.start_at if job.status == "pending" else None

    patch.setattr(transitions, "due", due)
    patch.setattr(submit, "due", due)


@bug
def a_retry_overwrites_the_run_before(patch: pytest.MonkeyPatch) -> None:
    def retry(ws: WorkingSet, command: commands.Retry) -> commands.JobState:
        answer = job_actions.retry(ws, command)
        if command.retry_as == "new_run" and answer.run > 1:
            before = ws.get(Run, (answer.job_id, answer.run - 1))
            ws.put(replace(before, error_code=None, error_message=None))
        return answer

    replace_decision(patch, commands.Retry, retry)
