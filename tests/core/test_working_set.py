"""The working set: a refused command is undone exactly, and every changed row is written once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.decisions.audit import chain_lines
from callsheet.core.model.rows import Audit, AuditHead, Document, Job, Tenant
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.working_set import NotLoaded, WorkingSet

NOW = 1_000
Step = tuple[str, int, int]


def _job(number: int) -> Job:
    return Job(f"j{number}", "t", "u", "t/u", "w", 1, None, "f", None, 1, "queued", 1, 5, 0, 0, 0, 0, 10, NOW - 5)


def _fresh() -> WorkingSet:
    ws = WorkingSet(NOW, Limits())
    ws.load(Tenant, [Tenant("t1", 1, "active", 0, 1)], ["t1", "t2"])
    ws.load(Job, [_job(1), _job(2)])
    ws.facts[facts.ACTIVE_JOB_COUNT, "a"] = 1
    return ws


def _apply(ws: WorkingSet, step: Step) -> None:
    operation, key, value = step
    if operation == "put":
        ws.put(Tenant(f"t{key}", value + 1, "active", 0, 1))
    elif operation == "append":
        ws.append(Document(f"d{key}", str(value), "j1", "{}"))
    elif operation == "emit":
        ws.emit(ws.get(Job, f"j{key % 2 + 1}"), "job.changed", "user", {"value": value})
    elif operation == "fact":
        ws.set_fact(facts.ACTIVE_JOB_COUNT, "abc"[key % 3], value)
    elif operation == "create":
        ws.put(replace(_job(3 + key), seq=0))
        ws.emit(ws.get(Job, f"j{3 + key}"), "job.created", "user")
    else:
        ws.purge(f"j{key}")


def _observable(ws: WorkingSet) -> Any:
    """Return the facts, the purged jobs and the rows to write; appended rows keep their order."""
    writes = {
        (row, frozenset(new) if row.FIXED_COLUMNS else tuple(new), frozenset(changed))
        for row, new, changed in ws.writes()
    }
    return dict(ws.facts), list(ws.purged_job_ids), writes


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "append", "emit", "fact", "create", "purge"]), st.integers(0, 4), st.integers(0, 9)
    ),
    max_size=20,
)


@given(STEPS, STEPS)
def test_undo_restores_the_state_before_the_command(accepted: list[Step], refused: list[Step]) -> None:
    """R24."""
    expected, ws = _fresh(), _fresh()
    for step in accepted:
        _apply(expected, step)
        _apply(ws, step)
    ws.begin()
    for step in refused:
        _apply(ws, step)
    ws.undo()
    assert _observable(ws) == _observable(expected)


@given(STEPS, STEPS, STEPS)
def test_a_refused_command_does_not_affect_later_commands(
    before: list[Step], refused: list[Step], after: list[Step]
) -> None:
    """R59: event numbers stay without a gap too."""
    expected, ws = _fresh(), _fresh()
    for step in before + after:
        _apply(expected, step)
    for step in before:
        _apply(ws, step)
    ws.begin()
    for step in refused:
        _apply(ws, step)
    ws.undo()
    for step in after:
        _apply(ws, step)
    assert _observable(ws) == _observable(expected)


@given(STEPS)
def test_events_are_numbered_without_a_gap_and_the_job_has_the_last_number(steps: list[Step]) -> None:
    """J3."""
    ws = _fresh()
    for step in steps:
        _apply(ws, step)
    writes = {row.TABLE: (new, changed) for row, new, changed in ws.writes()}
    events = writes.get("event", ([], []))[0]
    jobs = {job.id: job.seq for job in (*writes.get("job", ([], []))[0], *writes.get("job", ([], []))[1])}  # type: ignore[attr-defined]
    for subject in {event.subject for event in events}:  # type: ignore[attr-defined]
        numbers = [event.seq for event in events if event.subject == subject]  # type: ignore[attr-defined]
        first = 11 if subject in {"j1", "j2"} else 1
        assert numbers == list(range(first, first + len(numbers)))
        assert jobs[subject] == numbers[-1]


def test_reading_a_row_that_was_not_loaded_raises_and_a_loaded_row_that_does_not_exist_is_none() -> None:
    ws = _fresh()
    with pytest.raises(NotLoaded) as caught:
        ws.find(Tenant, "t9")
    assert (caught.value.need, caught.value.key) == (Tenant, "t9")
    assert ws.find(Tenant, "t2") is None
    with pytest.raises(LookupError):
        ws.get(Tenant, "t2")
    with pytest.raises(NotLoaded) as missing_fact:
        ws.get_fact(facts.ACTIVE_JOB_COUNT, "acme/bob")
    assert (missing_fact.value.need, missing_fact.value.key) == (facts.ACTIVE_JOB_COUNT, "acme/bob")
    assert (ws.is_loaded(Tenant, "t2"), ws.is_loaded(Tenant, "t9")) == (True, False)


def test_a_later_load_does_not_overwrite_a_change_of_the_batch() -> None:
    ws = _fresh()
    ws.put(Tenant("t1", 7, "active", 0, 1))
    ws.load(Tenant, [Tenant("t1", 1, "active", 0, 1)])
    assert ws.get(Tenant, "t1").weight == 7


def test_new_and_changed_rows_are_written_separately_and_once() -> None:
    ws = _fresh()
    for weight in (2, 3, 4):
        ws.put(Tenant("t1", weight, "active", 0, 1))
        ws.put(Tenant("t2", weight, "active", 0, 1))
    [(row, new, changed)] = list(ws.writes())
    assert row is Tenant
    assert [tenant.weight for tenant in (*new, *changed)] == [4, 4]  # type: ignore[attr-defined]
    assert ([t.id for t in new], [t.id for t in changed]) == (["t2"], ["t1"])  # type: ignore[attr-defined]


def test_audit_lines_are_written_with_their_place_in_the_chain_and_never_early() -> None:
    ws = _fresh()
    ws.load(AuditHead, [], ["t1"])
    ws.append(Audit("a1", "t1", NOW, "k1", "tenant.put", "t1", None))
    ws.append(Document("d1", "input", "j1", "{}"))
    assert [row for row, _ in ws.take_appended()] == [Document]
    chain_lines(ws)
    assert [(row, [(r.tenant, r.seq) for r in new]) for row, new, _ in ws.writes()] == [  # type: ignore[attr-defined]
        (AuditHead, [("t1", 1)]), (Audit, [("t1", 1)]),
    ]  # fmt: skip


def test_a_row_created_after_an_undo_is_still_new() -> None:
    ws = _fresh()
    ws.begin()
    ws.put(Tenant("t2", 2, "active", 0, 1))
    ws.undo()
    ws.put(Tenant("t2", 3, "active", 0, 1))
    [(_, new, changed)] = list(ws.writes())
    assert (len(new), changed) == (1, [])


def test_the_events_of_a_job_never_go_back_in_time() -> None:
    """J4, F24."""
    ws = WorkingSet(NOW, Limits())
    ws.load(Job, [replace(_job(1), updated_at=NOW + 500)])
    ws.emit(ws.get(Job, "j1"), "job.changed", "user")
    writes = {row.TABLE: rows for row, *rows in ws.writes()}
    assert writes["event"][0][0].at == NOW + 500  # type: ignore[attr-defined]
    assert writes["job"][1][0].updated_at == NOW + 500  # type: ignore[attr-defined]
