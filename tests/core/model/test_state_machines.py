"""The three state machines, exhaustively: the listed moves are allowed and all others are refused."""

from typing import get_args

import pytest

from callsheet.core.model.errors import IllegalTransition
from callsheet.core.model.state_diagrams import page
from callsheet.core.model.state_machines import JOB, MACHINES, NEW, STAGE, TASK, Actor, Machine

ACTORS: tuple[Actor, ...] = get_args(Actor)
PEOPLE, WORKER, SYSTEM = ("user", "admin"), ("worker",), ("system",)

# The allowed moves, written by hand from the requirements: source, target and the actors that may make the move.
ALLOWED_JOB = {
    NEW: {"queued": PEOPLE + SYSTEM, "pending": PEOPLE + SYSTEM, "blocked": SYSTEM},  # R298, R383
    "pending": {
        "queued": SYSTEM,  # R10
        "running": SYSTEM,  # R11, C23: preflight
        "paused": PEOPLE,  # R380
        "failed": SYSTEM,  # R12
        "canceled": PEOPLE,  # R13
    },
    "queued": {
        "running": WORKER + SYSTEM,  # R14, R384
        "paused": PEOPLE,
        "failed": SYSTEM,  # R15
        "canceled": PEOPLE,  # R16
    },
    "running": {
        "paused": PEOPLE,
        "completed": SYSTEM,  # R17, R385
        "failed": SYSTEM,  # R18, R386
        "canceled": PEOPLE + WORKER + SYSTEM,  # R19, R121, C4
        "expired": SYSTEM,  # R20
    },
    "paused": {
        "queued": PEOPLE,  # R379
        "running": PEOPLE + SYSTEM,  # R390; preflight by the system
        "pending": PEOPLE,
        "completed": SYSTEM,  # R388: running tasks may still end the job
        "failed": SYSTEM,
        "canceled": PEOPLE + WORKER + SYSTEM,  # R381
        "expired": SYSTEM,
    },
    "failed": {"pending": PEOPLE},  # R21
    "expired": {"pending": PEOPLE},  # R22
    "completed": {},
    "canceled": {},
    "blocked": {},
}
ALLOWED_STAGE = {
    NEW: {"created": SYSTEM},
    "created": {"pending": SYSTEM, "waiting": (*SYSTEM, "admin"), "canceled": SYSTEM},  # R398, R399, R403
    "pending": {
        "waiting": (*SYSTEM, "admin"),
        "running": WORKER,  # R400
        "completed": SYSTEM,  # approved after its last task has ended
        "failed": SYSTEM,
        "canceled": SYSTEM,
    },
    "waiting": {"pending": PEOPLE, "failed": SYSTEM, "canceled": SYSTEM},  # R395
    "running": {
        "waiting": (*SYSTEM, "admin"),
        "completed": SYSTEM,  # R401
        "failed": SYSTEM,  # R402
        "canceled": SYSTEM,
    },
    "completed": {},
    "failed": {"created": SYSTEM},
    "canceled": {"created": SYSTEM},
}
BOTH = WORKER + SYSTEM
ALLOWED_TASK = {
    NEW: {"created": SYSTEM},
    "created": {"pending": SYSTEM, "canceled": BOTH},  # R411
    "pending": {"running": WORKER, "canceled": BOTH},  # R412
    "retried": {"running": WORKER, "canceled": BOTH},  # R414
    "running": {"completed": BOTH, "failed": BOTH, "retried": BOTH, "canceled": BOTH},  # R410, R413
    "completed": {},
    "failed": {"created": SYSTEM},
    "canceled": {"created": SYSTEM},
}
TABLES = [(JOB, ALLOWED_JOB), (STAGE, ALLOWED_STAGE), (TASK, ALLOWED_TASK)]
NAMED = pytest.mark.parametrize(("machine", "allowed"), TABLES, ids=["job", "stage", "task"])
EACH = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.entity)


