"""Bugs to plant: each takes one rule out of the engine, as a hurried hand might, and the simulation must find it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from callsheet.core import cascade, claim, commands, holding, lease, life, money, moves, provider, setup, submit
from callsheet.core.clock import SECOND
from callsheet.core.commands import Command
from callsheet.core.decide import DECISIONS
from callsheet.core.errors import LeaseLost
from callsheet.core.lease import Ending
from callsheet.core.recipe import Refunds
from callsheet.core.rows import Attempt, Job, Run, Stage, Task
from callsheet.core.working import WorkingSet
from callsheet.engine import loops
from callsheet.engine.batch import Batch, Done
from callsheet.store.connection import StoreError
from callsheet.store.sqlite import SqliteConnection

Plant = Callable[[pytest.MonkeyPatch], None]


class Bug(NamedTuple):
    """A planted bug, by what it does wrong."""

    name: str
    plant: Plant


BUGS: list[Bug] = []


def bug(plant: Plant) -> Plant:
    """Keep a bug under the name of its function."""
    BUGS.append(Bug(plant.__name__, plant))
    return plant


def decide_by(patch: pytest.MonkeyPatch, kind: type[Command], decide: Callable[[WorkingSet, Any], Any]) -> None:
    patch.setitem(DECISIONS, kind, DECISIONS[kind]._replace(decide=decide))


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing where something was to be done."""


# -- leases


@bug
def any_token_holds_a_lease(patch: pytest.MonkeyPatch) -> None:
    def held(ws: WorkingSet, command: holding.Holding) -> tuple[Job, Task]:
        task = ws.get(Task, command.lease.task_id)
        if task.token_hash is None:
            raise LeaseLost
        return ws.get(Job, task.job_id), task

    patch.setattr(lease, "held", held)
    patch.setattr(lease, "held_or_past", held)
    patch.setattr(provider, "held", held)


@bug
def a_heartbeat_may_shorten_a_lease(patch: pytest.MonkeyPatch) -> None:
    def heartbeat(ws: WorkingSet, command: commands.Heartbeat) -> commands.Beat:
        beat = lease.heartbeat(ws, command)
        if beat.lease_seconds:
            task = ws.get(Task, command.lease.task_id)
            at = ws.now + (command.lease_seconds or task.lease_seconds) * SECOND
            ws.put(replace(task, lease_expires_at=at, due_at=at))
        return beat

    decide_by(patch, commands.Heartbeat, heartbeat)


@bug
def a_heartbeat_adds_to_what_is_left(patch: pytest.MonkeyPatch) -> None:
    def heartbeat(ws: WorkingSet, command: commands.Heartbeat) -> commands.Beat:
        before = ws.find(Task, command.lease.task_id)
        beat = lease.heartbeat(ws, command)
        if beat.lease_seconds and before is not None:
            at = (before.lease_expires_at or 0) + (command.lease_seconds or before.lease_seconds) * SECOND
            ws.put(replace(ws.get(Task, before.id), lease_expires_at=at, due_at=at))
        return beat

    decide_by(patch, commands.Heartbeat, heartbeat)


@bug
def a_task_is_requeued_without_limit(patch: pytest.MonkeyPatch) -> None:
    def give_back(
        ws: WorkingSet, job: Job, task: Task, outcome: str, reason: str, actor: Any, _cause: str | None = None
    ) -> commands.TaskState:
        return lease.end_try(ws, job, task, Ending(outcome, outcome, reason, again=True, forgiven=True), actor)

    for module in (claim, lease, provider):
        patch.setattr(module, "give_back", give_back)


@bug
def a_lost_lease_is_not_counted_as_a_try(patch: pytest.MonkeyPatch) -> None:
    def lapse(ws: WorkingSet, job: Job, task: Task) -> None:
        lease.give_back(ws, job, task, "lost", "The worker is gone.", "system")

    patch.setattr(life, "lapse", lapse)


@bug
def a_lost_lease_is_left_as_it_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(life, "lapse", nothing)


@bug
def a_repeated_result_is_taken_whatever_it_is(patch: pytest.MonkeyPatch) -> None:
    def repeated(ws: WorkingSet, held: commands.Lease, attempt: Attempt, *_: Any) -> commands.TaskState:
        job, task = ws.get(Job, held.job_id), ws.get(Task, attempt.task_id)
        return commands.TaskState(job.id, task.id, task.status, job.status, replay=True)

    patch.setattr(lease, "_repeated", repeated)


