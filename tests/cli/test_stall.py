"""While nothing happens: what holds a job is told once, and a bar moves by a guess that is marked as one."""

import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from callsheet.api.explanation import Constraint
from callsheet.cli.stream_ticks import StallReporter, add_ticks
from callsheet.cli.watch import estimate_progress, follow
from callsheet.client import Client, Event, Job
from tests.client.stub_server import JOB, frames
from tests.support.wait import wait_until

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
EXPECTED = {"seconds_p50": 60.0, "seconds_p90": 90.0, "samples": 34}


def why_body(*found: tuple[str, str]) -> dict[str, Any]:
    """What a server says of why a job waits, by code and sentence."""
    nothing = dict.fromkeys(Constraint.__struct_fields__)
    start = {"estimated_start_at": None, "estimated_seconds": None, "duration_seconds_p50": None,
             "duration_seconds_p90": None, "samples": 0, "reason": ""}  # fmt: skip
    left = {"percent": None, "remaining_seconds_p50": None, "remaining_seconds_p90": None,
            "samples": 0, "reason": ""}  # fmt: skip
    constraints = [nothing | {"code": code, "message": message, "tasks": 1} for code, message in found]
    return {
        "job_id": "j1", "status": "queued", "progress": 0, "stage_no": 1, "stage": "etch", "constraints": constraints,
        "position": 1, "start": start, "remaining": left,
    }  # fmt: skip


class StubServer:
    """A server that is asked about one job: how it is, why it waits, what happened to it."""

    def __init__(self, why_answers: list[Any], jobs: list[dict[str, Any]] | None = None, events_text: str = "") -> None:
        self.why_answers = list(why_answers)
        self.jobs = jobs or [JOB | {"status": "completed"}]
        self.events_text = events_text
        self.asked: list[str] = []
        self.client = Client("http://x", transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if request.url.path.endswith("/why"):
            said = self.why_answers.pop(0) if len(self.why_answers) > 1 else self.why_answers[0]
            return httpx.Response(200, json=said) if isinstance(said, dict) else httpx.Response(said, json={})
        if request.url.path.endswith("/events"):
            return httpx.Response(200, text=self.events_text)
        return httpx.Response(200, json=self.jobs.pop(0) if len(self.jobs) > 1 else self.jobs[0])

    @property
    def why_calls(self) -> int:
        return self.asked.count("/v1/jobs/j1/why")


NOBODY = (
    "No worker runs tasks of kind etch, and none has claimed this one in the last {} seconds: start a worker of this "
    "kind."
)
ALONE = [why_body(("no_worker", NOBODY.format(seconds)), ("queued", "It is next in its queue.")) for seconds in (5, 10)]


def tick_lines(held: StallReporter, beats: int) -> list[str]:
    return [line for _ in range(beats) for line in held.tick()]


def test_what_stalls_a_job_is_printed_after_a_while_and_once() -> None:
    house = StubServer(ALONE)
    held = StallReporter(house.client, "j1")
    assert (tick_lines(held, 5), house.why_calls) == ([], 0)
    assert tick_lines(held, 1) == [NOBODY.format(5)]
    assert tick_lines(held, 995) == [], "the seconds in the sentence are no news"
    assert 10 < house.why_calls < 25, "a server is asked less and less often"


def test_another_constraint_is_printed_and_so_is_the_first_when_it_comes_back() -> None:
    limit = why_body(("running_limit", "Kind etch has 4 running tasks, and may have 4."))
    house = StubServer([ALONE[0], limit, why_body(("queued", "It is next in its queue.")), limit])
    held = StallReporter(house.client, "j1")
    assert [tick_lines(held, 6), tick_lines(held, 6)] == [
        [NOBODY.format(5)],
        ["Kind etch has 4 running tasks, and may have 4."],
    ]
    assert [tick_lines(held, 12), tick_lines(held, 24)] == [[], ["Kind etch has 4 running tasks, and may have 4."]]


def test_news_begin_the_quiet_anew() -> None:
    house = StubServer(ALONE)
    held = StallReporter(house.client, "j1")
    for _ in range(3):
        assert tick_lines(held, 5) == []
        held.reset()
    assert house.why_calls == 0
    assert tick_lines(held, 6) == [NOBODY.format(5)]


@pytest.mark.parametrize("said", [
    why_body(("queued", "It is queued after 3 other tasks.")),
    why_body(("backoff", "1 task failed."), ("running", "1 task is running on 1 worker.")),
    why_body(("approval", "Stage 2 (render) waits for approval.")), 404,
])  # fmt: skip
def test_the_usual_course_is_not_printed_and_a_server_without_reasons_is_no_failure(said: Any) -> None:
    house = StubServer([said])
    assert (tick_lines(StallReporter(house.client, "j1"), 6), house.why_calls) == ([], 1)


@pytest.mark.parametrize("terminal", [False, True])
def test_who_follows_a_job_that_nobody_can_do_reads_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, terminal: bool
) -> None:
    def ticker(events: Iterable[Event]) -> Iterator[Event | None]:
        yield next(iter(events))
        yield from [None] * 12

    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    house = StubServer(ALONE, events_text=frames(1, kind="job.created"))
    assert follow(house.client, "j1", ticker=ticker).completed
    assert capsys.readouterr().out.count("No worker runs tasks of kind etch") == 1


