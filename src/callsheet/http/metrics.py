"""Metrics for Prometheus: requests by route and status, and what waits and runs. No tenant, user or job is a label."""

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
from callsheet.http.server.router import Route

_QUEUES_MAX = 1_000
"""Jobs may bring kinds of their own: the queues with the most work are shown, so that a scrape stays small."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics(Collector):
    """Counts what the edge does. Only the event loop counts, so a plain dictionary is enough, and cheap."""

    def __init__(self) -> None:
        self._responses: Tally[tuple[str, str, int]] = Tally()
        self._times: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def record_request(self, route: Route | None, status: int, seconds: float) -> None:
        """Count an answer."""
        path, method = (route.path, route.method) if route else ("unknown", "unknown")
        self._responses[path, method, status] += 1
        times = self._times.get(path)
        if times is None:
            times = self._times[path] = [0] * (len(_SECONDS) + 1)
        times[bisect_left(_SECONDS, seconds)] += 1
        self._sums[path] = self._sums.get(path, 0.0) + seconds

    def collect(self) -> Iterable[Metric]:
        labels = ("route", "method", "status")
        responses = CounterMetricFamily("callsheet_http_requests", "Requests answered.", labels=labels)
        for (path, method, status), count in list(self._responses.items()):
            responses.add_metric((path, method, str(status)), count)
        yield responses
        times = HistogramMetricFamily("callsheet_http_request_duration_seconds", "Time to answer.", labels=("route",))
        for path, counts in list(self._times.items()):
            buckets = zip((*map(str, _SECONDS), "+Inf"), accumulate(counts), strict=True)
            times.add_metric((path,), list(buckets), self._sums[path])
        yield times

    def text(self, snapshot: "MetricsSnapshot") -> bytes:
        """Return everything in Prometheus' format: what was counted here, and what there is at this moment."""
        registry = CollectorRegistry()
        registry.register(self)
        registry.register(_Gauges(snapshot))
        return generate_latest(registry)


class MetricsSnapshot(NamedTuple):
    """What a scrape finds; without an answer of the database the rows are None."""

    streams: int
    depths: Sequence[Sequence[Any]] | None = None
    """Kind, workflow, waiting, running."""
    active: Sequence[Sequence[Any]] | None = None
    """Status, jobs."""
    workers: Sequence[Sequence[Any]] | None = None
    """Worker, kind, running tasks, the end of its first lease."""
    signals: Sequence[ScaleSignals] | None = None
    """What the fleet is scaled by."""
    provider_calls: Sequence[int] | None = None
    """Calls to providers that have not ended, and those that are overdue."""


class _Gauges(Collector):
    """Reads a moment out; made anew for every scrape, so nothing that has gone stays behind."""

    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._moment = snapshot

    def collect(self) -> Iterable[Metric]:
        snapshot = self._moment
        yield GaugeMetricFamily("callsheet_streams", "Open streams and long polls of this process.", snapshot.streams)
        responses = snapshot.depths is not None
        yield GaugeMetricFamily("callsheet_database_up", "Whether the database answers.", int(responses))
        if snapshot.depths is not None:
            busiest = sorted(snapshot.depths, key=lambda row: (-row[2] - row[3], row[0], row[1]))[:_QUEUES_MAX]
            yield _family(
                "tasks_waiting",
                "Tasks that a worker could take now.",
                ("kind", "workflow"),
                (((row[0], row[1]), row[2]) for row in busiest),
            )
            yield _family(
                "tasks_running",
                "Tasks that are leased or at a provider.",
                ("kind", "workflow"),
                (((row[0], row[1]), row[3]) for row in busiest),
            )
        if snapshot.active is not None:
            counts = dict.fromkeys((s for s in JOB.statuses if s not in JOB.terminal), 0) | {
                row[0]: row[1] for row in snapshot.active
            }
            yield _family(
                "jobs_active",
                "Jobs that have not ended.",
                ("status",),
                (((status,), count) for status, count in counts.items()),
            )
        if snapshot.workers is not None:
            kinds = Tally(row[1] for row in snapshot.workers if row[3] is not None)
            yield _family(
                "workers",
                "Workers with a lease in hand.",
                ("kind",),
                (((kind,), count) for kind, count in sorted(kinds.items())),
            )
        if snapshot.provider_calls is not None:
            yield GaugeMetricFamily(
                "callsheet_provider_calls", "Calls to providers that have not ended.", snapshot.provider_calls[0]
            )
            yield GaugeMetricFamily(
                "callsheet_provider_calls_overdue", "Those that nobody collects in time.", snapshot.provider_calls[1]
            )
        if snapshot.signals is not None:
            yield from _scaling(snapshot.signals)


_SIGNALS = {
    "depth": "Tasks that wait: ready, and between two tries.",
    "oldest_wait_seconds": "How long the oldest ready task has waited.",
    "running": "Tasks in the hands of workers; those at a provider not.",
    "workers": "Workers that take this kind: with a lease of it, or registered and heard of lately.",
    "capacity": "Tasks that these workers do at once.",
    "free": "Places of them with nothing to do.",
    "recommended_workers": "Workers with which what waits begins in time; never fewer than are busy.",
    "estimated_wait_seconds": "How long a new task may wait; absent without a basis.",
    "failed_attempts": "Tries that failed in the window.",
    "lost_leases": "Tries in the window whose worker was not heard of any more.",
    "spot_interruptions": "Tries in the window that were given back because the machine was taken away.",
}


def _scaling(kinds: Sequence[ScaleSignals]) -> Iterable[Metric]:
    """Read signals out; what is not known is absent, never 0."""
    for name, text in _SIGNALS.items():
        family = GaugeMetricFamily(f"callsheet_queue_{name}", text, labels=("kind",))
        for one in kinds:
            if (value := getattr(one, name)) is not None:
                family.add_metric((one.kind,), value)
        yield family
    family = GaugeMetricFamily("callsheet_queue_attempt_seconds", "How long a try took.", labels=("kind", "quantile"))
    for one in kinds:
        for quantile, value in (("0.5", one.attempt_seconds_p50), ("0.95", one.attempt_seconds_p95)):
            if value is not None:
                family.add_metric((one.kind, quantile), value)
    yield family


def _family(name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], int]]) -> Metric:
    family = GaugeMetricFamily(f"callsheet_{name}", text, labels=labels)
    totals: Tally[Sequence[str]] = Tally()
    for key, value in values:
        totals[key] += value  # one kind and workflow may have a queue per provider
    for key, value in totals.items():
        family.add_metric(key, value)
    return family
