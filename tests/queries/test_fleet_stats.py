"""What a fleet is scaled by, as it is read from both databases, in virtual time."""

import asyncio
from collections.abc import Iterator

import pytest

from callsheet.config import HttpSettings, Settings
from callsheet.core.model import commands
from callsheet.core.model.clock import SECOND
from callsheet.core.model.workflow_definition import Backoff, RetryPolicy
from callsheet.core.policy.autoscale import KindObservation, ScalingTarget, compute_signals
from callsheet.core.policy.engine_limits import Limits
from callsheet.queries.fleet.stats import FleetStats
from tests.support.doubles.fake_provider import FakeProvider, clip_workflow, submit_to_provider
from tests.support.engine.engine_harness import EngineHarness, stage

WINDOW = 600
STEADY = Backoff(base_seconds=30, factor=1, jitter=0)


def open_studio(database_url: str, limits: Limits | None = None) -> EngineHarness:
    harness = EngineHarness(database_url, Settings(database_retry_seconds=5, limits=limits or Limits()))
    harness.tenant()
    harness.workflow(price=0, retry=RetryPolicy(attempts_max=3, on="any", backoff=STEADY))
    return harness


@pytest.fixture
def harness(database_url: str) -> Iterator[EngineHarness]:
    with open_studio(database_url) as made:
        yield made


def read_stats(harness: EngineHarness, window: int = WINDOW) -> dict[str, KindObservation]:
    """Return every kind, as it is at the virtual moment."""
    fleet_stats = FleetStats(harness.engine.reads, harness.settings.limits, HttpSettings())
    found = asyncio.run(fleet_stats.read(harness.clock.now(), window))
    return {one.kind: one for one in found}


def draw_stats(harness: EngineHarness) -> KindObservation:
    return read_stats(harness)["draw"]


def oldest_wait(harness: EngineHarness, kind: str = "draw") -> float | None:
    found = read_stats(harness)[kind].oldest_wait
    return None if found is None else found / SECOND


def test_waiting_running_and_backing_off_tasks_are_counted_apart(harness: EngineHarness) -> None:
    # R160
    for _ in range(5):
        harness.submit_job()
    assert (draw_stats(harness).ready, draw_stats(harness).startable, draw_stats(harness).running) == (5, 5, 0)
    first, second = harness.claim(count=2)
    harness.fail(first.lease, retryable=True)
    found = draw_stats(harness)
    assert (found.ready, found.backoff, found.running, found.depth, found.startable) == (3, 1, 1, 4, 4)
    harness.advance(31)
    assert (draw_stats(harness).ready, draw_stats(harness).backoff) == (4, 0)
    harness.complete(second.lease)
    assert draw_stats(harness).running == 0


def test_kinds_are_counted_by_themselves_over_all_workflows(harness: EngineHarness) -> None:
    # R160
    harness.workflow("poster", price=0, stages=[stage("draw"), stage("print")])
    harness.submit_job()
    harness.submit_job("poster")
    found = read_stats(harness)
    assert {kind: one.ready for kind, one in found.items()} == {"draw": 2, "print": 0}


def test_a_task_on_its_last_attempt_keeps_its_worker(harness: EngineHarness) -> None:
    # flaw c of the original
    harness.workflow("once", price=0, retry=RetryPolicy(attempts_max=1))
    harness.submit_job("once")
    harness.claim_one(lease_seconds=3_600)
    harness.clock.advance(1_800)
    found = draw_stats(harness)
    assert (found.running, found.busy, found.workers, found.elapsed) == (1, 1, 1, 1_800 * SECOND)
    assert compute_signals(found, ScalingTarget(wait_seconds=60)).recommended_workers == 1


def test_an_attempt_is_measured_by_itself(harness: EngineHarness) -> None:
    # R244, R247; flaw e of the original: the time of failed tries was in the duration of the last
    harness.submit_job()
    lease = harness.claim_one()
    harness.advance(50)
    harness.fail(lease, retryable=True)
    harness.advance(31)
    lease = harness.claim_one()
    harness.advance(7)
    harness.complete(lease)
    assert draw_stats(harness).attempt_durations == [7 * SECOND]


def test_attempts_before_the_window_are_kept_apart_and_rates_are_of_the_window(harness: EngineHarness) -> None:
    for seconds in (5, 9):
        harness.submit_job()
        lease = harness.claim_one()
        harness.advance(seconds)
        harness.complete(lease)
        harness.advance(WINDOW - 1)
    found = draw_stats(harness)
    assert (found.attempt_durations, found.older) == ([9 * SECOND], [5 * SECOND])
    assert found.completions_per_second == pytest.approx(1 / WINDOW)
    assert found.arrivals_per_second == 0
    harness.submit_job()
    assert draw_stats(harness).arrivals_per_second == pytest.approx(1 / WINDOW)
    harness.advance(WINDOW + 1)
    assert (draw_stats(harness).arrivals_per_second, draw_stats(harness).ready) == (0, 1)


def test_what_ended_badly_is_counted_in_the_window(harness: EngineHarness) -> None:
    for _ in range(4):
        harness.submit_job()
    failed, spot_interruptions, shutdown, _lost = (one.lease for one in harness.claim(count=4, lease_seconds=60))
    harness.fail(failed, retryable=True)
    harness.do(commands.Requeue(lease=spot_interruptions, reason="spot notice", cause="spot"))
    harness.do(commands.Requeue(lease=shutdown, reason="going home", cause="shutdown"))
    harness.advance(61)
    found = draw_stats(harness)
    assert (found.failed, found.lost_leases, found.spot_interruptions) == (1, 1, 1)
    harness.advance(WINDOW)
    found = draw_stats(harness)
    assert (found.failed, found.lost_leases, found.spot_interruptions) == (0, 0, 0)


