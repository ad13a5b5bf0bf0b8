"""Watching a job while no events arrive: the reason is printed once, and the progress is an estimate marked as one."""

import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from callsheet.api.explanation import Constraint
from callsheet.cli.stall_reporter import StallReporter
from callsheet.cli.stream_ticks import add_ticks
from callsheet.cli.watch import estimate_progress, follow
from callsheet.client import Client, Event, Job
from tests.client.stub_server import JOB, frames
from tests.support.wait import wait_until

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
EXPECTED = {"seconds_p50": 60.0, "seconds_p90": 90.0, "samples": 34}


def why_body(*messages: tuple[str, str]) -> dict[str, Any]:
    """Return an answer of `/why` with these constraints: code and message."""
    empty = dict.fromkeys(Constraint.__struct_fields__) | {"running_is_capped": False, "tasks_ahead_is_capped": False}
    start = {"estimated_start_at": None, "estimated_seconds": None, "duration_seconds_p50": None,
             "duration_seconds_p90": None, "samples": 0, "reason": ""}  # fmt: skip
    remaining = {"percent": None, "remaining_seconds_p50": None, "remaining_seconds_p90": None,
            "samples": 0, "reason": ""}  # fmt: skip
    constraints = [empty | {"code": code, "message": message, "tasks": 1} for code, message in messages]
    return {
        "job_id": "j1", "status": "queued", "progress": 0, "stage_no": 1, "stage": "etch", "constraints": constraints,
        "position": 1, "position_is_capped": False, "start": start, "remaining": remaining,
    }  # fmt: skip


class JobServer:
    """Answers requests about one job: the job, `/why` and its events. The last answer is repeated."""

    def __init__(self, why_answers: list[Any], jobs: list[dict[str, Any]] | None = None, events_text: str = "") -> None:
        self.why_answers = list(why_answers)
        self.jobs = jobs or [JOB | {"status": "completed"}]
        self.events_text = events_text
        self.paths: list[str] = []
        self.client = Client("http://x", transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path)
        if request.url.path.endswith("/why"):
            why = self.why_answers.pop(0) if len(self.why_answers) > 1 else self.why_answers[0]
            return httpx.Response(200, json=why) if isinstance(why, dict) else httpx.Response(why, json={})
        if request.url.path.endswith("/events"):
            return httpx.Response(200, text=self.events_text)
        return httpx.Response(200, json=self.jobs.pop(0) if len(self.jobs) > 1 else self.jobs[0])

    @property
    def why_calls(self) -> int:
        return self.paths.count("/v1/jobs/j1/why")


NO_WORKER = (
    "No worker runs tasks of kind etch, and none has claimed this one in the last {} seconds: start a worker of this "
    "kind."
)
NO_WORKER_ANSWERS = [
    why_body(("no_worker", NO_WORKER.format(seconds)), ("queued", "It is next in its queue.")) for seconds in (5, 10)
]


def tick_lines(reporter: StallReporter, ticks: int) -> list[str]:
    return [line for _ in range(ticks) for line in reporter.tick()]


def test_the_reason_of_a_stall_is_printed_once_after_a_few_ticks() -> None:
    server = JobServer(NO_WORKER_ANSWERS)
    reporter = StallReporter(server.client, "j1")
    assert (tick_lines(reporter, 5), server.why_calls) == ([], 0)
    assert tick_lines(reporter, 1) == [NO_WORKER.format(5)]
    assert tick_lines(reporter, 995) == [], "a new number of seconds is not a new reason"
    assert 10 < server.why_calls < 25, "the requests become less frequent"


def test_a_new_reason_is_printed_and_an_earlier_one_when_it_returns() -> None:
    limit = why_body(("running_limit", "Kind etch has 4 running tasks, and may have 4."))
    server = JobServer([NO_WORKER_ANSWERS[0], limit, why_body(("queued", "It is next in its queue.")), limit])
    reporter = StallReporter(server.client, "j1")
    assert [tick_lines(reporter, 6), tick_lines(reporter, 6)] == [
        [NO_WORKER.format(5)],
        ["Kind etch has 4 running tasks, and may have 4."],
    ]
    assert [tick_lines(reporter, 12), tick_lines(reporter, 24)] == [
        [],
        ["Kind etch has 4 running tasks, and may have 4."],
    ]