# -- money


@bug
def a_run_is_settled_twice(patch: pytest.MonkeyPatch) -> None:
    def settle(ws: WorkingSet, job: Job, *rest: Any) -> money.Settlement:
        money.settle(ws, job, *rest)
        return money.settle(ws, job, *rest)

    patch.setattr(cascade, "settle", settle)


@bug
def completed_work_is_refunded(patch: pytest.MonkeyPatch) -> None:
    def settle(ws: WorkingSet, job: Job, run: Run, _ending: str, _refunds: Refunds, delivered: int) -> money.Settlement:
        return money.settle(ws, job, run, "failed", Refunds(), delivered)

    patch.setattr(cascade, "settle", settle)


@bug
def a_retry_reserves_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(life, "reserve", nothing)


@bug
def a_deleted_job_keeps_its_money(patch: pytest.MonkeyPatch) -> None:
    def delete(ws: WorkingSet, command: commands.Delete) -> commands.JobState:
        job = ws.find(Job, command.job_id)
        if job is None or job.finished_at is not None or job.tenant != command.tenant:
            return life.delete(ws, command)
        ws.put(replace(job, status="canceled", finished_at=ws.now, deleted_at=ws.now, due_at=None))
        return commands.JobState(job.id, "canceled", job.run)

    decide_by(patch, commands.Delete, delete)


@bug
def the_key_of_a_top_up_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(setup, "idem_of", lambda command: f"{command.tenant}/{command.user}/{command.id}")


# -- submit


@bug
def the_cap_is_not_counted_within_a_batch(patch: pytest.MonkeyPatch) -> None:
    real = submit.check_cap

    def check_cap(ws: WorkingSet, tenant: Any, wallet: Any) -> None:
        real(ws, tenant, wallet)
        if ("active", wallet.id) in ws.facts:
            ws.set_fact("active", wallet.id, ws.facts["active", wallet.id] - 1)

    patch.setattr(submit, "check_cap", check_cap)
    patch.setattr(life, "check_cap", check_cap)


@bug
def the_body_behind_a_key_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(submit, "_fingerprint", lambda _command, _body: "the same for all")


@bug
def another_tenants_job_may_be_touched(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(life, "job_of", lambda ws, command: ws.get(Job, command.job_id))


# -- the life of a job


@bug
def the_next_stage_never_opens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cascade, "RULES", cascade.RULES[:-1])


@bug
def all_stages_open_at_once(patch: pytest.MonkeyPatch) -> None:
    def submitted(ws: WorkingSet, command: commands.Submit) -> commands.Submitted:
        answer = submit.submit(ws, command)
        if not answer.replay:
            job = ws.get(Job, answer.job_id)
            for stage in cascade.stages(ws, job)[1:]:
                opened = replace(stage, status="pending")
                ws.put(opened)
                cascade.open_stage(ws, job, opened)
        return answer

    decide_by(patch, commands.Submit, submitted)


@bug
def a_cancel_leaves_waiting_tasks_on_offer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(life, "withdraw", nothing)


@bug
def a_paused_job_hands_out_tasks(patch: pytest.MonkeyPatch) -> None:
    def offers_too(job: Job, stage: Stage) -> bool:
        return job.status in {"queued", "running", "paused"} and stage.status in {"pending", "running"}

    patch.setattr(life, "withdraw", nothing)
    for module in (cascade, claim, lease, submit):
        patch.setattr(module, "offers", offers_too)


@bug
def a_late_result_revives_a_canceled_job(patch: pytest.MonkeyPatch) -> None:
    def complete(ws: WorkingSet, command: commands.Complete) -> commands.TaskState:
        answer = lease.complete(ws, command)
        job = ws.get(Job, command.lease.job_id)
        if answer.skipped and job.status == "canceled":
            ws.put(replace(job, status="completed", error_code=None))
        return answer

    decide_by(patch, commands.Complete, complete)


@bug
def the_end_of_a_grace_is_never_looked_at(patch: pytest.MonkeyPatch) -> None:
    def due(job: Job) -> int | None:
        return None if job.finished_at is not None else job.start_at if job.status == "pending" else None

    patch.setattr(moves, "due", due)
    patch.setattr(submit, "due", due)