def _events(machine: Machine) -> list[str]:
    return list(dict.fromkeys(move.event for move in machine.moves))


@NAMED
def test_the_machine_allows_exactly_the_listed_moves(
    machine: Machine, allowed: dict[str, dict[str, tuple[str, ...]]]
) -> None:
    """R23, R28, R382, R396, R397, R415: for every source, target and actor."""
    assert {NEW, *machine.statuses} == set(allowed)
    for source, targets in allowed.items():
        for target in machine.statuses:
            actors = {
                actor
                for actor in ACTORS
                for event in _events(machine)
                if machine.target(event) == target and machine.allows(source, event, actor)
            }
            assert actors == set(targets.get(target, ())), f"{machine.entity}: {source} to {target}"


@EACH
def test_step_makes_allowed_moves_and_refuses_all_others(machine: Machine) -> None:
    """R24: the error names both statuses and the actor."""
    refused = 0
    for source in (NEW, *machine.statuses):
        for event in _events(machine):
            for actor in ACTORS:
                target = machine.target(event)
                if machine.allows(source, event, actor):
                    assert machine.step(source, event, actor) == target
                    continue
                refused += 1
                with pytest.raises(IllegalTransition) as caught:
                    machine.step(source, event, actor)
                assert caught.value.code == "illegal_transition"
                assert f"is {source}: it cannot" in caught.value.message
                assert (caught.value.source, caught.value.target) == (source, target)
                assert caught.value.details["actor"] == actor
    assert refused > 100


@EACH
def test_each_event_has_one_target(machine: Machine) -> None:
    targets: dict[str, set[str]] = {}
    for move in machine.moves:
        targets.setdefault(move.event, set()).add(move.target)
    assert all(len(found) == 1 for found in targets.values())
    assert all(machine.target(event) in found for event, found in targets.items())


@EACH
def test_each_move_is_listed_once_and_has_an_actor(machine: Machine) -> None:
    rows = [(move.source, move.event) for move in machine.moves]
    assert len(rows) == len(set(rows))
    assert all(move.actors and set(move.actors) <= set(ACTORS) for move in machine.moves)


@EACH
def test_only_retry_and_reset_leave_a_terminal_status(machine: Machine) -> None:
    """R113, J6: completed and canceled are final; only a new run opens failed and expired jobs."""
    leaving = {move.event for move in machine.moves if move.source in machine.terminal}
    assert leaving == {"retry" if machine is JOB else "reset"}
    assert not [move for move in machine.moves if move.source in {"completed", "blocked"}]
    assert machine is not JOB or not [move for move in machine.moves if move.source == "canceled"]


@EACH
def test_every_status_can_be_reached(machine: Machine) -> None:
    reached = {NEW}
    while found := {m.target for m in machine.moves if m.source in reached} - reached:
        reached |= found
    assert reached == {NEW, *machine.statuses}


@EACH
def test_every_status_can_reach_a_terminal_status(machine: Machine) -> None:
    ends = set(machine.terminal)
    while found := {m.source for m in machine.moves if m.target in ends} - ends:
        ends |= found
    assert ends >= set(machine.statuses)


def test_only_users_and_admins_cancel_and_only_the_system_expires() -> None:
    """R8: `stop` only completes a cancellation that a user or an admin requested."""
    assert {a for m in JOB.moves if m.event == "cancel" for a in m.actors} == {"user", "admin"}
    assert {a for m in JOB.moves if m.event == "expire" for a in m.actors} == {"system"}


def test_the_diagrams_show_every_move() -> None:
    text = page()
    for machine in MACHINES:
        for move in machine.moves:
            source = "[*]" if move.source == NEW else move.source
            assert f"    {source} --> {move.target}: {move.event}\n" in text
            assert f"| {move.event} |" in text


def test_the_diagram_ends_exactly_at_terminal_statuses() -> None:
    diagram = page().split("## Stage")[0]
    for status in JOB.statuses:
        assert (f"    {status} --> [*]\n" in diagram) == (status in JOB.terminal)
