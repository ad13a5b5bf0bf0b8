"""How many workers it takes: tables for what is known, properties for what always holds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callsheet.core.model.clock import SECOND
from callsheet.core.model.rows import Worker
from callsheet.core.policy.autoscale import KindObservation, ScaleSignals, ScalingTarget, compute_signals
from callsheet.core.policy.capacity import WorkerLeases, capacity_by_kind

MINUTE = ScalingTarget(wait_seconds=60)
COUNTS = st.integers(0, 500)
TRIES = st.lists(st.integers(0, 10_000 * SECOND), max_size=20)


def seconds(*values: float) -> list[int]:
    return [int(value * SECOND) for value in values]


def observed(**fields: Any) -> KindObservation:
    """Return a kind whose waiting tasks no limit holds."""
    fields.setdefault("startable", fields.get("ready", 0) + fields.get("backoff", 0))
    return KindObservation(kind="gpu", **fields)


def judged(aim: ScalingTarget = MINUTE, **fields: Any) -> ScaleSignals:
    return compute_signals(observed(**fields), aim)


@st.composite
def kinds(draw: st.DrawFn) -> KindObservation:
    ready, backoff, running = draw(COUNTS), draw(COUNTS), draw(COUNTS)
    busy = draw(st.integers(1, running)) if running else 0
    workers = busy + draw(COUNTS)
    return KindObservation(
        kind="gpu", ready=ready, backoff=backoff, startable=draw(st.integers(0, ready + backoff)), running=running,
        busy=busy, workers=workers, capacity=max(running, workers) + draw(COUNTS), free=draw(COUNTS),
        elapsed=draw(st.integers(0, 10**10)) if running else None, attempt_durations=draw(TRIES), older=draw(TRIES),
    )  # fmt: skip


AIMS = st.builds(
    ScalingTarget, wait_seconds=st.floats(1, 10_000), workers_min=st.integers(0, 5), workers_max=st.integers(5, 200),
    concurrency=st.none() | st.integers(1, 16),
)  # fmt: skip


# -- the number of workers


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0),
        ({"workers": 9, "capacity": 9, "free": 9}, 0),
        # 60 s a try and 60 s to wait: a place begins two tasks in time
        ({"ready": 10, "attempt_durations": seconds(60)}, 5),
        ({"ready": 1, "attempt_durations": seconds(60)}, 1),
        # a try that takes far longer than one may wait: a place each, and never more
        ({"ready": 10, "attempt_durations": seconds(6_000)}, 10),
        ({"ready": 10, "attempt_durations": seconds(0.1)}, 1),
        ({"ready": 1_000, "attempt_durations": seconds(0)}, 1),
        # a try that waits for its next time will need a place too
        ({"backoff": 10, "attempt_durations": seconds(60)}, 5),
        # what runs keeps its places
        ({"running": 7, "busy": 7, "workers": 9, "capacity": 9, "attempt_durations": seconds(0.1)}, 7),
        # 4 places a machine
        ({"ready": 100, "workers": 2, "capacity": 8, "attempt_durations": seconds(60)}, 13),
        # five machines with one task each on four places: none is sent home
        ({"running": 5, "busy": 5, "workers": 5, "capacity": 20, "attempt_durations": seconds(60)}, 5),
        # what took how long before the window is better than nothing, what runs now is better than that
        ({"ready": 10, "older": seconds(60)}, 5),
        ({"ready": 10, "attempt_durations": seconds(60), "older": seconds(6_000)}, 5),
        ({"ready": 9, "running": 1, "busy": 1, "workers": 1, "capacity": 1, "elapsed": 60 * SECOND}, 5),
        # nothing is known at all: one begins
        ({"ready": 1_000}, 1),
        ({"ready": 1_000, "running": 3, "busy": 3, "workers": 3, "capacity": 3, "elapsed": 0}, 3),
        # a running limit: more machines would stand about
        ({"ready": 99, "startable": 2, "running": 2, "busy": 2, "workers": 2, "capacity": 2,
        "attempt_durations": seconds(600)}, 4),
        ({"ready": 100, "startable": 0, "attempt_durations": seconds(600)}, 1),
    ],
)  # fmt: skip
def test_so_many_workers_begin_what_waits_in_time(fields: dict[str, Any], expected: int) -> None:
    assert judged(**fields).recommended_workers == expected


def test_the_places_of_a_machine_may_be_told_before_there_is_one() -> None:
    assert judged(replace(MINUTE, concurrency=4), ready=100, attempt_durations=seconds(60)).recommended_workers == 13


@given(kinds(), AIMS, st.integers(0, 500), st.booleans())
def test_more_that_waits_never_wants_fewer_workers(
    seen: KindObservation, aim: ScalingTarget, more: int, later: bool
) -> None:
    grown = replace(seen, startable=seen.startable + more, **{
        "backoff" if later else "ready": (seen.backoff if later else seen.ready) + more
    })  # fmt: skip
    assert compute_signals(grown, aim).recommended_workers >= compute_signals(seen, aim).recommended_workers


@given(kinds(), AIMS)
def test_whoever_is_busy_is_never_scaled_away(seen: KindObservation, aim: ScalingTarget) -> None:
    # flaws b and c of the original: machines on long jobs, and on a last try, were
    wanted = compute_signals(seen, aim).recommended_workers
    assert wanted >= seen.busy
    each = aim.concurrency or (seen.capacity // seen.workers if seen.workers else 1)
    assert wanted >= min(seen.running / max(each, 1), aim.workers_max)


@given(kinds(), AIMS)
def test_the_bounds_are_kept_and_zero_is_for_nothing_at_all(seen: KindObservation, aim: ScalingTarget) -> None:
    wanted = compute_signals(seen, aim).recommended_workers
    assert aim.workers_min <= wanted <= max(aim.workers_max, seen.busy)
    if not wanted:
        assert (seen.depth, seen.running) == (0, 0)
    if not seen.depth and not seen.running:
        assert wanted == aim.workers_min


@given(kinds(), AIMS, st.floats(1, 10_000))
def test_a_longer_wait_never_wants_more_workers(seen: KindObservation, aim: ScalingTarget, more: float) -> None:
    patient = replace(aim, wait_seconds=aim.wait_seconds + more)
    assert compute_signals(seen, patient).recommended_workers <= compute_signals(seen, aim).recommended_workers


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_idle_machines_in_that_number_do_begin_everything_in_time(waiting: int, took: int, wait: int) -> None:
    places = judged(
        ScalingTarget(wait_seconds=wait), ready=waiting, attempt_durations=seconds(took)
    ).recommended_workers
    assert places * (wait + took) >= waiting * took


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
def test_the_wait_is_told_where_it_can_be(fields: dict[str, Any], expected: float | None) -> None:
    assert judged(**fields).estimated_wait_seconds == expected


@given(kinds(), AIMS)
def test_without_data_nothing_is_made_up(seen: KindObservation, aim: ScalingTarget) -> None:
    found = compute_signals(replace(seen, attempt_durations=(), older=()), aim)
    assert (found.attempt_seconds_p50, found.attempt_seconds_p95, found.samples) == (None, None, 0)
    assert found.basis == ("none" if seen.elapsed is None else "running")
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
def test_fewer_are_safe_while_nobody_waits_longer_than_is_aimed_at(fields: dict[str, Any], safe: bool) -> None:
    assert judged(**fields).scale_down_safe is safe


# -- what is told besides


def test_quantiles_are_of_single_tries_in_the_window() -> None:
    found = judged(attempt_durations=seconds(*range(1, 21)), older=seconds(999))
    assert (found.attempt_seconds_p50, found.attempt_seconds_p95, found.samples, found.basis) == (
        10.0,
        19.0,
        20,
        "window",
    )
    older = judged(older=seconds(999))
    assert (older.attempt_seconds_p50, older.samples, older.basis) == (999.0, 1, "older")


@pytest.mark.parametrize(
    ("aim", "fields", "said"),
    [
        (MINUTE, {}, "Nothing waits and nothing runs."),
        (MINUTE, {"ready": 1}, "1 task waits, 0 run; the duration is not known yet, so start with one."),
        (MINUTE, {"ready": 3, "attempt_durations": seconds(40)}, "3 tasks wait, 0 run; an attempt takes 40 s."),
        (MINUTE, {"ready": 3, "startable": 1, "attempt_durations": seconds(400)},
         "3 tasks wait, 0 run; an attempt takes 400 s. A running limit allows 1 at once."),
        (MINUTE, {"running": 1, "busy": 1, "workers": 1, "capacity": 1, "elapsed": 0}, "Nothing waits; 1 task runs."),
        (ScalingTarget(wait_seconds=60, workers_max=1), {"ready": 90, "attempt_durations": seconds(1.5)},
         "90 tasks wait, 0 run; an attempt takes 1.5 s. 3 workers would be enough; the maximum is 1."),
        (ScalingTarget(wait_seconds=60, workers_min=2), {},
        "Nothing waits and nothing runs. 0 workers would be enough; the minimum is 2."),
        (ScalingTarget(wait_seconds=60, workers_max=1),
         {"running": 2, "busy": 2, "workers": 2, "capacity": 2, "attempt_durations": seconds(2)},
         "Nothing waits; 2 tasks run. 2 workers are busy and must stay."),
    ],
)  # fmt: skip
def test_the_reason_is_said_in_words(aim: ScalingTarget, fields: dict[str, Any], said: str) -> None:
    assert judged(aim, **fields).reason == said


# -- who works


def worker(name: str = "w1", offered: str = '["gpu"]', **fields: Any) -> Worker:
    given = {"status": "approved", "assigned": None, "concurrency": 2, "last_seen_at": 100} | fields
    return Worker(
        name, 0, given["status"], None, offered, given["assigned"], given["concurrency"], 1, 0, given["last_seen_at"],
        draining_at=given.get("draining_at"),
    )  # fmt: skip


def staff(fleet: list[Worker], *held: WorkerLeases, kind: str = "gpu") -> tuple[int, int, int, int, int] | None:
    found = capacity_by_kind(fleet, held, seen_since=100).get(kind)
    if found is None:
        return None
    return len(found.workers), len(found.busy), found.running, found.capacity, found.free


def test_a_worker_that_waits_counts_while_it_is_heard_of() -> None:
    assert staff([worker()]) == (1, 0, 0, 2, 2)
    assert staff([worker(last_seen_at=99)]) is None


def test_a_worker_on_a_long_task_counts_however_long_it_was_silent() -> None:
    # flaw b of the original
    assert staff([worker(last_seen_at=1)], WorkerLeases("w1", "gpu", 1, 1)) == (1, 1, 1, 2, 1)


def test_a_worker_that_nobody_registered_counts_by_what_it_holds() -> None:
    assert staff([], WorkerLeases("embedded", "gpu", 3, 1)) == (1, 1, 3, 3, 0)


@pytest.mark.parametrize("fields", [{"status": "pending"}, {"draining_at": 5}, {"assigned": '["cpu"]'}])
def test_a_worker_that_takes_nothing_new_counts_only_while_it_is_busy(fields: dict[str, Any]) -> None:
    assert staff([worker(**fields)]) is None
    assert staff([worker(**fields)], WorkerLeases("w1", "gpu", 1, 1)) == (1, 1, 1, 1, 0)


def test_places_are_shared_by_the_kinds_of_a_worker() -> None:
    fleet = [worker(offered='["cpu", "gpu"]')]
    held = WorkerLeases("w1", "cpu", 2, 7)
    assert staff(fleet, held, kind="gpu") == (1, 0, 0, 2, 0)
    assert staff(fleet, held, kind="cpu") == (1, 1, 2, 2, 0)


def test_a_kind_with_workers_and_no_tasks_is_there() -> None:
    assert sorted(capacity_by_kind([worker(offered='["a", "b"]')], [], 0)) == ["a", "b"]
