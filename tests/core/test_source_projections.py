"""No source system is ever shown a move that its own text forbids, whatever a job goes through."""

import random
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.errors import Refusal
from callsheet.core.model.state_machines import JOB, NEW, STAGE, TASK, Move
from callsheet.core.model.workflow_definition import RetryPolicy, StageSpec, WorkflowDefinition
from tests.core.rule_harness import CoreHarness
from tests.core.source_projections import CUTX, DISPATCH, DISPATCH_MOVES, VIEWS, ObservedStatus, SourceView

EACH = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
TWO = WorkflowDefinition(
    name="draw", price=3, deadline_seconds=300, cancel_grace_seconds=20, retry=RetryPolicy(on="any", attempts_max=2),
    stages=[StageSpec(name="one", kind="draw", tasks=2), StageSpec(name="two", kind="draw", approval=True)],
)  # fmt: skip


def after(seen: ObservedStatus, event: str, target: str) -> ObservedStatus:
    """Return what a view sees after a move."""
    if event == "retry":
        return ObservedStatus(target)
    return ObservedStatus(target, seen.started or target == "running", seen.released or target in {"queued", "running"})


def possible(seen: ObservedStatus) -> Iterator[Move]:
    """The moves that the rules make in a status: resuming has three, and each has its moment."""
    for move in JOB.moves:
        needs = {
            "continue": seen.started, "resume": not seen.started, "postpone": not seen.started and not seen.released,
            "preflight": not seen.started, "expire": seen.started, "stop": seen.started,
            "complete": seen.started,
        }.get(move.event, True)  # fmt: skip
        if move.source == seen.status and needs:
            yield move


def assert_shown(view: SourceView, before: ObservedStatus, now: ObservedStatus, event: str) -> None:
    if before.status == NEW or (event == "retry" and not view.reopens):
        return  # documented: only an operator's retry opens what these systems call ended (C3)
    path = view.path(before, now)
    for one, two in pairwise(path):
        assert (one, two) in view.moves, f"{before} to {now} by {event} shows {one} to {two}"


@EACH
def test_every_status_has_a_word_in_every_system(view: SourceView) -> None:
    """R428: projections are total and speak only words of their source."""
    words = {view.word(ObservedStatus(s, a, b)) for s in JOB.statuses for a in (False, True) for b in (False, True)}
    known = {word for move in view.moves for word in move}
    assert words - known <= {"blocked"}
    assert {view.words[status] for status in JOB.terminal}.isdisjoint({view.words["running"], view.words["queued"]})


@EACH
def test_every_move_of_the_machine_is_legal_in_every_view(view: SourceView) -> None:
    """R429, exhaustively: every move from every reachable situation."""
    waiting, known = deque([ObservedStatus()]), {ObservedStatus()}
    checked = 0
    while waiting:
        seen = waiting.popleft()
        for move in possible(seen):
            now = after(seen, move.event, move.target)
            assert_shown(view, seen, now, move.event)
            checked += 1
            if now not in known:
                known.add(now)
                waiting.append(now)
    assert {seen.status for seen in known} == {NEW, *JOB.statuses}
    assert checked >= len(JOB.moves)


@EACH
def test_a_bridge_is_made_of_moves_that_the_source_allows(view: SourceView) -> None:
    for (one, two), between in view.through.items():
        path = [one, *between, two]
        assert (one, two) not in view.moves, "a direct way needs no bridge"
        assert set(pairwise(path)) <= view.moves


def test_every_move_of_a_task_is_one_of_a_dispatch() -> None:
    """R183: queued, leased, completed or failed, and back to the queue as long as it has not ended."""
    assert set(DISPATCH) == set(TASK.statuses)
    shown = {
        (DISPATCH[move.source], DISPATCH[move.target])
        for move in TASK.moves
        if move.source != NEW and move.event != "reset"  # a reset belongs to an operator's retry (C3)
    }
    assert {pair for pair in shown if len(set(pair)) > 1} == DISPATCH_MOVES