@bug
def a_retry_overwrites_the_run_before(patch: pytest.MonkeyPatch) -> None:
    def retry(ws: WorkingSet, command: commands.Retry) -> commands.JobState:
        answer = life.retry(ws, command)
        if command.retry_as == "new_run" and answer.run > 1:
            before = ws.get(Run, (answer.job_id, answer.run - 1))
            ws.put(replace(before, error_code=None, error_message=None))
        return answer

    decide_by(patch, commands.Retry, retry)


# -- providers


@bug
def an_unknown_call_is_made_again(patch: pytest.MonkeyPatch) -> None:
    for module in (claim, life):
        patch.setattr(module, "answer_lost", lambda _ws, _task: False)


@bug
def a_callback_counts_each_time_it_comes(patch: pytest.MonkeyPatch) -> None:
    def callback(ws: WorkingSet, command: commands.Callback) -> commands.TaskState:
        return provider.callback(ws, replace(command, webhook_id=f"{command.webhook_id}-{command.id}"))

    decide_by(patch, commands.Callback, callback)


@bug
def the_last_word_of_a_provider_wins(patch: pytest.MonkeyPatch) -> None:
    real = provider._apply  # noqa: SLF001 - the very rule to break

    def apply(ws: WorkingSet, call: Any, outcome: commands.Outcome) -> commands.TaskState:
        result = real(ws, call, outcome)
        if result.skipped and outcome.status in {"completed", "failed"}:
            ws.put(replace(call, outcome=outcome.status))
            return replace(result, skipped=None)
        return result

    patch.setattr(provider, "_apply", apply)


@bug
def a_callback_before_its_reference_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(provider, "_open_held", nothing)


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
        answer = life.retry(ws, command)
        if ws.get(Job, answer.job_id).price > 3:
            raise LeaseLost("Refused at the last moment.")
        return answer

    patch.setattr(WorkingSet, "undo", undo)
    decide_by(patch, commands.Retry, retry)


@bug
def rows_are_kept_though_others_wrote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SqliteConnection, "version", lambda _self: 1)


@bug
def a_command_tried_again_does_not_look_for_its_own_work(patch: pytest.MonkeyPatch) -> None:
    real = Batch.run

    def run(self: Batch, many: Sequence[Command], *, again: bool = False) -> Done:  # noqa: ARG001 - that is the bug
        return real(self, many, again=False)

    patch.setattr(Batch, "run", run)


@bug
def the_answer_does_not_wait_for_the_commit(patch: pytest.MonkeyPatch) -> None:
    real_run, real_decide = Batch.run, Batch._decide  # noqa: SLF001 - the very place to break
    said: list[list[Any]] = []

    def decide(self: Batch, ws: WorkingSet, many: Sequence[Command]) -> list[Any]:
        said.append(real_decide(self, ws, many))
        return said[-1]

    def run(self: Batch, many: Sequence[Command], *, again: bool = False) -> Done:
        said.clear()
        try:
            return real_run(self, many, again=again)
        except StoreError:
            if not said:
                raise
            return Done(said[-1], set(), wrote=True, expected={})

    patch.setattr(Batch, "_decide", decide)
    patch.setattr(Batch, "run", run)


@bug
def the_sweeper_reads_one_page_only(patch: pytest.MonkeyPatch) -> None:
    real = loops.due

    def due(read: Any, query: str, now: int, page: int) -> Any:
        if query not in {"due_jobs", "due_tasks"}:
            return real(read, query, now, page)
        rows = read.fetch(query, now=now, after_at=0, after_id="", count=page)
        return [rows] if rows else []

    patch.setattr(loops, "due", due)


@bug
def the_relay_moves_on_before_it_has_told(patch: pytest.MonkeyPatch) -> None:
    def run_once(self: Any, _now: int) -> int:
        place = self._engine.execute(commands.TakeCursor(name=self._name, holder=self._holder))
        if not place.held:
            return 0
        events = self._engine.read.feed(place.tx, place.position, self._page)
        place = commands.Place(*events[-1].place) if events else place
        moved = commands.MoveCursor(name=self._name, holder=self._holder, tx=place.tx, position=place.position)
        self._engine.execute(moved)
        self._sink(events)
        return len(events)

    patch.setattr(loops.Relay, "run_once", run_once)
