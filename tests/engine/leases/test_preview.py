"""Previews: a heartbeat reports a preview image together with the progress."""

import json
from typing import Any

from tests.support.engine.engine_harness import EngineHarness


def progress_events(harness: EngineHarness, job: str) -> list[dict[str, Any]]:
    events = harness.reads.events(job)
    return [json.loads(event.data or "{}") for event in events if event.type == "task.progressed"]


def test_a_preview_is_in_the_progress_event(harness: EngineHarness) -> None:
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.heartbeat(lease, progress=10)
    harness.heartbeat(lease, progress=20, message="Half.", preview=1)
    assert progress_events(harness, job) == [
        {"progress": 10, "message": None}, {"progress": 20, "message": "Half.", "preview": 1},
    ]  # fmt: skip


def test_a_preview_without_progress_keeps_the_last_progress(harness: EngineHarness) -> None:
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.heartbeat(lease, progress=30, message="Here.")
    harness.heartbeat(lease, preview=7)
    assert progress_events(harness, job)[-1] == {"progress": 30, "message": None, "preview": 7}
    assert (harness.tasks(job)[0].progress, harness.tasks(job)[0].message) == (30, "Here.")


def test_a_heartbeat_without_progress_emits_no_event(harness: EngineHarness) -> None:
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.heartbeat(lease)
    assert progress_events(harness, job) == []