def test_stages_and_tasks_have_the_words_of_jobnik() -> None:
    """R394, R409; a task that was canceled has no word there: the stage and the job above it say ABORTED."""
    renamed = {"running": "IN_PROGRESS", "canceled": "ABORTED"}
    stages, tasks = ({renamed.get(word, word.upper()) for word in machine.statuses} for machine in (STAGE, TASK))
    assert stages == {"CREATED", "PENDING", "WAITING", "IN_PROGRESS", "COMPLETED", "FAILED", "ABORTED"}
    assert tasks - {"ABORTED"} == {"CREATED", "PENDING", "IN_PROGRESS", "RETRIED", "COMPLETED", "FAILED"}


def test_the_cutx_matrix_has_thirteen_moves() -> None:
    """R23: 13 allowed of 49, nothing leaves completed or canceled."""
    assert len(CUTX.moves) == 13
    assert not [move for move in CUTX.moves if move[0] in {"completed", "canceled"}]
    for pair in ("queued expired", "pending expired", "queued completed", "processing queued", "canceled pending"):
        assert tuple(pair.split()) not in CUTX.moves


def test_a_view_that_showed_pause_before_the_hour_as_queued_would_be_found_out() -> None:
    """The planted fault: CutX has no way back from queued to pending."""
    careless = CUTX._replace(paused=("queued", "queued", "processing"))
    with pytest.raises(AssertionError, match="queued to pending"):
        assert_shown(careless, ObservedStatus("paused"), ObservedStatus("pending"), "postpone")


# -- walks through the rules themselves


def _choices(harness: CoreHarness, job_id: str, leases: list[c.Lease]) -> list[c.Command]:
    key: dict[str, Any] = {"tenant": "acme", "job_id": job_id}
    waiting = [s for s in harness.stages(job_id) if s.status == "waiting"]
    held: list[c.Command] = [
        command
        for lease in leases[-2:]
        for command in (
            c.Complete(lease=lease), c.Fail(lease=lease, retryable=True), c.Requeue(lease=lease, reason="spot"),
            c.Fail(lease=lease, retryable=False),
        )
    ]  # fmt: skip
    return [
        c.Pause(**key), c.Resume(**key), c.Cancel(**key), c.Cancel(**key, grace_seconds=0), c.Retry(**key),
        *(c.Approve(**key, stage_id=s.id, approver="bo") for s in waiting), *held, *held,
    ]  # fmt: skip


def _walk(seed: int) -> tuple[CoreHarness, str]:
    rng = random.Random(seed)
    harness = CoreHarness(replace(TWO, price=rng.choice([0, 3])))
    job_id = harness.submit(start_in_seconds=rng.choice([0, 30]))
    leases: list[c.Lease] = []
    for _ in range(40):
        what = rng.random()
        if what < 0.25:
            harness.advance(rng.choice([1, 5, 40, 400]))
            harness.tick()
        elif what < 0.5:
            leases += [leased.lease for leased in harness.claim()]
        else:
            result = harness.batch(rng.choice(_choices(harness, job_id, leases)))[0]
            assert isinstance(result, Refusal | c.JobState | c.TaskState)
    return harness, job_id


def _trace(harness: CoreHarness, job_id: str) -> Iterator[tuple[ObservedStatus, ObservedStatus, str]]:
    seen = ObservedStatus()
    for event in harness.events(job_id):
        if event.type.startswith("job.") and event.target is not None:
            now = after(seen, "retry" if event.type == "job.retried" else "", event.target)
            yield seen, now, "retry" if event.type == "job.retried" else event.type
            seen = now


def test_random_lives_show_every_system_only_moves_it_knows() -> None:
    """R429, R2, R100, R293, R377: the events of seeded lives, as each system would tell them."""
    ends = set()
    for seed in range(60):
        harness, job_id = _walk(seed)
        for before, now, event in _trace(harness, job_id):
            for view in VIEWS.values():
                assert_shown(view, before, now, event)
        ends.add(harness.job(job_id).status)
    assert len(ends) >= 4, f"the walks were too tame: {ends}"
