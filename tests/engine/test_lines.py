"""Log lines in the shape of the job systems before us: one JSON object per fact, and no secrets."""

import io
import json
import re
from typing import Any

import pytest

from callsheet.core.commands import Cancel, Pause
from callsheet.engine.loops import Relay
from callsheet.telemetry import LineWriter
from tests.support.providers import FakeProvider, clip_workflow, hand_in
from tests.support.studio import Studio
from tests.support.waiting import wait_until


class Log:
    """A stream of lines, fed by a relay and by refusals."""

    def __init__(self, studio: Studio) -> None:
        self.stream = io.StringIO()
        self._studio = studio
        writer = LineWriter(self.stream, studio.clock.now)
        studio.engine.denials.append(writer.denial)
        self._relay = Relay(studio.engine, "log", "me", writer.events)
        self._writer = writer

    def lines(self, job: str) -> list[dict[str, Any]]:
        """Write down what happened so far, and return one job's lines."""
        count = len(self._studio.read.events(job))
        wait_until(lambda: len([p for p in self._studio.read.feed() if p.event.subject == job]) == count)
        while self._relay.run_once(self._studio.clock.now()):
            pass
        self._writer.run_once(self._studio.clock.now())
        told = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [line for line in told if line["job_id"] == job]


@pytest.fixture
def log(studio: Studio) -> Log:
    return Log(studio)


def named(lines: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == event]


def test_a_created_job_is_told_with_its_type_and_cost(studio: Studio, log: Log) -> None:
    # R92, R93, R94
    job = studio.ask()
    (line,) = log.lines(job)
    assert line == {
        "ts": "2026-01-01T00:00:00.000Z", "event": "job.created", "job_id": job, "run": 1, "type": "sketch",
        "credits_cost": 5,
    }  # fmt: skip


def test_every_move_of_a_job_is_told_once(studio: Studio, log: Log) -> None:
    # R25, R93, R95
    job = studio.ask()
    studio.clock.advance(1.25)
    lease = studio.take()
    studio.complete(lease)
    moves = [(line["from_status"], line["to_status"]) for line in named(log.lines(job), "job.transition")]
    assert moves == [("queued", "running"), ("running", "completed")]
    assert {line["ts"] for line in named(log.lines(job), "job.transition")} == {"2026-01-01T00:00:01.250Z"}


def test_every_line_has_the_common_fields(studio: Studio, log: Log) -> None:
    # R92, R93
    job = studio.ask()
    lease = studio.take()
    studio.beat(lease, progress=50, message="half")
    studio.requeue(lease)
    studio.finish(job)
    lines = log.lines(job)
    events = studio.read.events(job)
    moved = {"job.started", "job.completed"}
    told = ["job.transition" if event.type in moved else event.type for event in events]
    assert sorted(line["event"] for line in lines) == sorted([*told, "job.completed"])
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
        assert re.fullmatch(r"(job|stage|task)\.\w+", line["event"])


def test_a_completed_job_is_told_with_its_outputs_and_money(studio: Studio, log: Log) -> None:
    # R97
    job = studio.ask()
    studio.complete(studio.take(), delivered=50)
    (line,) = named(log.lines(job), "job.completed")
    told = {name: line[name] for name in ("outputs", "credits_cost", "credits_consumed", "credits_refunded")}
    assert told == {"outputs": 1, "credits_cost": 5, "credits_consumed": 3, "credits_refunded": 2}
    (task,) = named(log.lines(job), "task.completed")
    assert (task["bytes"], len(task["digest"])) == (4, 64)


def test_a_failed_job_is_told_with_its_error_and_refund(studio: Studio, log: Log) -> None:
    # R63, R98
    job = studio.ask()
    studio.fail(studio.take(), "FFmpeg exited with 1")
    (line,) = named(log.lines(job), "job.failed")
    told = {name: line[name] for name in ("code", "message", "credits_refunded", "credits_consumed")}
    assert told == {
        "code": "task_failed", "message": "FFmpeg exited with 1", "credits_refunded": 5, "credits_consumed": 0,
    }  # fmt: skip


@pytest.mark.parametrize("ending", ["expired", "canceled"])
def test_every_other_end_is_told_with_its_refund(studio: Studio, log: Log, ending: str) -> None:
    # R95, R98
    job = studio.ask(deadline_seconds=10)
    if ending == "expired":
        studio.advance(10)
    else:
        studio.cancel(job)
    (line,) = named(log.lines(job), f"job.{ending}")
    assert line["credits_refunded"] == 5


def test_a_refused_move_is_told(studio: Studio, log: Log) -> None:
    # R26, R71, R96
    job = studio.ask()
    studio.finish(job)
    studio.refused(Pause(tenant="acme", job_id=job))
    studio.refused(Cancel(tenant="acme", job_id=job, actor="admin"))
    denied = named(log.lines(job), "job.transition_denied")
    assert [(line["from_status"], line["to_status"], line["actor"]) for line in denied] == [
        ("completed", "paused", "user"),
        ("completed", "canceled", "admin"),
    ]


def test_other_refusals_are_no_moves(studio: Studio, log: Log) -> None:
    # R26
    studio.refused(studio.submission(priority=101))
    assert log.lines("") == []
    assert log.stream.getvalue() == ""


def test_no_line_holds_a_secret(studio: Studio, log: Log) -> None:
    # R99, R310, R333, R346, R351
    clip_workflow(studio)
    secrets = {"prompt-text", "https://bucket/x?X-Amz-Signature=abc", "sk-live-abcdef123456", "hunter2hunter2"}
    job = studio.ask("clip", input={"prompt": "prompt-text"}, metadata={"note": "hunter2hunter2"})
    lease = studio.take("render")
    studio.beat(lease, progress=5, message="fetching https://bucket/x?X-Amz-Signature=abc")
    studio.requeue(lease, "password=hunter2hunter2 no longer works")
    handed = hand_in(studio, FakeProvider())
    studio.cancel(job, reason="Bearer sk-live-abcdef123456", grace_seconds=0)
    lines = log.lines(job)
    text = log.stream.getvalue()
    assert {secret for secret in secrets if secret in text} == set(), lines
    for hidden in (lease.token, handed.lease.token, handed.ref):
        assert hidden not in text


def test_each_line_is_one_line(studio: Studio, log: Log) -> None:
    # R92
    job = studio.ask()
    studio.fail(studio.take(), "one\ntwo\u2028three")
    assert log.lines(job)
    assert all(line.startswith("{") and line.endswith("}") for line in log.stream.getvalue().splitlines())
