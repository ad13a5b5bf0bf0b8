"""What a fleet is scaled by, as it is read from both databases, in virtual time."""

import asyncio
from collections.abc import Iterator

import pytest

from callsheet.config import HttpSettings, Settings
from callsheet.core import commands
from callsheet.core.clock import SECOND
from callsheet.core.limits import Limits
from callsheet.core.recipe import Backoff, Retry
from callsheet.core.scaling import Aim, Observed, signals
from callsheet.http.observing import Observing
from tests.support.providers import FakeProvider, clip_workflow, hand_in
from tests.support.studio import Studio, stage

WINDOW = 600
STEADY = Backoff(base_seconds=30, factor=1, jitter=0)


def opened(place: str, limits: Limits | None = None) -> Studio:
    studio = Studio(place, Settings(patience_seconds=5, limits=limits or Limits()))
    studio.tenant()
    studio.workflow(price=0, retry=Retry(tries_max=3, on="any", backoff=STEADY))
    return studio


@pytest.fixture
def studio(place: str) -> Iterator[Studio]:
    with opened(place) as made:
        yield made


def look(studio: Studio, window: int = WINDOW) -> dict[str, Observed]:
    """Return every kind, as it is at the virtual moment."""
    observing = Observing(studio.engine.scans, studio.settings.limits, HttpSettings())
    found = asyncio.run(observing.read(studio.clock.now(), window))
    return {one.kind: one for one in found}


def draw(studio: Studio) -> Observed:
    return look(studio)["draw"]


def waited(studio: Studio, kind: str = "draw") -> float | None:
    found = look(studio)[kind].waited
    return None if found is None else found / SECOND


def test_what_waits_runs_and_backs_off_is_told_apart(studio: Studio) -> None:
    # R160
    for _ in range(5):
        studio.ask()
    assert (draw(studio).ready, draw(studio).startable, draw(studio).running) == (5, 5, 0)
    first, second = studio.claim(count=2)
    studio.fail(first.lease, retryable=True)
    found = draw(studio)
    assert (found.ready, found.backoff, found.running, found.depth, found.startable) == (3, 1, 1, 4, 4)
    studio.advance(31)
    assert (draw(studio).ready, draw(studio).backoff) == (4, 0)
    studio.complete(second.lease)
    assert draw(studio).running == 0


def test_kinds_are_counted_by_themselves_over_all_workflows(studio: Studio) -> None:
    # R160
    studio.workflow("poster", price=0, stages=[stage("draw"), stage("print")])
    studio.ask()
    studio.ask("poster")
    found = look(studio)
    assert {kind: one.ready for kind, one in found.items()} == {"draw": 2, "print": 0}


def test_a_task_on_its_last_try_keeps_its_worker(studio: Studio) -> None:
    # flaw c of the original
    studio.workflow("once", price=0, retry=Retry(tries_max=1))
    studio.ask("once")
    studio.take(lease_seconds=3_600)
    studio.clock.advance(1_800)
    found = draw(studio)
    assert (found.running, found.busy, found.workers, found.elapsed) == (1, 1, 1, 1_800 * SECOND)
    assert signals(found, Aim(wait_seconds=60)).recommended_workers == 1


def test_a_try_is_measured_by_itself(studio: Studio) -> None:
    # R244, R247; flaw e of the original: the time of failed tries was in the duration of the last
    studio.ask()
    lease = studio.take()
    studio.advance(50)
    studio.fail(lease, retryable=True)
    studio.advance(31)
    lease = studio.take()
    studio.advance(7)
    studio.complete(lease)
    assert draw(studio).tries == [7 * SECOND]


def test_tries_before_the_window_are_kept_apart_and_rates_are_of_the_window(studio: Studio) -> None:
    for seconds in (5, 9):
        studio.ask()
        lease = studio.take()
        studio.advance(seconds)
        studio.complete(lease)
        studio.advance(WINDOW - 1)
    found = draw(studio)
    assert (found.tries, found.older) == ([9 * SECOND], [5 * SECOND])
    assert found.completions_per_second == pytest.approx(1 / WINDOW)
    assert found.arrivals_per_second == 0
    studio.ask()
    assert draw(studio).arrivals_per_second == pytest.approx(1 / WINDOW)
    studio.advance(WINDOW + 1)
    assert (draw(studio).arrivals_per_second, draw(studio).ready) == (0, 1)


def test_what_ended_badly_is_counted_in_the_window(studio: Studio) -> None:
    for _ in range(4):
        studio.ask()
    failed, spot, shutdown, _lost = (one.lease for one in studio.claim(count=4, lease_seconds=60))
    studio.fail(failed, retryable=True)
    studio.do(commands.Requeue(lease=spot, reason="spot notice", cause="spot"))
    studio.do(commands.Requeue(lease=shutdown, reason="going home", cause="shutdown"))
    studio.advance(61)
    found = draw(studio)
    assert (found.failed, found.lost, found.spot) == (1, 1, 1)
    studio.advance(WINDOW)
    found = draw(studio)
    assert (found.failed, found.lost, found.spot) == (0, 0, 0)


