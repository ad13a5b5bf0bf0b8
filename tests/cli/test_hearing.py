"""While nothing happens: what holds a job is told once, and a bar moves by a guess that is marked as one."""

import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from callsheet.cli.hearing import Held, heard
from callsheet.cli.watching import follow, how_far
from callsheet.client import Client, Event, Job
from tests.client.stub import JOB, frames
from tests.support.waiting import wait_until

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
EXPECTED = {"estimate": True, "seconds_p50": 60.0, "seconds_p90": 90.0, "samples": 34}


def holding(*found: tuple[str, str]) -> dict[str, Any]:
    """What a server says of why a job waits, by code and sentence."""
    nothing = dict.fromkeys(
        ("since_at", "until_at", "of", "name", "running", "running_max", "started", "started_max", "within_seconds",
         "ahead", "progress", "workers")
    )  # fmt: skip
    start = {"estimate": True, "estimated_start_at": None, "estimated_seconds": None, "duration_seconds_p50": None,
             "duration_seconds_p90": None, "samples": 0, "reason": ""}  # fmt: skip
    left = {"estimate": True, "percent": None, "remaining_seconds_p50": None, "remaining_seconds_p90": None,
            "samples": 0, "reason": ""}  # fmt: skip
    constraints = [nothing | {"code": code, "message": message, "tasks": 1} for code, message in found]
    return {
        "job_id": "j1", "status": "queued", "progress": 0, "stage_no": 1, "stage": "etch", "constraints": constraints,
        "position": 1, "start": start, "remaining": left,
    }  # fmt: skip


class House:
    """A server that is asked about one job: how it is, why it waits, what happened to it."""

    def __init__(self, whys: list[Any], jobs: list[dict[str, Any]] | None = None, told: str = "") -> None:
        self.whys = list(whys)
        self.jobs = jobs or [JOB | {"status": "completed"}]
        self.told = told
        self.asked: list[str] = []
        self.client = Client("http://x", transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if request.url.path.endswith("/why"):
            said = self.whys.pop(0) if len(self.whys) > 1 else self.whys[0]
            return httpx.Response(200, json=said) if isinstance(said, dict) else httpx.Response(said, json={})
        if request.url.path.endswith("/events"):
            return httpx.Response(200, text=self.told)
        return httpx.Response(200, json=self.jobs.pop(0) if len(self.jobs) > 1 else self.jobs[0])

    @property
    def looks(self) -> int:
        return self.asked.count("/v1/jobs/j1/why")


NOBODY = (
    "Nobody works on kind etch, and nobody has taken this in the last {} seconds: is a worker of this kind running?"
)
ALONE = [holding(("no_worker", NOBODY.format(seconds)), ("queued", "It is next in its queue.")) for seconds in (5, 10)]


def quiet(held: Held, beats: int) -> list[str]:
    return [line for _ in range(beats) for line in held.beat()]


def test_what_holds_a_job_is_told_after_a_while_and_once() -> None:
    house = House(ALONE)
    held = Held(house.client, "j1")
    assert (quiet(held, 5), house.looks) == ([], 0)
    assert quiet(held, 1) == [NOBODY.format(5)]
    assert quiet(held, 995) == [], "the seconds in the sentence are no news"
    assert 10 < house.looks < 25, "a server is asked less and less often"


def test_another_thing_that_holds_it_is_told_and_so_is_the_first_when_it_comes_back() -> None:
    limit = holding(("running_limit", "Kind etch has 4 running tasks, and may have 4."))
    house = House([ALONE[0], limit, holding(("queued", "It is next in its queue.")), limit])
    held = Held(house.client, "j1")
    assert [quiet(held, 6), quiet(held, 6)] == [[NOBODY.format(5)], ["Kind etch has 4 running tasks, and may have 4."]]
    assert [quiet(held, 12), quiet(held, 24)] == [[], ["Kind etch has 4 running tasks, and may have 4."]]


def test_news_begin_the_quiet_anew() -> None:
    house = House(ALONE)
    held = Held(house.client, "j1")
    for _ in range(3):
        assert quiet(held, 5) == []
        held.news()
    assert house.looks == 0
    assert quiet(held, 6) == [NOBODY.format(5)]


@pytest.mark.parametrize("said", [
    holding(("queued", "It waits in the queue behind 3 other tasks.")),
    holding(("backoff", "1 task failed."), ("running", "1 task is running on 1 worker.")),
    holding(("approval", "Stage 2 (render) waits until somebody approves it.")), 404,
])  # fmt: skip
def test_the_usual_course_is_not_told_and_a_server_that_does_not_say_is_no_failure(said: Any) -> None:
    house = House([said])
    assert (quiet(Held(house.client, "j1"), 6), house.looks) == ([], 1)


@pytest.mark.parametrize("terminal", [False, True])
def test_who_follows_a_job_that_nobody_can_do_reads_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, terminal: bool
) -> None:
    def hear(events: Iterable[Event]) -> Iterator[Event | None]:
        yield next(iter(events))
        yield from [None] * 12

    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    house = House(ALONE, told=frames(1, kind="job.created"))
    assert follow(house.client, "j1", hear=hear).completed
    assert capsys.readouterr().out.count("Nobody works on kind etch") == 1


def test_a_bar_moves_by_a_guess_while_its_kind_reports_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passed = iter([0, 20, 40, 70])

    def hear(events: Iterable[Event]) -> Iterator[Event | None]:
        yield next(iter(events))
        yield from [None] * 3

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    row = JOB | {"status": "running", "started_at": "2026-01-31T12:00:00.000Z", "expected": EXPECTED}
    house = House(ALONE, [row, JOB | {"status": "completed"}], frames(1, kind="job.started"))
    follow(house.client, "j1", hear=hear, now=lambda: START + timedelta(seconds=next(passed)))
    said = capsys.readouterr().out
    assert [said.count(far) > 0 for far in ("~30 %", "~60 %", "~93 %")] == [True] * 3


@pytest.mark.parametrize(("seconds", "shown"), [(-5, 0), (0, 0), (30, 45), (60, 90), (75, 94), (90, 99), (9_000, 99)])
def test_a_guess_grows_with_time_and_never_says_that_it_is_done(seconds: float, shown: int) -> None:
    assert how_far(job(), START + timedelta(seconds=seconds)) == (shown, f"~{shown} %")


@pytest.mark.parametrize("known", [
    {"progress": 7}, {"expected": None}, {"started_at": None}, {"finished_at": "2026-01-31T12:01:00.000Z"},
])  # fmt: skip
def test_what_is_known_is_not_guessed(known: dict[str, Any]) -> None:
    progress = known.get("progress", 0)
    assert how_far(job(**known), START + timedelta(seconds=30)) == (progress, f"{progress} %")


def job(**more: Any) -> Job:
    row = JOB | {"status": "running", "started_at": "2026-01-31T12:00:00.000Z", "expected": EXPECTED, **more}
    house = House([], [row])
    with house.client as client:
        return client.get("j1")


def test_what_comes_is_heard_with_a_beat_whenever_nothing_does_and_its_failure_where_it_is_heard() -> None:
    beats: list[None] = []

    def source() -> Iterator[int]:
        yield 1
        wait_until(lambda: len(beats) > 2, 30)
        yield 2
        raise ValueError("broken")

    found: list[int] = []

    def listen() -> None:
        for one in heard(source(), seconds=0.001):
            beats.append(one) if one is None else found.append(one)

    with pytest.raises(ValueError, match="broken"):
        listen()
    assert (found, [one for one in heard([3, 4]) if one]) == ([1, 2], [3, 4])
