"""Prometheus metrics: requests by route and status, queues, jobs, workers. Labels name no tenant, user or job."""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from callsheet.core.model.capped_count import CappedCount
from callsheet.core.policy.admission import WorkClass
from callsheet.core.policy.autoscale import ScaleSignals
from callsheet.engine.queue_stats import WAIT_BUCKETS_SECONDS, QueueStats, merge_refused, merge_waits
from callsheet.http.server.route import Route
from callsheet.queries.fleet.load import Load

_QUEUES_MAX = 1_000
"""Only the queues with the most tasks are exported: jobs can define kinds, and a scrape must stay small."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics(Collector):
    """Counts requests. Only the event loop writes, so plain dictionaries need no lock."""

    def __init__(self) -> None:
        self._responses: Tally[tuple[str, str, int]] = Tally()
        self._times: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def record_request(self, route: Route | None, status: int, seconds: float) -> None:
        """Count a response and its duration."""
        path, method = (route.path, route.method) if route else ("unknown", "unknown")
        self._responses[path, method, status] += 1
        times = self._times.get(path)
        if times is None:
            times = self._times[path] = [0] * (len(_SECONDS) + 1)
        times[bisect_left(_SECONDS, seconds)] += 1
        self._sums[path] = self._sums.get(path, 0.0) + seconds

    def collect(self) -> Iterable[Metric]:
        labels = ("route", "method", "status")
        responses = CounterMetricFamily("callsheet_http_requests", "Completed HTTP requests.", labels=labels)
        for (path, method, status), count in list(self._responses.items()):
            responses.add_metric((path, method, str(status)), count)
        yield responses
        times = HistogramMetricFamily(
            "callsheet_http_request_duration_seconds", "Duration of HTTP requests.", labels=("route",)
        )
        for path, counts in list(self._times.items()):
            buckets = zip((*map(str, _SECONDS), "+Inf"), accumulate(counts), strict=True)
            times.add_metric((path,), list(buckets), self._sums[path])
        yield times

    def text(self, snapshot: "MetricsSnapshot") -> bytes:
        """Return the counters and a snapshot in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(self)
        registry.register(_Gauges(snapshot))
        return generate_latest(registry)


class MetricsSnapshot(NamedTuple):
    """Values read for one scrape. They are None if the database does not answer."""

    streams: int
    load: Load | None = None
    signals: Sequence[ScaleSignals] | None = None
    """Scale signals of each kind."""
    database_up: bool | None = None
    """Whether the database answers, if other values do not say so."""
    queues: Sequence[QueueStats] = ()
    """Waits and refusals of the queues of this process."""


class _Gauges(Collector):
    """Exports a snapshot. Created for each scrape, so that labels without values disappear."""

    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        snapshot = self._snapshot
        yield GaugeMetricFamily(
            "callsheet_streams", "Open event streams and long polls of this process.", snapshot.streams
        )
        yield from _admission(snapshot.queues)
        database_up = snapshot.load is not None if snapshot.database_up is None else snapshot.database_up
        yield GaugeMetricFamily("callsheet_database_up", "1 if the database answers, else 0.", int(database_up))
        if snapshot.load is not None:
            yield from _load(snapshot.load)
        if snapshot.signals is not None:
            yield from _scaling(snapshot.signals)


def _load(load: Load) -> Iterable[Metric]:
    busiest = sorted(load.depths, key=lambda d: (-d.waiting.value - d.running.value, d.kind, d.workflow))[:_QUEUES_MAX]
    queue, status = ("kind", "workflow"), ("status",)
    waiting = [((depth.kind, depth.workflow), depth.waiting) for depth in busiest]
    running = [((depth.kind, depth.workflow), depth.running) for depth in busiest]
    active = [((name,), count) for name, count in load.active_jobs.items()]
    yield from _counts("tasks_waiting", "Tasks that a worker can claim now", queue, waiting)
    yield from _counts("tasks_running", "Tasks leased to a worker or submitted to a provider", queue, running)
    yield from _counts("jobs_active", "Unfinished jobs", status, active)
    kinds = Tally(kind for _, kind in load.workers.pairs)
    workers = [((kind,), CappedCount(count, load.workers.is_capped)) for kind, count in sorted(kinds.items())]
    yield from _counts("workers_busy", "Workers that hold a lease of this kind", ("kind",), workers)
    yield from _counts("provider_calls", "Open provider calls", (), [((), load.provider_calls.open)])
    overdue = "Open provider calls whose result is overdue"
    yield from _counts("provider_calls_overdue", overdue, (), [((), load.provider_calls.overdue)])