# -- how long the oldest has waited


def test_a_wait_begins_when_a_task_can_be_taken(studio: Studio) -> None:
    assert look(studio) == {}
    studio.ask(start_in_seconds=100)
    assert waited(studio) is None
    studio.advance(100)
    studio.clock.advance(7)
    assert waited(studio) == 7
    lease = studio.take()
    assert waited(studio) is None
    studio.advance(5)
    studio.do(commands.Requeue(lease=lease, reason="spot notice", cause="spot"))
    studio.clock.advance(3)
    assert waited(studio) == 3
    studio.fail(studio.take(), retryable=True)
    studio.advance(32)
    assert waited(studio) == 2


def test_a_later_stage_waits_from_the_end_of_the_one_before_or_its_approval(studio: Studio) -> None:
    studio.workflow("film", price=0, stages=[stage("shoot"), stage("cut"), stage("tone", gate=True)])
    job = studio.ask("film")
    studio.advance(40)
    studio.complete(studio.take("shoot"))
    studio.clock.advance(4)
    assert (waited(studio, "shoot"), waited(studio, "cut")) == (None, 4)
    studio.complete(studio.take("cut"))
    studio.advance(100)
    assert waited(studio, "tone") is None
    studio.approve(job, 3)
    studio.clock.advance(6)
    assert waited(studio, "tone") == 6


def test_another_run_waits_from_its_own_beginning(studio: Studio) -> None:
    job = studio.ask()
    studio.fail(studio.take(), retryable=False)
    studio.advance(500)
    studio.retry(job)
    studio.clock.advance(8)
    assert waited(studio) == 8


@pytest.mark.parametrize("first", [(name, priority) for name in ("acme", "bravo", "zulu") for priority in (1, 50, 90)])
def test_the_oldest_is_found_whoever_asked_for_it_and_however_urgent(studio: Studio, first: tuple[str, int]) -> None:
    everybody = [(name, priority) for name in ("acme", "bravo", "zulu") for priority in (1, 50, 90)]
    for name in ("bravo", "zulu"):
        studio.tenant(name, weight=10)
    studio.ask(tenant=first[0], priority=first[1])
    studio.clock.advance(50)
    for name, priority in everybody:
        studio.ask(tenant=name, priority=priority)
    studio.clock.advance(5)
    assert waited(studio) == 55
    assert draw(studio).ready == 10


# -- who works


def register(studio: Studio, name: str, *kinds: str, concurrency: int = 2) -> None:
    studio.do(commands.Register(worker_id=name, kinds=kinds, token_hash=f"hash of {name}", concurrency=concurrency))


def test_registered_workers_are_there_before_any_task(studio: Studio) -> None:
    register(studio, "g1", "upscale", concurrency=3)
    found = look(studio)["upscale"]
    assert (found.workers, found.busy, found.capacity, found.free, found.depth) == (1, 0, 3, 3, 0)
    studio.clock.advance(400)
    assert look(studio) == {}
    studio.do(commands.Seen(workers=("g1",)))
    assert look(studio)["upscale"].workers == 1
    studio.do(commands.SetWorker(worker_id="g1", draining=True))
    assert look(studio) == {}


def test_a_busy_worker_stays_however_long_its_task_takes(studio: Studio) -> None:
    # flaw b of the original
    register(studio, "g1", "draw")
    studio.ask()
    studio.claim(worker="g1", lease_seconds=7_200)
    studio.clock.advance(7_000)
    found = draw(studio)
    assert (found.workers, found.busy, found.running, found.capacity, found.free) == (1, 1, 1, 2, 1)


def test_work_at_a_provider_keeps_no_worker(studio: Studio) -> None:
    clip_workflow(studio, price=0)
    studio.ask("clip")
    hand_in(studio, FakeProvider())
    found = look(studio)["render"]
    assert (found.running, found.busy, found.workers, found.depth) == (0, 0, 0, 0)


# -- limits


@pytest.mark.parametrize(
    ("limits", "running_max", "startable"),
    [
        (Limits(), 0, 8),
        (Limits(kind_running_max={"draw": 3}), 0, 1),
        (Limits(), 4, 2),
        (Limits(), 2, 0),
        (Limits(kind_rate_max={"draw": "3/minute"}), 0, 3),
        (Limits(kind_rate_max={"draw": "2/second"}), 0, 8),
        (Limits(kind_rate_max={"draw": "5/hour"}), 4, 2),
    ],
)
def test_running_limits_say_how_many_more_could_begin(
    place: str, limits: Limits, running_max: int, startable: int
) -> None:
    with opened(place, limits) as studio:
        studio.workflow("narrow", price=0, running_max=running_max)
        for _ in range(10):
            studio.ask("narrow")
        assert len(studio.claim(count=2)) == 2
        found = draw(studio)
        assert (found.depth, found.running, found.startable) == (8, 2, startable)