def test_an_event_restarts_the_quiet_period() -> None:
    server = JobServer(NO_WORKER_ANSWERS)
    reporter = StallReporter(server.client, "j1")
    for _ in range(3):
        assert tick_lines(reporter, 5) == []
        reporter.reset()
    assert server.why_calls == 0
    assert tick_lines(reporter, 6) == [NO_WORKER.format(5)]


@pytest.mark.parametrize("why", [
    why_body(("queued", "It is queued after 3 other tasks.")),
    why_body(("backoff", "1 task failed."), ("running", "1 task is running on 1 worker.")),
    why_body(("approval", "Stage 2 (render) waits for approval.")), 404,
])  # fmt: skip
def test_normal_waiting_and_an_error_of_the_server_print_nothing(why: Any) -> None:
    server = JobServer([why])
    assert (tick_lines(StallReporter(server.client, "j1"), 6), server.why_calls) == ([], 1)


def use_terminal(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> None:
    """Make standard output a terminal of 200 columns, or no terminal."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")


def first_event_then_ticks(count: int) -> Callable[[Iterable[Event]], Iterator[Event | None]]:
    """Return a ticker that yields the first event and then only ticks."""

    def ticker(events: Iterable[Event]) -> Iterator[Event | None]:
        yield next(iter(events))
        yield from [None] * count

    return ticker


@pytest.mark.parametrize("terminal", [False, True])
def test_a_job_without_a_suitable_worker_prints_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, terminal: bool
) -> None:
    use_terminal(monkeypatch, terminal=terminal)
    server = JobServer(NO_WORKER_ANSWERS, events_text=frames(1, kind="job.created"))
    assert follow(server.client, "j1", ticker=first_event_then_ticks(12)).completed
    assert capsys.readouterr().out.count("No worker runs tasks of kind etch") == 1


def test_the_progress_bar_shows_an_estimate_while_no_progress_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    elapsed = iter([0, 20, 40, 70])
    use_terminal(monkeypatch, terminal=True)
    row = JOB | {"status": "running", "started_at": "2026-01-31T12:00:00.000Z", "duration_estimate": EXPECTED}
    server = JobServer(NO_WORKER_ANSWERS, [row, JOB | {"status": "completed"}], frames(1, kind="job.started"))
    ticker = first_event_then_ticks(3)
    follow(server.client, "j1", ticker=ticker, now=lambda: START + timedelta(seconds=next(elapsed)))
    printed = capsys.readouterr().out
    assert [printed.count(percent) > 0 for percent in ("~30 %", "~60 %", "~93 %")] == [True] * 3


@pytest.mark.parametrize(("seconds", "percent"), [(-5, 0), (0, 0), (30, 45), (60, 90), (75, 94), (90, 99), (9_000, 99)])
def test_an_estimate_grows_with_time_and_never_reaches_100_percent(seconds: float, percent: int) -> None:
    assert estimate_progress(job(), START + timedelta(seconds=seconds)) == (percent, f"~{percent} %")


@pytest.mark.parametrize("fields", [
    {"progress": 7}, {"duration_estimate": None}, {"started_at": None}, {"finished_at": "2026-01-31T12:01:00.000Z"},
])  # fmt: skip
def test_progress_is_estimated_only_for_a_running_job_with_a_duration_and_no_progress(fields: dict[str, Any]) -> None:
    progress = fields.get("progress", 0)
    assert estimate_progress(job(**fields), START + timedelta(seconds=30)) == (progress, f"{progress} %")


def job(**more: Any) -> Job:
    row = JOB | {"status": "running", "started_at": "2026-01-31T12:00:00.000Z", "duration_estimate": EXPECTED, **more}
    server = JobServer([], [row])
    with server.client as client:
        return client.jobs.get("j1")


def test_ticks_fill_the_gaps_between_items_and_errors_of_the_source_are_raised() -> None:
    ticks: list[None] = []

    def source() -> Iterator[int]:
        yield 1
        wait_until(lambda: len(ticks) > 2, 30)
        yield 2
        raise ValueError("broken")

    found: list[int] = []

    def read() -> None:
        for one in add_ticks(source(), seconds=0.001):
            ticks.append(one) if one is None else found.append(one)

    with pytest.raises(ValueError, match="broken"):
        read()
    assert (found, [one for one in add_ticks([3, 4]) if one]) == ([1, 2], [3, 4])
