"""The reference page of the log lists every line that the code can write, with its fields."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

from callsheet.core.decisions.transitions import JOB_EVENT_TYPES
from callsheet.core.model.errors import IllegalTransition
from callsheet.core.model.rows import Event, Job
from callsheet.core.model.state_machines import JOB, NEW
from callsheet.core.working_set import WorkingSet
from callsheet.telemetry.event_log import denied_record, log_records
from tests.sim.simulation import simulate
from tests.support.tidiness import source_scan
from tests.support.tidiness.source_scan import read_tables
from tests.support.tidiness.tidy import ROOT

SIMULATIONS = 20
COMMON = {"ts", "event", "job_id", "run"}
ROWS = {
    name: set(re.findall(r"`(\w+)`", cells[0]))
    for name, cells in read_tables(ROOT / "docs" / "reference" / "log.md", "Lines").items()
}
ROWS.pop("event")
RARE = {"task.progressed": {"preview", "last"}}
"""Fields that no simulation produces."""


def test_every_line_that_can_be_written_is_on_the_page() -> None:
    moves = {
        JOB_EVENT_TYPES[move.event] for move in JOB.moves if move.source != NEW and move.target not in JOB.terminal
    }
    written = source_scan.event_types(source_scan.source()) - moves | {"job.transition", "job.transition_denied"}
    assert {"job.paused", "job.started"} <= moves
    assert set(ROWS) == written


def test_the_lines_of_simulated_jobs_have_the_fields_that_the_page_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails if a field is added, removed or renamed and the page is not."""
    seen: dict[str, set[str]] = defaultdict(set)
    emit = WorkingSet.emit

    def emit_and_record(
        ws: WorkingSet, job: Job, type_: str, actor: Any, data: Mapping[str, Any] | None = None, *,
        entity_id: str | None = None, source: str | None = None, target: str | None = None,
    ) -> None:  # fmt: skip
        emit(ws, job, type_, actor, data, entity_id=entity_id, source=source, target=target)
        text = json.dumps(data) if data else None
        for line in log_records(
            Event(job.id, 1, job.tenant, job.run, 0, type_, entity_id, source, target, actor, text)
        ):
            seen[line["event"]] |= set(line) - COMMON
            assert set(line) >= COMMON

    monkeypatch.setattr(WorkingSet, "emit", emit_and_record)
    for seed in range(SIMULATIONS):
        simulate(seed)
    assert len(seen) > len(ROWS) - 5
    assert seen == {name: ROWS[name] - RARE.get(name, set()) for name in seen}


def test_the_line_of_a_refused_move_has_the_fields_that_the_page_lists() -> None:
    line = denied_record(0, "job", IllegalTransition("job", "completed", "paused", "user", message="No."))
    assert set(line) - COMMON == ROWS["job.transition_denied"]
