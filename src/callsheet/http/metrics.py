"""Prometheus metrics: requests by route and status, queues, jobs, workers. Labels name no tenant, user or job."""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from callsheet.core.model.state_machines import JOB
from callsheet.core.policy.autoscale import ScaleSignals
from callsheet.engine.queue_stats import WAIT_BUCKETS_SECONDS, QueueStats, merge_refused, merge_waits
from callsheet.http.server.route import Route

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
    """Values read for one scrape. Rows are None if the database does not answer."""

    streams: int
    depths: Sequence[Sequence[Any]] | None = None
    """Kind, workflow, waiting, running."""
    active: Sequence[Sequence[Any]] | None = None
    """Status, jobs."""
    workers: Sequence[Sequence[Any]] | None = None
    """Worker, kind, running tasks, expiry of its first lease."""
    signals: Sequence[ScaleSignals] | None = None
    """Scale signals of each kind."""
    provider_calls: Sequence[int] | None = None
    """Calls to providers that have not ended, and those that are overdue."""
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
        database_up = snapshot.depths is not None if snapshot.database_up is None else snapshot.database_up
        yield GaugeMetricFamily("callsheet_database_up", "1 if the database answers, else 0.", int(database_up))
        if snapshot.depths is not None:
            busiest = sorted(snapshot.depths, key=lambda row: (-row[2] - row[3], row[0], row[1]))[:_QUEUES_MAX]
            yield _family(
                "tasks_waiting",
                "Tasks that a worker can claim now.",
                ("kind", "workflow"),
                (((row[0], row[1]), row[2]) for row in busiest),
            )
            yield _family(
                "tasks_running",
                "Tasks leased to a worker or submitted to a provider.",
                ("kind", "workflow"),
                (((row[0], row[1]), row[3]) for row in busiest),
            )
        if snapshot.active is not None:
            counts = dict.fromkeys((status for status in JOB.statuses if status not in JOB.terminal), 0) | {
                row[0]: row[1] for row in snapshot.active
            }
            yield _family(
                "jobs_active",
                "Unfinished jobs.",
                ("status",),
                (((status,), count) for status, count in counts.items()),
            )
        if snapshot.workers is not None:
            kinds = Tally(row[1] for row in snapshot.workers if row[3] is not None)
            yield _family(
                "workers",
                "Workers that hold a lease.",
                ("kind",),
                (((kind,), count) for kind, count in sorted(kinds.items())),
            )
        if snapshot.provider_calls is not None:
            yield GaugeMetricFamily("callsheet_provider_calls", "Open provider calls.", snapshot.provider_calls[0])
            yield GaugeMetricFamily(
                "callsheet_provider_calls_overdue",
                "Open provider calls whose result is overdue.",
                snapshot.provider_calls[1],
            )
        if snapshot.signals is not None:
            yield from _scaling(snapshot.signals)


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
    for work_class, count in sorted(merge_refused(queues).items()):
        refused.add_metric((work_class.label,), count)
    yield refused


_SIGNALS = {
    "depth": "Waiting tasks: ready, or in backoff before the next attempt.",
    "oldest_wait_seconds": "Wait of the oldest ready task.",
    "running": "Tasks leased to workers, without those submitted to a provider.",
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


def _family(name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], int]]) -> Metric:
    family = GaugeMetricFamily(f"callsheet_{name}", text, labels=labels)
    totals: Tally[Sequence[str]] = Tally()
    for key, value in values:
        totals[key] += value  # a kind and workflow may have several queues, one for each provider
    for key, value in totals.items():
        family.add_metric(key, value)
    return family
