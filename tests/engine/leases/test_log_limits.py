"""Logs and progress events of a job are limited. The last one says so; leases and status changes are not affected."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from callsheet.core.model import commands as c
from callsheet.core.policy.engine_limits import Limits
from callsheet.settings import Settings
from tests.support.engine.engine_harness import EngineHarness, OpenHarness, stage

LOG_BYTES_MAX = 1_000
NOTICE = "The log has reached its limit of 1000 bytes (log_bytes_per_job_max). Later lines are dropped."


@pytest.fixture
def limited(open_harness: OpenHarness) -> Callable[..., EngineHarness]:
    """Opens a harness with limits."""
    return lambda **limits: open_harness(Settings(limits=Limits(**limits), database_retry_seconds=5))


def event_data(harness: EngineHarness, job: str, type_: str) -> list[dict[str, Any]]:
    return [json.loads(event.data or "{}") for event in harness.reads.events(job) if event.type == type_]


def log_lines(harness: EngineHarness, job: str) -> list[str]:
    return [line for data in event_data(harness, job, "task.logged") for line in data["lines"]]


def test_a_log_ends_with_one_line_that_says_so(limited: Callable[..., EngineHarness]) -> None:
    harness = limited(log_bytes_per_job_max=LOG_BYTES_MAX)
    job = harness.submit_job()
    lease = harness.claim_one()
    for number in range(50):
        harness.heartbeat(lease, log=(f"line {number} " + "x" * 30, "größer"))
    lines = log_lines(harness, job)
    assert lines[-1] == NOTICE
    assert lines.count(NOTICE) == 1
    assert lines[0] == "line 0 " + "x" * 30
    assert LOG_BYTES_MAX <= harness.job(job).log_bytes < LOG_BYTES_MAX + 200
    harness.complete(lease)
    assert harness.status(job) == "completed"


def test_one_heartbeat_cannot_exceed_the_limit_by_more_than_a_line(limited: Callable[..., EngineHarness]) -> None:
    harness = limited(log_bytes_per_job_max=LOG_BYTES_MAX)
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.heartbeat(lease, log=("y" * 2_000,) * 100)
    assert log_lines(harness, job) == ["y" * 2_000, NOTICE]


def test_all_tasks_and_attempts_of_a_job_share_its_log(limited: Callable[..., EngineHarness]) -> None:
    harness = limited(log_bytes_per_job_max=LOG_BYTES_MAX)
    harness.workflow("film", stages=[stage("draw", tasks=2)])
    job = harness.submit_job("film")
    first, second = (one.lease for one in harness.claim(count=2))
    harness.heartbeat(first, log=("z" * 975,))
    harness.heartbeat(second, log=("b", "c", "d"))
    assert log_lines(harness, job)[1:] == ["b", NOTICE]
    harness.requeue(first)
    harness.heartbeat(harness.claim_one(), log=("e",))
    assert log_lines(harness, job)[-1] == NOTICE


def test_a_limit_of_0_drops_every_line(limited: Callable[..., EngineHarness]) -> None:
    harness = limited(log_bytes_per_job_max=0, progress_events_per_job_max=0)
    job = harness.submit_job()
    harness.heartbeat(harness.claim_one(), progress=50, log=("a",))
    assert (log_lines(harness, job), event_data(harness, job, "task.progressed")) == ([], [])
    assert harness.job(job).progress == 50


def test_progress_after_the_last_event_is_in_the_task_and_the_job(limited: Callable[..., EngineHarness]) -> None:
    harness = limited(progress_events_per_job_max=2)
    job = harness.submit_job()
    lease = harness.claim_one()
    for percent in (10, 20, 30, 40):
        assert harness.heartbeat(lease, progress=percent, message=f"{percent} %", preview=percent).lease_seconds > 0
    assert event_data(harness, job, "task.progressed") == [
        {"progress": 10, "message": "10 %", "preview": 10},
        {"progress": 20, "message": "20 %", "preview": 20, "last": True},
    ]  # fmt: skip
    (task,) = harness.tasks(job)
    assert (task.progress, task.message, harness.job(job).progress) == (40, "40 %", 40)
    harness.do(c.Fail(lease=lease, retryable=True))
    harness.advance(60)
    harness.heartbeat(harness.claim_one(), progress=5)
    assert harness.events(job).count("task.progressed") == 2
    assert harness.events(job)[-2:] == ["task.retried", "task.leased"], "status changes are never dropped"
