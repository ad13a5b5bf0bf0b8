"""A house that says "later": it is asked later, about everything, and no lease is lost by that."""

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from callsheet.config import HttpSettings
from callsheet.core.errors import BadInput
from callsheet.protocol import Beat, Heartbeaten
from callsheet.worker import Context, Unreachable, Worker
from tests.support.lossy import AWAY, Lossy, Wrong
from tests.support.waiting import wait_until
from tests.worker.floor import SECONDS, Floor, Watched

LATER = Wrong(status=429, headers={"retry-after": "1"})
MUCH_LATER = Wrong(status=429, headers={"retry-after": "60"})


@pytest.fixture
def way(remote: Floor) -> Iterator[Lossy]:
    with Lossy(remote.served.url) as made:
        yield made


class Timed(Watched):
    """A link that remembers when heartbeats went, and what was said to them."""

    def __init__(self, link: Any) -> None:
        super().__init__(link)
        self.sent: list[tuple[float, int]] = []
        self.told_later: list[tuple[float, float]] = []

    def heartbeat(self, beats: Sequence[Beat], within_seconds: float) -> Heartbeaten:
        self.sent.append((time.monotonic(), len(beats)))
        try:
            return super().heartbeat(beats, within_seconds)
        except Unreachable as error:
            self.told_later.append((time.monotonic(), error.after_seconds))
            raise


def test_a_worker_with_many_leases_that_beats_too_often_goes_on_and_loses_none(
    worker: Worker, tmp_path: Path, place: str
) -> None:
    """The lowest limit there is, and handlers that have much to say: they are told to wait, and wait together."""

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        while len(link.told_later) < 3:
            ctx.progress(50)
            if floor.over.wait(0.02):
                return

    with Floor(place, tmp_path, http=HttpSettings(beats_per_second_max=1)) as floor:
        link = Timed(floor.link())
        jobs = [floor.submit(lease_seconds=6) for _ in range(10)]
        floor.start(worker, link, concurrency=10)
        assert {floor.ended(job_id).status for job_id in jobs} == {"completed"}
        assert [floor.outcomes(job_id) for job_id in jobs] == [["completed"]] * 10
        wait_until(lambda: len(floor.endings) == 10)
        assert set(floor.endings) == {"completed"}
    for at, after in link.told_later:
        later = [sent for sent, _ in link.sent if sent > at]
        assert after >= 1
        assert not later or min(later) >= at + after


def test_what_a_task_said_last_waits_for_the_house_too(remote: Floor, worker: Worker, way: Lossy) -> None:
    @worker.task("draw")
    def draw(ctx: Context) -> None:
        ctx.log("the last line")

    way.wrong["heartbeat"].extend([LATER, LATER])
    remote.start(worker, remote.link(url=way.url))
    assert remote.ended(remote.submit()).status == "completed"
    first, second, third, *_ = way.calls("heartbeat")
    assert second.at - first.at >= 1
    assert third.at - second.at >= 1


def test_later_holds_for_every_task_in_hand(remote: Floor, worker: Worker, way: Lossy) -> None:
    """One is told to wait; the other, which has its first word to say, does not ask in the meantime."""
    go = threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        if ctx.input == "second":
            assert go.wait(SECONDS)
            ctx.progress(20)
            wait_until(lambda: len(way.calls("heartbeat")) > 1, SECONDS)
        else:
            ctx.progress(10)
            wait_until(lambda: way.calls("heartbeat"), SECONDS)
            go.set()

    way.wrong["heartbeat"].append(LATER)
    link = Timed(remote.link(url=way.url))
    jobs = [remote.submit(input=name) for name in ("second", "first")]
    remote.start(worker, link, concurrency=2)
    assert {remote.ended(job_id).status for job_id in jobs} == {"completed"}
    first, second, *_ = link.sent
    assert second[0] - first[0] >= 1
    assert (first[1], second[1]) == (1, 2)


def test_a_lease_in_danger_is_asked_about_all_the_same(remote: Floor, worker: Worker, way: Lossy) -> None:
    """The house says a minute, the lease lasts five seconds: to obey would be to lose it."""

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        wait_until(lambda: len(way.calls("heartbeat")) > 1 or ctx.canceled, SECONDS)
        ctx.progress(50)

    way.wrong["heartbeat"].append(MUCH_LATER)
    remote.start(worker, remote.link(url=way.url))
    job_id = remote.submit(lease_seconds=5)
    assert remote.ended(job_id).status == "completed"
    assert remote.outcomes(job_id) == ["completed"]
    first, second, *_ = way.calls("heartbeat")
    assert second.at - first.at >= 1  # it was obeyed for as long as that could be


def test_one_call_that_spoils_it_for_all_is_found_by_halves(remote: Floor, worker: Worker) -> None:
    """A refusal of the whole is asked about in parts; the others are prolonged all the same."""

    class Choosy(Timed):
        """A house that refuses a call with this lease in it."""

        def heartbeat(self, beats: Sequence[Beat], within_seconds: float) -> Heartbeaten:
            if len(beats) > 1 and any(beat.lease.job_id == jobs[0] for beat in beats):
                self.sent.append((time.monotonic(), len(beats)))
                raise BadInput("too_large", "All together are too much.")
            return super().heartbeat(beats, within_seconds)

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        wait_until(lambda: len(link.beats) >= 8 or ctx.canceled, SECONDS)

    jobs: list[str] = []
    link = Choosy(remote.link())
    jobs.extend(remote.submit(lease_seconds=6) for _ in range(8))
    remote.start(worker, link, concurrency=8)
    assert [remote.ended(job_id).status for job_id in jobs] == ["completed"] * 8
    assert remote.faults == []
    whole, half, *_ = (count for _, count in link.sent)
    assert (whole // 2, whole > 1) == (half, True)


def test_a_house_that_goes_away_between_the_halves_is_not_asked_for_each_lease(
    remote: Floor, worker: Worker, way: Lossy
) -> None:
    @worker.task("draw")
    def draw(ctx: Context) -> None:
        wait_until(lambda: link.beats or ctx.canceled, SECONDS)

    link = Timed(remote.link(url=way.url))
    way.wrong["heartbeat"].extend([Wrong(status=422), AWAY])
    jobs = [remote.submit(lease_seconds=6) for _ in range(8)]
    remote.start(worker, link, concurrency=8)
    assert [remote.ended(job_id).status for job_id in jobs] == ["completed"] * 8
    whole, half, again, *_ = (count for _, count in link.sent)
    assert (whole // 2, again >= whole > 1) == (half, True)
