"""No source API shows a move that its own rules forbid, for every sequence of moves of a job."""

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
from tests.core.model.source_projections import (
    DISPATCH,
    DISPATCH_MOVES,
    FIRST_API,
    LIFECYCLE_API,
    SECOND_API,
    TREE_API,
    VIEWS,
    ObservedStatus,
    SourceView,
)
from tests.core.rule_harness import CoreHarness

EACH = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
TWO = WorkflowDefinition(
    name="draw", price=3, deadline_seconds=300, cancel_grace_seconds=20, retry=RetryPolicy(on="any", attempts_max=2),
    stages=[StageSpec(name="one", kind="draw", tasks=2), StageSpec(name="two", kind="draw", approval=True)],
)  # fmt: skip


def apply_move(seen: ObservedStatus, event: str, target: str) -> ObservedStatus:
    """Return the observed status after a move."""
    if event == "retry":
        return ObservedStatus(target)
    return ObservedStatus(target, seen.started or target == "running", seen.released or target in {"queued", "running"})


def possible_moves(seen: ObservedStatus) -> Iterator[Move]:
    """Yield the moves that the decisions can make; some also depend on whether the job has started."""
    for move in JOB.moves:
        condition = {
            "continue": seen.started, "resume": not seen.started, "postpone": not seen.started and not seen.released,
            "preflight": not seen.started, "expire": seen.started, "stop": seen.started,
            "complete": seen.started,
        }.get(move.event, True)  # fmt: skip
        if move.source == seen.status and condition:
            yield move


def assert_legal_in_view(view: SourceView, before: ObservedStatus, after: ObservedStatus, event: str) -> None:
    if before.status == NEW or (event == "retry" and not view.reopens):
        return  # an API without a retry does not show one
    for source, target in pairwise(view.path(before, after)):
        assert (source, target) in view.moves, f"{before} to {after} by {event} shows {source} to {target}"


def all_words(view: SourceView) -> set[str]:
    return {view.word(ObservedStatus(s, a, b)) for s in JOB.statuses for a in (False, True) for b in (False, True)}


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (FIRST_API, "pending queued processing completed failed expired canceled"),
        (SECOND_API, "queued running completed failed cancelled"),
        (LIFECYCLE_API, "pending running succeeded failed blocked"),
        (TREE_API, "PENDING PAUSED IN_PROGRESS COMPLETED FAILED ABORTED"),
    ],
)
def test_the_statuses_map_to_the_words_of_the_source_api(view: SourceView, words: str) -> None:
    """R2, R100, R293, R377, C2."""
    assert all_words(view) == set(words.split())


@EACH
def test_every_status_has_a_word_in_every_source_api(view: SourceView) -> None:
    """R428."""
    words = all_words(view)
    known = {word for move in view.moves for word in move}
    assert words - known <= {"blocked"}
    assert {view.words[status] for status in JOB.terminal}.isdisjoint({view.words["running"], view.words["queued"]})


@EACH
def test_every_move_of_the_job_machine_is_legal_in_every_source_api(view: SourceView) -> None:
    """R429: every move from every reachable observed status."""
    waiting, known = deque([ObservedStatus()]), {ObservedStatus()}
    checked = 0
    while waiting:
        seen = waiting.popleft()
        for move in possible_moves(seen):
            moved = apply_move(seen, move.event, move.target)
            assert_legal_in_view(view, seen, moved, move.event)
            checked += 1
            if moved not in known:
                known.add(moved)
                waiting.append(moved)
    assert {seen.status for seen in known} == {NEW, *JOB.statuses}
    assert checked >= len(JOB.moves)


@EACH
def test_intermediate_statuses_of_a_view_make_legal_moves(view: SourceView) -> None:
    for (source, target), between in view.through.items():
        assert (source, target) not in view.moves, "a direct move needs no statuses in between"
        assert set(pairwise([source, *between, target])) <= view.moves


def test_every_move_of_a_task_is_legal_in_the_dispatch_api() -> None:
    """R183."""
    assert set(DISPATCH) == set(TASK.statuses)
    moves = {
        (DISPATCH[move.source], DISPATCH[move.target])
        for move in TASK.moves
        if move.source != NEW and move.event != "reset"  # a reset is part of a retry of the job
    }
    assert {pair for pair in moves if len(set(pair)) > 1} == DISPATCH_MOVES