def test_a_bar_moves_by_a_guess_while_its_kind_reports_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passed = iter([0, 20, 40, 70])

    def ticker(events: Iterable[Event]) -> Iterator[Event | None]:
        yield next(iter(events))
        yield from [None] * 3

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    row = JOB | {"status": "running", "started_at": "2026-01-31T12:00:00.000Z", "duration_estimate": EXPECTED}
    house = StubServer(ALONE, [row, JOB | {"status": "completed"}], frames(1, kind="job.started"))
    follow(house.client, "j1", ticker=ticker, now=lambda: START + timedelta(seconds=next(passed)))
    said = capsys.readouterr().out
    assert [said.count(far) > 0 for far in ("~30 %", "~60 %", "~93 %")] == [True] * 3


@pytest.mark.parametrize(("seconds", "shown"), [(-5, 0), (0, 0), (30, 45), (60, 90), (75, 94), (90, 99), (9_000, 99)])
def test_a_guess_grows_with_time_and_never_says_that_it_is_done(seconds: float, shown: int) -> None:
    assert estimate_progress(job(), START + timedelta(seconds=seconds)) == (shown, f"~{shown} %")


@pytest.mark.parametrize("known", [
    {"progress": 7}, {"duration_estimate": None}, {"started_at": None}, {"finished_at": "2026-01-31T12:01:00.000Z"},
])  # fmt: skip
def test_what_is_known_is_not_guessed(known: dict[str, Any]) -> None:
    progress = known.get("progress", 0)
    assert estimate_progress(job(**known), START + timedelta(seconds=30)) == (progress, f"{progress} %")


def job(**more: Any) -> Job:
    row = JOB | {"status": "running", "started_at": "2026-01-31T12:00:00.000Z", "duration_estimate": EXPECTED, **more}
    house = StubServer([], [row])
    with house.client as client:
        return client.jobs.get("j1")


def test_events_are_yielded_with_a_tick_whenever_none_comes_and_failures_are_raised_to_the_reader() -> None:
    beats: list[None] = []

    def source() -> Iterator[int]:
        yield 1
        wait_until(lambda: len(beats) > 2, 30)
        yield 2
        raise ValueError("broken")

    found: list[int] = []

    def listen() -> None:
        for one in add_ticks(source(), seconds=0.001):
            beats.append(one) if one is None else found.append(one)

    with pytest.raises(ValueError, match="broken"):
        listen()
    assert (found, [one for one in add_ticks([3, 4]) if one]) == ([1, 2], [3, 4])
