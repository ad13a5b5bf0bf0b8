"""Fleet statistics: queue depth, waits, attempts and capacity per kind, read from both databases."""

import asyncio
from collections.abc import Iterator

import pytest

from callsheet.core.model import commands
from callsheet.core.model.clock import SECOND
from callsheet.core.model.workflow_definition import Backoff, RetryPolicy
from callsheet.core.policy.autoscale import KindObservation, ScalingTarget, compute_signals
from callsheet.core.policy.engine_limits import Limits
from callsheet.queries.fleet.stats import FleetStats
from callsheet.settings import HttpSettings, Settings
from tests.support.doubles.fake_provider import FakeProvider, clip_workflow, submit_to_provider
from tests.support.engine.engine_harness import EngineHarness, stage

WINDOW = 600
FIXED_BACKOFF = Backoff(base_seconds=30, factor=1, jitter=0)


def open_harness(database_url: str, limits: Limits | None = None) -> EngineHarness:
    harness = EngineHarness(database_url, Settings(database_retry_seconds=5, limits=limits or Limits()))
    harness.tenant()
    harness.workflow(price=0, retry=RetryPolicy(attempts_max=3, on="any", backoff=FIXED_BACKOFF))
    return harness


@pytest.fixture
def harness(database_url: str) -> Iterator[EngineHarness]:
    with open_harness(database_url) as opened:
        yield opened


def read_stats(harness: EngineHarness, window: int = WINDOW) -> dict[str, KindObservation]:
    """Return the statistics by kind at the current virtual time."""
    fleet_stats = FleetStats(harness.engine.reads, harness.settings.limits, HttpSettings())
    found = asyncio.run(fleet_stats.read(harness.clock.now(), window))
    return {one.kind: one for one in found}


def draw_stats(harness: EngineHarness) -> KindObservation:
    return read_stats(harness)["draw"]


def oldest_wait(harness: EngineHarness, kind: str = "draw") -> float | None:
    found = read_stats(harness)[kind].oldest_wait
    return None if found is None else found / SECOND


def test_ready_running_and_backoff_tasks_are_counted_separately(harness: EngineHarness) -> None:
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


def test_tasks_are_counted_by_kind_over_all_workflows(harness: EngineHarness) -> None:
    harness.workflow("poster", price=0, stages=[stage("draw"), stage("print")])
    harness.submit_job()
    harness.submit_job("poster")
    found = read_stats(harness)
    assert {kind: one.ready for kind, one in found.items()} == {"draw": 2, "print": 0}


def test_a_worker_on_the_last_attempt_of_a_task_is_still_needed(harness: EngineHarness) -> None:
    harness.workflow("once", price=0, retry=RetryPolicy(attempts_max=1))
    harness.submit_job("once")
    harness.claim_one(lease_seconds=3_600)
    harness.clock.advance(1_800)
    found = draw_stats(harness)
    assert (found.running, found.busy, found.workers, found.elapsed) == (1, 1, 1, 1_800 * SECOND)
    assert compute_signals(found, ScalingTarget(wait_seconds=60)).recommended_workers == 1


def test_the_duration_of_an_attempt_excludes_earlier_failed_attempts(harness: EngineHarness) -> None:
    # R247
    harness.submit_job()
    lease = harness.claim_one()
    harness.advance(50)
    harness.fail(lease, retryable=True)
    harness.advance(31)
    lease = harness.claim_one()
    harness.advance(7)
    harness.complete(lease)
    assert draw_stats(harness).attempt_durations == [7 * SECOND]


def test_older_attempts_are_separate_and_rates_are_of_the_window(harness: EngineHarness) -> None:
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


def test_failures_lost_leases_and_interruptions_are_counted_in_the_window(harness: EngineHarness) -> None:
    for _ in range(4):
        harness.submit_job()
    failed, interrupted, shut_down, _lost = (one.lease for one in harness.claim(count=4, lease_seconds=60))
    harness.fail(failed, retryable=True)
    harness.do(commands.Requeue(lease=interrupted, reason="spot notice", cause="spot"))
    harness.do(commands.Requeue(lease=shut_down, reason="shutdown", cause="shutdown"))
    harness.advance(61)
    found = draw_stats(harness)
    assert (found.failed, found.lost_leases, found.spot_interruptions) == (1, 1, 1)
    harness.advance(WINDOW)
    found = draw_stats(harness)
    assert (found.failed, found.lost_leases, found.spot_interruptions) == (0, 0, 0)


# -- the oldest wait


def test_a_wait_begins_when_a_task_becomes_claimable(harness: EngineHarness) -> None:
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


def test_the_wait_of_a_later_stage_begins_when_it_opens_or_is_approved(harness: EngineHarness) -> None:
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


def test_the_wait_of_a_retried_job_begins_with_its_new_run(harness: EngineHarness) -> None:
    job = harness.submit_job()
    harness.fail(harness.claim_one(), retryable=False)
    harness.advance(500)
    harness.retry(job)
    harness.clock.advance(8)
    assert oldest_wait(harness) == 8


TENANTS_AND_PRIORITIES = [(name, priority) for name in ("acme", "bravo", "zulu") for priority in (1, 50, 90)]


@pytest.mark.parametrize("first", TENANTS_AND_PRIORITIES)
def test_the_oldest_wait_is_found_for_every_tenant_and_priority(harness: EngineHarness, first: tuple[str, int]) -> None:
    for name in ("bravo", "zulu"):
        harness.tenant(name, weight=10)
    harness.submit_job(tenant=first[0], priority=first[1])
    harness.clock.advance(50)
    for name, priority in TENANTS_AND_PRIORITIES:
        harness.submit_job(tenant=name, priority=priority)
    harness.clock.advance(5)
    assert oldest_wait(harness) == 55
    assert draw_stats(harness).ready == 10


# -- workers


def register(harness: EngineHarness, name: str, *kinds: str, concurrency: int = 2) -> None:
    harness.do(commands.Register(worker_id=name, kinds=kinds, token_hash=f"hash of {name}", concurrency=concurrency))


def test_registered_workers_are_counted_without_any_task(harness: EngineHarness) -> None:
    register(harness, "g1", "upscale", concurrency=3)
    found = read_stats(harness)["upscale"]
    assert (found.workers, found.busy, found.capacity, found.free, found.depth) == (1, 0, 3, 3, 0)
    harness.clock.advance(400)
    assert read_stats(harness) == {}
    harness.do(commands.RecordHeartbeats(workers=("g1",)))
    assert read_stats(harness)["upscale"].workers == 1
    harness.do(commands.UpdateWorker(worker_id="g1", draining=True))
    assert read_stats(harness) == {}


def test_a_busy_worker_is_counted_however_long_its_task_takes(harness: EngineHarness) -> None:
    register(harness, "g1", "draw")
    harness.submit_job()
    harness.claim(worker="g1", lease_seconds=7_200)
    harness.clock.advance(7_000)
    found = draw_stats(harness)
    assert (found.workers, found.busy, found.running, found.capacity, found.free) == (1, 1, 1, 2, 1)


def test_a_task_at_a_provider_needs_no_worker(harness: EngineHarness) -> None:
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
def test_limits_reduce_the_number_of_startable_tasks(
    database_url: str, limits: Limits, running_max: int | None, startable: int
) -> None:
    with open_harness(database_url, limits) as harness:
        harness.workflow("narrow", price=0, running_max=running_max)
        for _ in range(10):
            harness.submit_job("narrow")
        assert len(harness.claim(count=2)) == 2
        found = draw_stats(harness)
        assert (found.depth, found.running, found.startable) == (8, 2, startable)