def test_stages_and_tasks_map_to_the_words_of_the_tree_api() -> None:
    """R394, R409: the tree API has no word for a canceled task; its stage and its job are ABORTED."""
    renamed = {"running": "IN_PROGRESS", "canceled": "ABORTED"}
    stages, tasks = ({renamed.get(word, word.upper()) for word in machine.statuses} for machine in (STAGE, TASK))
    assert stages == {"CREATED", "PENDING", "WAITING", "IN_PROGRESS", "COMPLETED", "FAILED", "ABORTED"}
    assert tasks - {"ABORTED"} == {"CREATED", "PENDING", "IN_PROGRESS", "RETRIED", "COMPLETED", "FAILED"}


def test_the_first_api_has_thirteen_moves_and_the_second_has_five() -> None:
    """R114: and in the first API nothing leaves completed or canceled."""
    assert (len(FIRST_API.moves), len(SECOND_API.moves)) == (13, 5)
    assert not [move for move in FIRST_API.moves if move[0] in {"completed", "canceled"}]
    for pair in ("queued expired", "pending expired", "queued completed", "processing queued", "canceled pending"):
        assert tuple(pair.split()) not in FIRST_API.moves


def test_a_planted_view_with_an_illegal_move_is_found() -> None:
    """The first API has no move from queued to pending."""
    faulty = FIRST_API._replace(paused=("queued", "queued", "processing"))
    with pytest.raises(AssertionError, match="queued to pending"):
        assert_legal_in_view(faulty, ObservedStatus("paused"), ObservedStatus("pending"), "postpone")


# -- random sequences of commands


def _choices(harness: CoreHarness, job_id: str, leases: list[c.Lease]) -> list[c.Command]:
    key: dict[str, Any] = {"tenant": "acme", "job_id": job_id}
    waiting = [s for s in harness.stages(job_id) if s.status == "waiting"]
    reports: list[c.Command] = [
        command
        for lease in leases[-2:]
        for command in (
            c.Complete(lease=lease), c.Fail(lease=lease, retryable=True), c.Requeue(lease=lease, reason="spot"),
            c.Fail(lease=lease, retryable=False),
        )
    ]  # fmt: skip
    return [
        c.Pause(**key), c.Resume(**key), c.Cancel(**key), c.Cancel(**key, grace_seconds=0), c.Retry(**key),
        *(c.Approve(**key, stage_id=s.id, approver="bo") for s in waiting), *reports, *reports,
    ]  # fmt: skip


def _run_random_commands(seed: int) -> tuple[CoreHarness, str]:
    rng = random.Random(seed)
    harness = CoreHarness(replace(TWO, price=rng.choice([0, 3])))
    job_id = harness.submit(start_in_seconds=rng.choice([0, 30]))
    leases: list[c.Lease] = []
    for _ in range(40):
        choice = rng.random()
        if choice < 0.25:
            harness.advance(rng.choice([1, 5, 40, 400]))
            harness.tick()
        elif choice < 0.5:
            leases += [leased.lease for leased in harness.claim()]
        else:
            result = harness.batch(rng.choice(_choices(harness, job_id, leases)))[0]
            assert isinstance(result, Refusal | c.JobState | c.TaskState)
    return harness, job_id


def _job_moves(harness: CoreHarness, job_id: str) -> Iterator[tuple[ObservedStatus, ObservedStatus, str]]:
    seen = ObservedStatus()
    for event in harness.events(job_id):
        if event.type.startswith("job.") and event.target is not None:
            moved = apply_move(seen, "retry" if event.type == "job.retried" else "", event.target)
            yield seen, moved, "retry" if event.type == "job.retried" else event.type
            seen = moved


def test_random_commands_cause_only_legal_moves_in_every_source_api() -> None:
    """R429."""
    ends = set()
    for seed in range(60):
        harness, job_id = _run_random_commands(seed)
        for before, after, event in _job_moves(harness, job_id):
            for view in VIEWS.values():
                assert_legal_in_view(view, before, after, event)
        ends.add(harness.job(job_id).status)
    assert len(ends) >= 4, f"the commands reached too few statuses: {ends}"
