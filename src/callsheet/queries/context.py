"""The context of every query: reads, limits, settings, and the signer of cursors and quotes."""

from typing import Any, Protocol, TypeVar

from callsheet.engine.engine import Engine
from callsheet.queries.duration_estimates import DurationEstimates
from callsheet.queries.fleet.stats import FleetStats
from callsheet.settings import HttpSettings

T = TypeVar("T")


class Signer(Protocol):
    """Signs small values that clients send back."""

    def sign(self, purpose: str, payload: Any) -> str: ...

    def read(self, purpose: str, text: str, shape: type[T]) -> T | None: ...


class QueryContext:
    """Passed to every query function."""

    def __init__(self, engine: Engine, signer: Signer, settings: HttpSettings) -> None:
        self.reads = engine.reads
        self.limits = engine.settings.limits
        self.settings = settings
        self.signer = signer
        self.duration_estimates = DurationEstimates(engine.reads, settings.estimate_cache_seconds)
        self.fleet_stats = FleetStats(engine.reads, engine.settings.limits, settings)
