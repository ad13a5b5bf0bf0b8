"""Autoscaling: the recommended number of workers, the estimated wait, and the capacity of workers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callsheet.core.model.clock import SECOND
from callsheet.core.model.rows import Worker
from callsheet.core.policy.autoscale import KindObservation, ScaleSignals, ScalingTarget, compute_signals
from callsheet.core.policy.explanation.kind_capacity import WorkerLeases, capacity_by_kind

ONE_MINUTE = ScalingTarget(wait_seconds=60)
COUNTS = st.integers(0, 500)
DURATIONS = st.lists(st.integers(0, 10_000 * SECOND), max_size=20)


def seconds(*values: float) -> list[int]:
    return [int(value * SECOND) for value in values]


def observed(**fields: Any) -> KindObservation:
    """Return an observation of a kind without limits, unless `startable` is set."""
    fields.setdefault("startable", fields.get("ready", 0) + fields.get("backoff", 0))
    return KindObservation(kind="gpu", **fields)


def signals(target: ScalingTarget = ONE_MINUTE, **fields: Any) -> ScaleSignals:
    return compute_signals(observed(**fields), target)


@st.composite
def observations(draw: st.DrawFn) -> KindObservation:
    ready, backoff, running = draw(COUNTS), draw(COUNTS), draw(COUNTS)
    busy = draw(st.integers(1, running)) if running else 0
    workers = busy + draw(COUNTS)
    return KindObservation(
        kind="gpu", ready=ready, backoff=backoff, startable=draw(st.integers(0, ready + backoff)), running=running,
        busy=busy, workers=workers, capacity=max(running, workers) + draw(COUNTS), free=draw(COUNTS),
        elapsed=draw(st.integers(0, 10**10)) if running else None, attempt_durations=draw(DURATIONS),
        older=draw(DURATIONS),
    )  # fmt: skip


TARGETS = st.builds(
    ScalingTarget, wait_seconds=st.floats(1, 10_000), workers_min=st.integers(0, 5), workers_max=st.integers(5, 200),
    concurrency=st.none() | st.integers(1, 16),
)  # fmt: skip


# -- the number of workers


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0),
        ({"workers": 9, "capacity": 9, "free": 9}, 0),
        # 60 s per attempt and a target of 60 s: one slot starts two tasks in time
        ({"ready": 10, "attempt_durations": seconds(60)}, 5),
        ({"ready": 1, "attempt_durations": seconds(60)}, 1),
        # an attempt takes far longer than the target: one slot per task, and never more
        ({"ready": 10, "attempt_durations": seconds(6_000)}, 10),
        ({"ready": 10, "attempt_durations": seconds(0.1)}, 1),
        ({"ready": 1_000, "attempt_durations": seconds(0)}, 1),
        # a task in backoff will need a slot too
        ({"backoff": 10, "attempt_durations": seconds(60)}, 5),
        # running tasks keep their slots
        ({"running": 7, "busy": 7, "workers": 9, "capacity": 9, "attempt_durations": seconds(0.1)}, 7),
        # 4 slots per worker
        ({"ready": 100, "workers": 2, "capacity": 8, "attempt_durations": seconds(60)}, 13),
        # five workers with one task each on four slots: all stay
        ({"running": 5, "busy": 5, "workers": 5, "capacity": 20, "attempt_durations": seconds(60)}, 5),
        # without durations in the window, older ones are used, then the elapsed time of running attempts
        ({"ready": 10, "older": seconds(60)}, 5),
        ({"ready": 10, "attempt_durations": seconds(60), "older": seconds(6_000)}, 5),
        ({"ready": 9, "running": 1, "busy": 1, "workers": 1, "capacity": 1, "elapsed": 60 * SECOND}, 5),
        # no durations at all: start with one worker
        ({"ready": 1_000}, 1),
        ({"ready": 1_000, "running": 3, "busy": 3, "workers": 3, "capacity": 3, "elapsed": 0}, 3),
        # a running limit: more workers would be idle
        ({"ready": 99, "startable": 2, "running": 2, "busy": 2, "workers": 2, "capacity": 2,
        "attempt_durations": seconds(600)}, 4),
        ({"ready": 100, "startable": 0, "attempt_durations": seconds(600)}, 1),
    ],
)  # fmt: skip
def test_the_recommended_workers_start_waiting_tasks_within_the_target(fields: dict[str, Any], expected: int) -> None:
    assert signals(**fields).recommended_workers == expected


def test_the_concurrency_can_be_configured_before_a_worker_exists() -> None:
    assert (
        signals(replace(ONE_MINUTE, concurrency=4), ready=100, attempt_durations=seconds(60)).recommended_workers == 13
    )


@given(observations(), TARGETS, st.integers(0, 500), st.booleans())
def test_more_waiting_tasks_never_need_fewer_workers(
    observation: KindObservation, target: ScalingTarget, more: int, in_backoff: bool
) -> None:
    field = "backoff" if in_backoff else "ready"
    counts = {"startable": observation.startable + more, field: getattr(observation, field) + more}
    before, after = (compute_signals(one, target) for one in (observation, replace(observation, **counts)))
    assert after.recommended_workers >= before.recommended_workers


@given(observations(), TARGETS)
def test_busy_workers_are_never_scaled_in(observation: KindObservation, target: ScalingTarget) -> None:
    # also workers on a long task or on the last attempt of a task
    recommended = compute_signals(observation, target).recommended_workers
    assert recommended >= observation.busy
    slots = target.concurrency or (observation.capacity // observation.workers if observation.workers else 1)
    assert recommended >= min(observation.running / max(slots, 1), target.workers_max)


@given(observations(), TARGETS)
def test_the_minimum_and_maximum_hold_and_zero_workers_are_recommended_only_without_tasks(
    observation: KindObservation, target: ScalingTarget
) -> None:
    recommended = compute_signals(observation, target).recommended_workers
    assert target.workers_min <= recommended <= max(target.workers_max, observation.busy)
    if not recommended:
        assert (observation.depth, observation.running) == (0, 0)
    if not observation.depth and not observation.running:
        assert recommended == target.workers_min


@given(observations(), TARGETS, st.floats(1, 10_000))
def test_a_longer_target_wait_never_needs_more_workers(
    observation: KindObservation, target: ScalingTarget, more: float
) -> None:
    longer = replace(target, wait_seconds=target.wait_seconds + more)
    before, after = (compute_signals(observation, one) for one in (target, longer))
    assert after.recommended_workers <= before.recommended_workers


@given(observations(), TARGETS, st.booleans())
def test_a_capped_count_never_removes_a_worker(
    observation: KindObservation, target: ScalingTarget, depth_is_capped: bool
) -> None:
    capped = replace(observation, depth_is_capped=depth_is_capped, running_is_capped=not depth_is_capped)
    found, uncapped = compute_signals(capped, target), compute_signals(observation, target)
    assert not found.scale_down_safe
    assert found.recommended_workers >= max(min(observation.workers, target.workers_max), uncapped.recommended_workers)


def test_the_reason_says_that_a_count_is_capped() -> None:
    found = signals(ready=100, depth_is_capped=True, workers=60, capacity=60, attempt_durations=seconds(60))
    assert (found.depth, found.depth_is_capped, found.recommended_workers) == (100, True, 60)
    assert found.reason == (
        "More than 100 tasks wait, 0 run; an attempt takes 60 s. Not all tasks were counted, so no worker is removed."
    )


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_the_recommended_number_of_idle_workers_starts_all_tasks_in_time(
    waiting: int, duration: int, wait: int
) -> None:
    target = ScalingTarget(wait_seconds=wait)
    recommended = signals(target, ready=waiting, attempt_durations=seconds(duration)).recommended_workers
    assert recommended * (wait + duration) >= waiting * duration


# -- the wait of a new task


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"free": 1, "capacity": 1}, 0.0),
        ({"ready": 1, "free": 2, "capacity": 2}, 0.0),
        ({"capacity": 2, "attempt_durations": seconds(10)}, 5.0),
        ({"ready": 9, "capacity": 2, "attempt_durations": seconds(10)}, 50.0),
        ({"ready": 9, "capacity": 2, "older": seconds(10)}, 50.0),
        ({"ready": 9, "capacity": 2}, None),
        ({"ready": 9, "capacity": 2, "running": 2, "elapsed": 100 * SECOND}, None),
        ({"ready": 9, "attempt_durations": seconds(10)}, None),
        ({}, None),
    ],
)
def test_the_wait_of_a_new_task_is_estimated_if_durations_are_known(
    fields: dict[str, Any], expected: float | None
) -> None:
    assert signals(**fields).estimated_wait_seconds == expected


@given(observations(), TARGETS)
def test_without_durations_nothing_is_estimated(observation: KindObservation, target: ScalingTarget) -> None:
    found = compute_signals(replace(observation, attempt_durations=(), older=()), target)
    assert (found.attempt_seconds_p50, found.attempt_seconds_p95, found.samples) == (None, None, 0)
    assert found.basis == ("none" if observation.elapsed is None else "running")
    assert found.estimated_wait_seconds in {None, 0.0}
    assert found.oldest_wait_seconds is None


@pytest.mark.parametrize(
    ("fields", "safe"),
    [
        ({}, True),
        ({"workers": 3, "capacity": 3, "free": 3}, True),
        ({"running": 3, "busy": 3, "workers": 3, "capacity": 3}, True),
        ({"ready": 1, "workers": 1, "capacity": 1, "attempt_durations": seconds(20)}, True),
        ({"ready": 9, "workers": 1, "capacity": 1, "attempt_durations": seconds(20)}, False),
        ({"ready": 1, "workers": 1, "capacity": 1}, False),
        ({"backoff": 1}, False),
    ],
)
def test_scaling_down_is_safe_while_no_task_waits_longer_than_the_target(fields: dict[str, Any], safe: bool) -> None:
    assert signals(**fields).scale_down_safe is safe


# -- percentiles and the reason


def test_percentiles_are_of_attempts_in_the_window() -> None:
    found = signals(attempt_durations=seconds(*range(1, 21)), older=seconds(999))
    assert (found.attempt_seconds_p50, found.attempt_seconds_p95, found.samples, found.basis) == (
        10.0,
        19.0,
        20,
        "window",
    )
    older = signals(older=seconds(999))
    assert (older.attempt_seconds_p50, older.samples, older.basis) == (999.0, 1, "older")


@pytest.mark.parametrize(
    ("target", "fields", "reason"),
    [
        (ONE_MINUTE, {}, "Nothing waits and nothing runs."),
        (ONE_MINUTE, {"ready": 1}, "1 task waits, 0 run; the duration is not known yet, so start with one."),
        (ONE_MINUTE, {"ready": 3, "attempt_durations": seconds(40)}, "3 tasks wait, 0 run; an attempt takes 40 s."),
        (ONE_MINUTE, {"ready": 3, "startable": 1, "attempt_durations": seconds(400)},
         "3 tasks wait, 0 run; an attempt takes 400 s. A running limit allows 1 at once."),
        (ONE_MINUTE, {"running": 1, "busy": 1, "workers": 1, "capacity": 1, "elapsed": 0},
         "Nothing waits; 1 task runs."),
        (ScalingTarget(wait_seconds=60, workers_max=1), {"ready": 90, "attempt_durations": seconds(1.5)},
         "90 tasks wait, 0 run; an attempt takes 1.5 s. 3 workers would be enough; the maximum is 1."),
        (ScalingTarget(wait_seconds=60, workers_min=2), {},
        "Nothing waits and nothing runs. 0 workers would be enough; the minimum is 2."),
        (ScalingTarget(wait_seconds=60, workers_max=1),
         {"running": 2, "busy": 2, "workers": 2, "capacity": 2, "attempt_durations": seconds(2)},
         "Nothing waits; 2 tasks run. 2 workers are busy and must stay."),
    ],
)  # fmt: skip
def test_the_recommendation_has_a_reason(target: ScalingTarget, fields: dict[str, Any], reason: str) -> None:
    assert signals(target, **fields).reason == reason


# -- the capacity of workers


def worker(name: str = "w1", offered: str = '["gpu"]', **fields: Any) -> Worker:
    row = {"status": "approved", "assigned": None, "concurrency": 2, "last_seen_at": 100} | fields
    return Worker(
        name, 0, row["status"], None, offered, row["assigned"], row["concurrency"], 1, 0, row["last_seen_at"],
        draining_at=row.get("draining_at"),
    )  # fmt: skip


def capacity(workers: list[Worker], *leases: WorkerLeases, kind: str = "gpu") -> tuple[int, int, int, int, int] | None:
    """Return the workers, busy workers, running tasks, slots and free slots of a kind."""
    found = capacity_by_kind(workers, leases, seen_since=100).get(kind)
    if found is None:
        return None
    return len(found.workers), len(found.busy), found.running, found.capacity, found.free


def test_an_idle_worker_counts_while_it_sends_heartbeats() -> None:
    assert capacity([worker()]) == (1, 0, 0, 2, 2)
    assert capacity([worker(last_seen_at=99)]) is None


def test_a_busy_worker_counts_without_recent_contact() -> None:
    assert capacity([worker(last_seen_at=1)], WorkerLeases("w1", "gpu", 1, 1)) == (1, 1, 1, 2, 1)


def test_an_unregistered_worker_counts_by_its_leases() -> None:
    assert capacity([], WorkerLeases("embedded", "gpu", 3, 1)) == (1, 1, 3, 3, 0)


@pytest.mark.parametrize("fields", [{"status": "pending"}, {"draining_at": 5}, {"assigned": '["cpu"]'}])
def test_a_worker_that_cannot_claim_counts_only_while_it_is_busy(fields: dict[str, Any]) -> None:
    assert capacity([worker(**fields)]) is None
    assert capacity([worker(**fields)], WorkerLeases("w1", "gpu", 1, 1)) == (1, 1, 1, 1, 0)


def test_the_slots_of_a_worker_are_shared_by_its_kinds() -> None:
    workers = [worker(offered='["cpu", "gpu"]')]
    leases = WorkerLeases("w1", "cpu", 2, 7)
    assert capacity(workers, leases, kind="gpu") == (1, 0, 0, 2, 0)
    assert capacity(workers, leases, kind="cpu") == (1, 1, 2, 2, 0)


def test_a_kind_with_workers_and_no_tasks_has_capacity() -> None:
    assert sorted(capacity_by_kind([worker(offered='["a", "b"]')], [], 0)) == ["a", "b"]
