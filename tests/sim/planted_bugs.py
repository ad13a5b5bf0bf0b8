"""Bugs to plant: each takes one rule out of the engine, as a hurried hand might, and the simulation must find it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from callsheet.core import facts
from callsheet.core.decisions import (
    cascade,
    claim,
    job_actions,
    lease,
    lease_check,
    money,
    operator,
    provider_calls,
    submit,
    transitions,
)
from callsheet.core.decisions.lease import AttemptEnd
from callsheet.core.model import commands
from callsheet.core.model.clock import SECOND
from callsheet.core.model.commands import Command
from callsheet.core.model.errors import LeaseLost
from callsheet.core.model.rows import Attempt, Job, Run, Stage, Task
from callsheet.core.model.workflow_definition import RefundPolicy
from callsheet.core.registry import COMMANDS
from callsheet.core.working_set import WorkingSet
from callsheet.engine.batch import Batch, BatchResult
from callsheet.engine.loops import base, relay
from callsheet.store.connection import StoreError
from callsheet.store.sqlite import SqliteConnection

InjectBug = Callable[[pytest.MonkeyPatch], None]


class Bug(NamedTuple):
    """A planted bug, by what it does wrong."""

    name: str
    inject: InjectBug


BUGS: list[Bug] = []


def bug(inject: InjectBug) -> InjectBug:
    """Keep a bug under the name of its function."""
    BUGS.append(Bug(inject.__name__, inject))
    return inject


def replace_decision(patch: pytest.MonkeyPatch, kind: type[Command], decide: Callable[[WorkingSet, Any], Any]) -> None:
    patch.setitem(COMMANDS, kind, COMMANDS[kind]._replace(decide=decide))


def do_nothing(*_: Any, **__: Any) -> None:
    """Do nothing where something was to be done."""


# -- leases


@bug
def any_token_holds_a_lease(patch: pytest.MonkeyPatch) -> None:
    def held(ws: WorkingSet, command: lease_check.LeaseCommand) -> tuple[Job, Task]:
        task = ws.get(Task, command.lease.task_id)
        if task.token_hash is None:
            raise LeaseLost
        return ws.get(Job, task.job_id), task

    patch.setattr(lease, "get_leased_task", held)
    patch.setattr(lease, "find_lease", held)
    patch.setattr(provider_calls, "get_leased_task", held)


@bug
def a_heartbeat_may_shorten_a_lease(patch: pytest.MonkeyPatch) -> None:
    def heartbeat(ws: WorkingSet, command: commands.Heartbeat) -> commands.HeartbeatResult:
        beat = lease.heartbeat(ws, command)
        if beat.lease_seconds:
            task = ws.get(Task, command.lease.task_id)
            at = ws.now + (command.lease_seconds or task.lease_seconds) * SECOND
            ws.put(replace(task, lease_expires_at=at, due_at=at))
        return beat

    replace_decision(patch, commands.Heartbeat, heartbeat)


@bug
def a_heartbeat_adds_to_what_is_left(patch: pytest.MonkeyPatch) -> None:
    def heartbeat(ws: WorkingSet, command: commands.Heartbeat) -> commands.HeartbeatResult:
        before = ws.find(Task, command.lease.task_id)
        beat = lease.heartbeat(ws, command)
        if beat.lease_seconds and before is not None:
            at = (before.lease_expires_at or 0) + (command.lease_seconds or before.lease_seconds) * SECOND
            ws.put(replace(ws.get(Task, before.id), lease_expires_at=at, due_at=at))
        return beat

    replace_decision(patch, commands.Heartbeat, heartbeat)


@bug
def a_task_is_requeued_without_limit(patch: pytest.MonkeyPatch) -> None:
    def requeue_task(
        ws: WorkingSet, job: Job, task: Task, outcome: str, reason: str, actor: Any, _cause: str | None = None
    ) -> commands.TaskState:
        return lease.end_attempt(ws, job, task, AttemptEnd(outcome, outcome, reason, retry=True, uncounted=True), actor)

    for module in (claim, lease, provider_calls):
        patch.setattr(module, "requeue_task", requeue_task)


@bug
def a_lost_lease_is_not_counted_as_an_attempt(patch: pytest.MonkeyPatch) -> None:
    def expire_lease(ws: WorkingSet, job: Job, task: Task) -> None:
        lease.requeue_task(ws, job, task, "lost", "The worker is gone.", "system")

    patch.setattr(job_actions, "expire_lease", expire_lease)


@bug
def a_lost_lease_is_left_as_it_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_actions, "expire_lease", do_nothing)


@bug
def any_repeated_result_is_accepted(patch: pytest.MonkeyPatch) -> None:
    def repeated(ws: WorkingSet, held: commands.Lease, attempt: Attempt, *_: Any) -> commands.TaskState:
        job, task = ws.get(Job, held.job_id), ws.get(Task, attempt.task_id)
        return commands.TaskState(job.id, task.id, task.status, job.status, replay=True)

    patch.setattr(lease, "_answer_repeated_report", repeated)


# -- money


@bug
def a_run_is_settled_twice(patch: pytest.MonkeyPatch) -> None:
    def settle(ws: WorkingSet, job: Job, *rest: Any) -> money.Settlement:
        money.settle(ws, job, *rest)
        return money.settle(ws, job, *rest)

    patch.setattr(cascade, "settle", settle)


@bug
def completed_work_is_refunded(patch: pytest.MonkeyPatch) -> None:
    def settle(
        ws: WorkingSet, job: Job, run: Run, _ending: str, _refunds: RefundPolicy, delivered: int
    ) -> money.Settlement:
        return money.settle(ws, job, run, "failed", RefundPolicy(), delivered)

    patch.setattr(cascade, "settle", settle)


@bug
def a_retry_reserves_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_actions, "reserve", do_nothing)


@bug
def a_deleted_job_keeps_its_money(patch: pytest.MonkeyPatch) -> None:
    def delete(ws: WorkingSet, command: commands.Delete) -> commands.JobState:
        job = ws.find(Job, command.job_id)
        if job is None or job.finished_at is not None or job.tenant != command.tenant:
            return job_actions.delete(ws, command)
        ws.put(replace(job, status="canceled", finished_at=ws.now, deleted_at=ws.now, due_at=None))
        return commands.JobState(ws.stored_job(job))

    replace_decision(patch, commands.Delete, delete)


@bug
def the_key_of_a_top_up_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operator, "dedup_key_of", lambda command: f"{command.tenant}/{command.user}/{command.id}")


# -- submit


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


# -- the life of a job


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


# -- providers


@bug
def an_unknown_call_is_made_again(patch: pytest.MonkeyPatch) -> None:
    for module in (claim, job_actions):
        patch.setattr(module, "mark_call_unanswered", lambda _ws, _task: False)


@bug
def a_callback_counts_each_time_it_comes(patch: pytest.MonkeyPatch) -> None:
    def callback(ws: WorkingSet, command: commands.Callback) -> commands.TaskState:
        return provider_calls.callback(ws, replace(command, webhook_id=f"{command.webhook_id}-{command.id}"))

    replace_decision(patch, commands.Callback, callback)


@bug
def the_last_answer_of_a_provider_wins(patch: pytest.MonkeyPatch) -> None:
    real = provider_calls._apply_outcome  # noqa: SLF001 - the very rule to break

    def apply(ws: WorkingSet, call: Any, outcome: commands.Outcome) -> commands.TaskState:
        result = real(ws, call, outcome)
        if result.skipped and outcome.status in {"completed", "failed"}:
            ws.put(replace(call, outcome=outcome.status))
            return replace(result, skipped=None)
        return result

    patch.setattr(provider_calls, "_apply_outcome", apply)


@bug
def a_callback_before_its_reference_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(provider_calls, "_apply_held_callbacks", do_nothing)


# -- the engine around the rules


@bug
def event_numbers_have_gaps(patch: pytest.MonkeyPatch) -> None:
    real = WorkingSet.emit

    def emit(self: WorkingSet, job: Job, type_: str, *rest: Any, **more: Any) -> None:
        if type_ == "job.paused":
            self._seqs[job.id] = self._seqs.get(job.id, job.seq) + 1
        real(self, job, type_, *rest, **more)

    patch.setattr(WorkingSet, "emit", emit)


@bug
def a_refused_command_is_not_undone(patch: pytest.MonkeyPatch) -> None:
    def undo(self: WorkingSet) -> None:
        self._undo.clear()

    def retry(ws: WorkingSet, command: commands.Retry) -> commands.JobState:
        answer = job_actions.retry(ws, command)
        if ws.get(Job, answer.job_id).price > 3:
            raise LeaseLost("Refused at the last moment.")
        return answer

    patch.setattr(WorkingSet, "undo", undo)
    replace_decision(patch, commands.Retry, retry)


@bug
def cached_rows_survive_writes_of_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SqliteConnection, "version", lambda _self: 1)


@bug
def a_retried_command_does_not_look_for_its_own_work(patch: pytest.MonkeyPatch) -> None:
    real = Batch.run

    def run(self: Batch, many: Sequence[Command], *, retrying: bool = False) -> BatchResult:  # noqa: ARG001 - that is the bug
        return real(self, many, retrying=False)

    patch.setattr(Batch, "run", run)


@bug
def the_answer_does_not_wait_for_the_commit(patch: pytest.MonkeyPatch) -> None:
    real_run, real_decide = Batch.run, Batch._decide  # noqa: SLF001 - the very place to break
    decided: list[list[Any]] = []

    def decide(self: Batch, ws: WorkingSet, many: Sequence[Command]) -> list[Any]:
        decided.append(real_decide(self, ws, many))
        return decided[-1]

    def run(self: Batch, many: Sequence[Command], *, retrying: bool = False) -> BatchResult:
        decided.clear()
        try:
            return real_run(self, many, retrying=retrying)
        except StoreError:
            if not decided:
                raise
            return BatchResult(decided[-1], set(), wrote=True, rate_waits={})

    patch.setattr(Batch, "_decide", decide)
    patch.setattr(Batch, "run", run)


@bug
def the_sweeper_reads_one_page_only(patch: pytest.MonkeyPatch) -> None:
    real = base.due_pages

    def due_pages(read: Any, query: str, now: int, page: int) -> Any:
        if query not in {"due_jobs", "due_tasks"}:
            return real(read, query, now, page)
        rows = read.fetch(query, now=now, after_at=0, after_id="", count=page)
        return [rows] if rows else []

    patch.setattr(base, "due_pages", due_pages)


@bug
def the_relay_moves_its_cursor_before_it_delivers(patch: pytest.MonkeyPatch) -> None:
    def run_once(self: Any, _now: int) -> int:
        place = self._engine.execute(commands.AcquireCursor(name=self._name, holder=self._holder))
        if not place.reserved:
            return 0
        events = self._engine.reads.feed(place.tx, place.position, self._page)
        place = commands.CursorPosition(*events[-1].place) if events else place
        moved = commands.AdvanceCursor(name=self._name, holder=self._holder, tx=place.tx, position=place.position)
        self._engine.execute(moved)
        self._sink(events)
        return len(events)

    patch.setattr(relay.Relay, "run_once", run_once)