def _admission(queues: Sequence[QueueStats]) -> Iterable[Metric]:
    """Export how long work waited for its turn, and how much was refused, by class of work."""
    waits = HistogramMetricFamily(
        "callsheet_admission_wait_seconds", "Wait of commands and reads for their turn.", labels=("class",)
    )
    for work_class, histogram in sorted(merge_waits(queues).items()):
        buckets = zip((*map(str, WAIT_BUCKETS_SECONDS), "+Inf"), accumulate(histogram.counts), strict=True)
        waits.add_metric((work_class.label,), list(buckets), histogram.seconds)
    yield waits
    refused = CounterMetricFamily(
        "callsheet_admission_refused", "Requests, commands and reads refused as overloaded.", labels=("class",)
    )
    counts = merge_refused(queues)
    for work_class in sorted(WorkClass):
        refused.add_metric((work_class.label,), counts[work_class])
    yield refused


_SIGNALS = {
    "depth": "Waiting tasks: ready, or in backoff before the next attempt.",
    "depth_is_capped": "1 if there are more than callsheet_queue_depth says, else 0.",
    "oldest_wait_seconds": "Wait of the oldest ready task.",
    "running": "Tasks leased to workers, without those submitted to a provider.",
    "running_is_capped": "1 if there are more than callsheet_queue_running says, else 0.",
    "workers": "Workers of this kind: with a lease of it, or registered and seen recently.",
    "capacity": "Tasks that these workers can run at the same time.",
    "free": "Unused capacity of these workers.",
    "recommended_workers": "Workers needed to start waiting tasks within the target wait; never fewer than are busy.",
    "estimated_wait_seconds": "Estimated wait of a new task; absent without enough samples.",
    "failed_attempts": "Attempts that failed in the window.",
    "lost_leases": "Attempts in the window whose lease expired without a heartbeat.",
    "spot_interruptions": "Attempts in the window that were requeued because of a spot interruption.",
}


def _scaling(kinds: Sequence[ScaleSignals]) -> Iterable[Metric]:
    """Export scale signals. Unknown values are absent, never 0."""
    for name, text in _SIGNALS.items():
        family = GaugeMetricFamily(f"callsheet_queue_{name}", text, labels=("kind",))
        for signals in kinds:
            if (value := getattr(signals, name)) is not None:
                family.add_metric((signals.kind,), value)
        yield family
    family = GaugeMetricFamily("callsheet_queue_attempt_seconds", "Duration of attempts.", labels=("kind", "quantile"))
    for signals in kinds:
        for quantile, value in (("0.5", signals.attempt_seconds_p50), ("0.95", signals.attempt_seconds_p95)):
            if value is not None:
                family.add_metric((signals.kind, quantile), value)
    yield family


def _counts(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], CappedCount]]
) -> Iterable[Metric]:
    """Export counts, and which of them are capped."""
    totals: Tally[Sequence[str]] = Tally()
    capped: dict[Sequence[str], bool] = {}
    for key, count in values:
        totals[key] += count.value  # a kind and workflow may have several queues, one for each provider
        capped[key] = count.is_capped or capped.get(key, False)
    counts = GaugeMetricFamily(f"callsheet_{name}", f"{text}.", labels=labels)
    flags = GaugeMetricFamily(
        f"callsheet_{name}_is_capped", f"1 if there are more than callsheet_{name} says, else 0.", labels=labels
    )
    for key, total in totals.items():
        counts.add_metric(key, total)
        flags.add_metric(key, int(capped[key]))
    yield counts
    yield flags