# -- how long the oldest has waited


def test_a_wait_begins_when_a_task_can_be_taken(harness: EngineHarness) -> None:
    assert read_stats(harness) == {}
    harness.submit_job(start_in_seconds=100)
    assert oldest_wait(harness) is None
    harness.advance(100)
    harness.clock.advance(7)
    assert oldest_wait(harness) == 7
    lease = harness.claim_one()
    assert oldest_wait(harness) is None
    harness.advance(5)
    harness.do(commands.Requeue(lease=lease, reason="spot notice", cause="spot"))
    harness.clock.advance(3)
    assert oldest_wait(harness) == 3
    harness.fail(harness.claim_one(), retryable=True)
    harness.advance(32)
    assert oldest_wait(harness) == 2


def test_a_later_stage_waits_from_the_end_of_the_one_before_or_its_approval(harness: EngineHarness) -> None:
    harness.workflow("film", price=0, stages=[stage("shoot"), stage("cut"), stage("tone", approval=True)])
    job = harness.submit_job("film")
    harness.advance(40)
    harness.complete(harness.claim_one("shoot"))
    harness.clock.advance(4)
    assert (oldest_wait(harness, "shoot"), oldest_wait(harness, "cut")) == (None, 4)
    harness.complete(harness.claim_one("cut"))
    harness.advance(100)
    assert oldest_wait(harness, "tone") is None
    harness.approve(job, 3)
    harness.clock.advance(6)
    assert oldest_wait(harness, "tone") == 6


def test_another_run_waits_from_its_own_beginning(harness: EngineHarness) -> None:
    job = harness.submit_job()
    harness.fail(harness.claim_one(), retryable=False)
    harness.advance(500)
    harness.retry(job)
    harness.clock.advance(8)
    assert oldest_wait(harness) == 8


@pytest.mark.parametrize("first", [(name, priority) for name in ("acme", "bravo", "zulu") for priority in (1, 50, 90)])
def test_the_oldest_is_found_whoever_asked_for_it_and_however_urgent(
    harness: EngineHarness, first: tuple[str, int]
) -> None:
    everybody = [(name, priority) for name in ("acme", "bravo", "zulu") for priority in (1, 50, 90)]
    for name in ("bravo", "zulu"):
        harness.tenant(name, weight=10)
    harness.submit_job(tenant=first[0], priority=first[1])
    harness.clock.advance(50)
    for name, priority in everybody:
        harness.submit_job(tenant=name, priority=priority)
    harness.clock.advance(5)
    assert oldest_wait(harness) == 55
    assert draw_stats(harness).ready == 10


# -- who works


def register(harness: EngineHarness, name: str, *kinds: str, concurrency: int = 2) -> None:
    harness.do(commands.Register(worker_id=name, kinds=kinds, token_hash=f"hash of {name}", concurrency=concurrency))


def test_registered_workers_are_there_before_any_task(harness: EngineHarness) -> None:
    register(harness, "g1", "upscale", concurrency=3)
    found = read_stats(harness)["upscale"]
    assert (found.workers, found.busy, found.capacity, found.free, found.depth) == (1, 0, 3, 3, 0)
    harness.clock.advance(400)
    assert read_stats(harness) == {}
    harness.do(commands.RecordHeartbeats(workers=("g1",)))
    assert read_stats(harness)["upscale"].workers == 1
    harness.do(commands.UpdateWorker(worker_id="g1", draining=True))
    assert read_stats(harness) == {}


def test_a_busy_worker_stays_however_long_its_task_takes(harness: EngineHarness) -> None:
    # flaw b of the original
    register(harness, "g1", "draw")
    harness.submit_job()
    harness.claim(worker="g1", lease_seconds=7_200)
    harness.clock.advance(7_000)
    found = draw_stats(harness)
    assert (found.workers, found.busy, found.running, found.capacity, found.free) == (1, 1, 1, 2, 1)


def test_work_at_a_provider_keeps_no_worker(harness: EngineHarness) -> None:
    clip_workflow(harness, price=0)
    harness.submit_job("clip")
    submit_to_provider(harness, FakeProvider())
    found = read_stats(harness)["render"]
    assert (found.running, found.busy, found.workers, found.depth) == (0, 0, 0, 0)


# -- limits


@pytest.mark.parametrize(
    ("limits", "running_max", "startable"),
    [
        (Limits(), None, 8),
        (Limits(kind_running_max={"draw": 3}), None, 1),
        (Limits(), 4, 2),
        (Limits(), 2, 0),
        (Limits(kind_rate_max={"draw": "3/minute"}), None, 3),
        (Limits(kind_rate_max={"draw": "2/second"}), None, 8),
        (Limits(kind_rate_max={"draw": "5/hour"}), 4, 2),
    ],
)
def test_running_limits_say_how_many_more_could_begin(
    database_url: str, limits: Limits, running_max: int | None, startable: int
) -> None:
    with open_studio(database_url, limits) as harness:
        harness.workflow("narrow", price=0, running_max=running_max)
        for _ in range(10):
            harness.submit_job("narrow")
        assert len(harness.claim(count=2)) == 2
        found = draw_stats(harness)
        assert (found.depth, found.running, found.startable) == (8, 2, startable)
