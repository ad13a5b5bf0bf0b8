"""Bugs in the engine around the decisions: batches, caches, loops and event numbers."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.decisions import audit, job_actions
from callsheet.core.model import audit_chain, commands
from callsheet.core.model.commands import Command
from callsheet.core.model.errors import LeaseLost
from callsheet.core.model.rows import Audit, AuditHead, Job, Row
from callsheet.core.working_set import WorkingSet
from callsheet.engine.batch import Batch, BatchResult
from callsheet.engine.loops import loop_protocol, sink_delivery
from callsheet.store.connection import StoreError
from callsheet.store.sqlite import SqliteConnection
from tests.sim.planted.registry import bug, replace_decision


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
            raise LeaseLost("An injected refusal.")
        return answer

    patch.setattr(WorkingSet, "undo", undo)
    replace_decision(patch, commands.Retry, retry)


@bug
def an_audit_line_does_not_move_the_head_of_its_chain(patch: pytest.MonkeyPatch) -> None:
    real = audit_chain.append_to_chain

    def append_to_chain(head: AuditHead, line: Audit) -> tuple[AuditHead, Audit]:
        after, line = real(head, line)
        return (head if line.action == "worker.register" and head.seq > 3 else after), line

    patch.setattr(audit, "append_to_chain", append_to_chain)


@bug
def an_audit_line_is_changed_after_its_digest_was_computed(patch: pytest.MonkeyPatch) -> None:
    real = audit_chain.append_to_chain

    def append_to_chain(head: AuditHead, line: Audit) -> tuple[AuditHead, Audit]:
        after, line = real(head, line)
        return after, replace(line, actor=line.actor + "!") if line.action == "worker.register" else line

    patch.setattr(audit, "append_to_chain", append_to_chain)


@bug
def cached_rows_survive_writes_of_other_servers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SqliteConnection, "version", lambda _self: 1)


@bug
def a_retried_command_does_not_find_its_own_effect(patch: pytest.MonkeyPatch) -> None:
    real = Batch.run

    def run(self: Batch, many: Sequence[Command], *, retrying: bool = False) -> BatchResult:  # noqa: ARG001 - that is the bug
        return real(self, many, retrying=False)

    patch.setattr(Batch, "run", run)


@bug
def the_answer_does_not_wait_for_the_commit(patch: pytest.MonkeyPatch) -> None:
    real_run, real_decide = Batch.run, Batch._decide  # noqa: SLF001 - the place of the bug
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
            return BatchResult(decided[-1], set(), wrote=True, delays={})

    patch.setattr(Batch, "_decide", decide)
    patch.setattr(Batch, "run", run)


@bug
def the_sweeper_reads_one_page_only(patch: pytest.MonkeyPatch) -> None:
    real = loop_protocol.due_pages

    def due_pages(read: Any, query: str, now: int, page: int) -> Any:
        if query not in {"due_jobs", "due_tasks"}:
            return real(read, query, now, page)
        rows = read.fetch(query, now=now, after_at=0, after_id="", count=page)
        return [rows] if rows else []

    patch.setattr(loop_protocol, "due_pages", due_pages)


@bug
def the_relay_moves_its_cursor_before_it_delivers(patch: pytest.MonkeyPatch) -> None:
    def run_once(self: Any, _now: int) -> int:
        cursor = self._engine.execute(commands.AcquireCursor(name=self._name, holder=self._holder))
        if not cursor.reserved:
            return 0
        events = self._engine.reads.feed(cursor.tx, cursor.position, self._page)
        cursor = commands.CursorPosition(*events[-1].position) if events else cursor
        advance = commands.AdvanceCursor(name=self._name, holder=self._holder, tx=cursor.tx, position=cursor.position)
        self._engine.execute(advance)
        self._sink(events)
        return len(events)

    patch.setattr(sink_delivery.Relay, "run_once", run_once)


@bug
def a_change_is_dated_by_the_clock_alone(patch: pytest.MonkeyPatch) -> None:
    real = WorkingSet.change_time

    def change_time(self: WorkingSet, row: Row, *_: Row) -> int:
        return real(self, row) if isinstance(row, Job) else self.now

    patch.setattr(WorkingSet, "change_time", change_time)
