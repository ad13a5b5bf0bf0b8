"""Invariants of the stored rows. The harness checks them after every batch."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeVar

from callsheet.core.model.audit_chain import find_chain_fault
from callsheet.core.model.rows import (
    Attempt,
    Audit,
    AuditHead,
    Call,
    Event,
    Job,
    LedgerEntry,
    Row,
    Run,
    Stage,
    Task,
    Wallet,
)
from callsheet.core.model.state_machines import JOB, STAGE, TASK
from callsheet.core.prefetched_facts import Key

R = TypeVar("R", bound=Row)
Rows = dict[type[Row], dict[Key, Row]]


def key_of(row: Row) -> Key:
    return type(row).key_of(row)


def _all(rows: Rows, row: type[R]) -> Iterable[R]:
    return rows[row].values()  # type: ignore[return-value]


def assert_evidence_unchanged(before: Row, after: Row) -> None:
    """Check that runs, attempts and calls do not change after their end (R315, R430)."""
    if isinstance(before, Run):
        assert before.finished_at is None, f"run {key_of(before)} changed after its end"
    if isinstance(before, Attempt | Call):
        assert before.ended_at is None, f"{before.TABLE} {key_of(before)} changed after its end"
    if isinstance(before, Task) and isinstance(after, Task):
        assert after.attempts >= before.attempts, "the number of attempts decreased (R313)"
    if isinstance(before, Job) and isinstance(after, Job):
        assert after.seq >= before.seq
        assert after.updated_at >= before.updated_at


def assert_invariants(rows: Rows) -> None:
    """Check every invariant that holds between batches."""
    groups = _RowGroups(rows)
    for wallet in _all(rows, Wallet):
        _assert_wallet(groups, wallet)
    for job in _all(rows, Job):
        _assert_job(groups, job)
    for stage in _all(rows, Stage):
        _assert_stage(groups, stage)
    for task in _all(rows, Task):
        _assert_task(rows, groups, task)
    for head in _all(rows, AuditHead):
        lines = sorted(groups.audit_lines[head.tenant], key=lambda line: line.seq)
        assert find_chain_fault(iter(lines), head, head.tenant) is None, "A3: the audit log is a chain"
    assert set(groups.audit_lines) <= set(rows[AuditHead]), "A3: every chain has a head"


class _RowGroups:
    """Rows by their parent, grouped once."""

    def __init__(self, rows: Rows) -> None:
        self.entries = _group_by(_all(rows, LedgerEntry), "wallet_id")
        self.runs = _group_by(_all(rows, Run), "job_id")
        self.events = _group_by(_all(rows, Event), "subject")
        self.stages = _group_by(_all(rows, Stage), "job_id")
        self.tasks = _group_by(_all(rows, Task), "job_id")
        self.in_stage = _group_by(_all(rows, Task), "stage_id")
        self.jobs = _group_by(_all(rows, Job), "wallet_id")
        self.attempts = _group_by(_all(rows, Attempt), "task_id")
        self.audit_lines = _group_by(_all(rows, Audit), "tenant")


def _group_by(rows: Iterable[R], field: str) -> dict[str, list[R]]:
    groups: dict[str, list[R]] = defaultdict(list)
    for row in rows:
        groups[getattr(row, field)].append(row)
    return groups


def _assert_wallet(groups: _RowGroups, wallet: Wallet) -> None:
    entries = sorted(groups.entries[wallet.id], key=lambda e: e.seq)
    assert wallet.balance == sum(e.amount for e in entries), "M1: balance = sum of entries"
    assert wallet.topped_up == sum(e.amount for e in entries if e.kind == "topup"), "M1: total top-ups"
    assert wallet.consumed == sum(e.consumed for e in entries), "M1: total consumption"
    assert wallet.balance >= 0, "M2: never negative"
    runs = [run for job in groups.jobs[wallet.id] for run in groups.runs[job.id]]
    assert wallet.reserved == sum(run.price for run in runs if run.status == "open"), "M3: reserved = open reservations"
    assert [e.seq for e in entries] == list(range(1, wallet.entries + 1)), "M11: entries are numbered without a gap"
    running = 0
    for entry in entries:
        running += entry.amount
        assert entry.balance == running, "M11: running balance"
    kinds = Counter((e.job_id, e.run, e.kind == "reserve") for e in entries if e.job_id)
    assert all(count == 1 for count in kinds.values()), "M4, M5: one reserve and one settlement per run"
    for run in runs:
        settled = kinds[run.job_id, run.no, False]
        assert settled == (run.price > 0 and run.status != "open"), "M8, M10: settled exactly when ended"


def _assert_job(groups: _RowGroups, job: Job) -> None:
    assert (job.status in JOB.terminal) == (job.finished_at is not None), "J7"
    assert (job.error_code is not None) == (job.status in JOB.terminal - {"completed"}), (
        "J8: exactly the jobs that ended without completing have an error code"
    )
    events = sorted(groups.events[job.id], key=lambda e: e.seq)
    assert [e.seq for e in events] == list(range(1, job.seq + 1)), "J3: events are numbered without a gap"
    assert [e.at for e in events] == sorted(e.at for e in events), "J4: times never decrease"
    moves = [e for e in events if e.type.startswith("job.") and e.target]
    assert not moves or moves[-1].target == job.status, "J5: the status is the target of the last move"
    for one, two in pairwise(moves):
        assert one.target == two.source, "J2: each move begins where the one before it ended"
    if job.status == "completed":
        assert all(s.status == "completed" for s in groups.stages[job.id]), "G3"
    if job.finished_at is not None:
        assert all(t.status in TASK.terminal for t in groups.tasks[job.id]), "G5: an ended job has no open task"


def _assert_stage(groups: _RowGroups, stage: Stage) -> None:
    tasks = groups.in_stage[stage.id]
    counted = Counter(t.status for t in tasks)
    assert stage.tasks_total == len(tasks)
    for status in ("running", "completed", "failed", "canceled"):
        assert getattr(stage, f"tasks_{status}") == counted[status], f"G10: tasks_{status} of the stage"
    if stage.status == "completed":
        assert tasks, "G2: a completed stage has a task"
        assert counted["completed"] == len(tasks), "G2"
    assert (stage.status in STAGE.terminal) == (stage.finished_at is not None)


def _assert_task(rows: Rows, groups: _RowGroups, task: Task) -> None:
    attempts = groups.attempts[task.id]
    live = [a for a in attempts if a.ended_at is None]
    assert len(live) == (task.status == "running"), "L1, L2: a task has one live attempt while it runs"
    assert sorted(a.no for a in attempts) == list(range(1, task.attempts + 1)), (
        "L3: attempts are numbered without a gap"
    )
    assert not (task.ready and task.status not in {"pending", "retried"}), (
        "L13: only a pending or retried task is claimable"
    )
    if task.ready:
        job, stage = rows[Job][task.job_id], rows[Stage][task.stage_id]
        assert isinstance(job, Job)
        assert isinstance(stage, Stage)
        assert job.status in {"queued", "running"}, "L13: the job allows claims"
        assert stage.status in {"pending", "running"}, "L13: the stage allows claims"
