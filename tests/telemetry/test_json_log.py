"""The structured log: one JSON object per event or refused move, and no secrets."""

import io
import json
import re
from typing import Any

import pytest

from callsheet.core.model.commands import Cancel, Pause, Retry
from callsheet.engine.loops.sink_delivery import Relay
from callsheet.telemetry import JsonLogWriter
from tests.support.doubles.fake_provider import FakeProvider, clip_workflow, submit_to_provider
from tests.support.doubles.hostile_server import MARK, TEXT
from tests.support.engine.engine_harness import EngineHarness
from tests.support.wait import wait_until


class Log:
    """A log stream that receives the events of a relay and the refusals of an engine."""

    def __init__(self, harness: EngineHarness) -> None:
        self.stream = io.StringIO()
        self._harness = harness
        writer = JsonLogWriter(self.stream, harness.clock.now)
        harness.engine.refusal_listeners.append(writer.record_refusal)
        self._relay = Relay(harness.engine, "log", "me", writer.events)
        self._writer = writer

    def lines(self, job: str) -> list[dict[str, Any]]:
        """Write all events and refusals so far, and return the lines of one job."""
        count = len(self._harness.reads.events(job))
        wait_until(lambda: len([p for p in self._harness.reads.feed() if p.event.subject == job]) == count)
        while self._relay.run_once(self._harness.clock.now()):
            pass
        self._writer.run_once(self._harness.clock.now())
        written = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [line for line in written if line["job_id"] == job]


@pytest.fixture
def log(harness: EngineHarness) -> Log:
    return Log(harness)


def lines_of_event(lines: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == event]


def test_a_created_job_is_logged_with_its_type_and_price(harness: EngineHarness, log: Log) -> None:
    # R92, R93, R94
    job = harness.submit_job()
    (line,) = log.lines(job)
    assert line == {
        "ts": "2026-01-01T00:00:00.000Z", "event": "job.created", "job_id": job, "run": 1, "type": "sketch",
        "credits_cost": 5,
    }  # fmt: skip


def test_every_move_of_a_job_is_logged_once_with_both_statuses(harness: EngineHarness, log: Log) -> None:
    # R25, R93, R95
    job = harness.submit_job()
    harness.clock.advance(1.25)
    lease = harness.claim_one()
    harness.complete(lease)
    moves = [(line["from_status"], line["to_status"]) for line in lines_of_event(log.lines(job), "job.transition")]
    assert moves == [("queued", "running"), ("running", "completed")]
    assert {line["ts"] for line in lines_of_event(log.lines(job), "job.transition")} == {"2026-01-01T00:00:01.250Z"}


def test_every_event_is_one_line_with_the_common_fields(harness: EngineHarness, log: Log) -> None:
    # R92, R93
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.heartbeat(lease, progress=50, message="half")
    harness.requeue(lease)
    harness.finish(job)
    lines = log.lines(job)
    events = harness.reads.events(job)
    moved = {"job.started", "job.completed"}
    expected = ["job.transition" if event.type in moved else event.type for event in events]
    assert sorted(line["event"] for line in lines) == sorted([*expected, "job.completed"])
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
        assert re.fullmatch(r"(job|stage|task)\.\w+", line["event"])


def test_a_completed_job_is_logged_with_its_outputs_and_credits(harness: EngineHarness, log: Log) -> None:
    # R97
    job = harness.submit_job()
    harness.complete(harness.claim_one(), delivered=50)
    (line,) = lines_of_event(log.lines(job), "job.completed")
    logged = {name: line[name] for name in ("outputs", "credits_cost", "credits_consumed", "credits_refunded")}
    assert logged == {"outputs": 1, "credits_cost": 5, "credits_consumed": 3, "credits_refunded": 2}
    (task,) = lines_of_event(log.lines(job), "task.completed")
    assert (task["bytes"], len(task["digest"])) == (4, 64)


