"""Metrics for Prometheus: requests by route and status. No tenant, user or job is ever a label."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from callsheet.http.route import Route

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counts what the edge does."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("route", "method", "status")
        self._requests = Counter("callsheet_http_requests", "Requests answered.", labels, registry=self.registry)
        self._seconds = Histogram(
            "callsheet_http_seconds", "Time to answer.", ("route",), buckets=_SECONDS, registry=self.registry
        )
        self._cells: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def request(self, route: Route | None, status: int, seconds: float) -> None:
        """Count an answer."""
        path, method = (route.path, route.method) if route else ("unknown", "unknown")
        cell = self._cells.get((path, method, status))
        if cell is None:
            cell = (self._requests.labels(path, method, str(status)), self._seconds.labels(path))
            self._cells[path, method, status] = cell
        cell[0].inc()
        cell[1].observe(seconds)

    def text(self) -> bytes:
        """Return everything in Prometheus' format."""
        return generate_latest(self.registry)