def test_a_failed_job_is_logged_with_its_error_and_refund(harness: EngineHarness, log: Log) -> None:
    # R63, R98
    job = harness.submit_job()
    harness.fail(harness.claim_one(), "FFmpeg exited with 1")
    (line,) = lines_of_event(log.lines(job), "job.failed")
    logged = {name: line[name] for name in ("code", "message", "credits_refunded", "credits_consumed")}
    assert logged == {
        "code": "task_failed", "message": "FFmpeg exited with 1", "credits_refunded": 5, "credits_consumed": 0,
    }  # fmt: skip


@pytest.mark.parametrize("ending", ["expired", "canceled"])
def test_an_expired_or_canceled_job_is_logged_with_its_move_and_its_refund(
    harness: EngineHarness, log: Log, ending: str
) -> None:
    # R95
    job = harness.submit_job(deadline_seconds=10)
    if ending == "expired":
        harness.advance(10)
    else:
        harness.cancel(job)
    (line,) = lines_of_event(log.lines(job), f"job.{ending}")
    assert line["credits_refunded"] == 5
    move = lines_of_event(log.lines(job), "job.transition")[-1]
    assert (move["from_status"], move["to_status"]) == ("running" if ending == "expired" else "queued", ending)


def test_a_refused_move_is_logged_with_both_statuses(harness: EngineHarness, log: Log) -> None:
    # R26, R71, R96
    job = harness.submit_job()
    harness.finish(job)
    harness.expect_refusal(Pause(tenant="acme", job_id=job))
    harness.expect_refusal(Cancel(tenant="acme", job_id=job, actor="admin"))
    harness.expect_refusal(Retry(tenant="acme", job_id=job, actor="admin"))
    denied = lines_of_event(log.lines(job), "job.transition_denied")
    assert [(line["from_status"], line["to_status"], line["actor"]) for line in denied] == [
        ("completed", "paused", "user"),
        ("completed", "canceled", "admin"),
        ("completed", "pending", "admin"),
    ]


def test_a_refusal_that_is_no_move_is_not_logged(harness: EngineHarness, log: Log) -> None:
    harness.expect_refusal(harness.submission(priority=101))
    assert log.lines("") == []
    assert log.stream.getvalue() == ""


def test_no_line_contains_a_secret(harness: EngineHarness, log: Log) -> None:
    # R99, R333, R334, R341, R346, R351
    clip_workflow(harness)
    secrets = {"prompt-text", "https://bucket/x?X-Amz-Signature=abc", "sk-live-abcdef123456", "hunter2hunter2"}
    job = harness.submit_job("clip", input={"prompt": "prompt-text"}, metadata={"note": "hunter2hunter2"})
    lease = harness.claim_one("render")
    harness.heartbeat(lease, progress=5, message="fetching https://bucket/x?X-Amz-Signature=abc")
    harness.requeue(lease, "password=hunter2hunter2 was rejected")
    submitted = submit_to_provider(harness, FakeProvider())
    harness.cancel(job, reason="Bearer sk-live-abcdef123456", grace_seconds=0)
    lines = log.lines(job)
    text = log.stream.getvalue()
    assert {secret for secret in secrets if secret in text} == set(), lines
    for hidden in (lease.token, submitted.lease.token, submitted.ref):
        assert hidden not in text


def test_a_log_line_has_no_character_that_a_terminal_acts_on(harness: EngineHarness, log: Log) -> None:
    job = harness.submit_job()
    harness.heartbeat(harness.claim_one(), log=(TEXT.replace("\0", ""),))
    assert any(MARK in str(line) for line in log.lines(job))
    assert log.stream.getvalue().replace("\n", "").isprintable()


def test_a_message_with_line_breaks_is_logged_on_one_line(harness: EngineHarness, log: Log) -> None:
    # R92
    job = harness.submit_job()
    harness.fail(harness.claim_one(), "one\ntwo\u2028three")
    assert log.lines(job)
    assert all(line.startswith("{") and line.endswith("}") for line in log.stream.getvalue().splitlines())
