"""Autoscaling signals per kind of work."""

from datetime import datetime

from msgspec import Struct

from callsheet.core.policy.autoscale import ScaleSignals


class ScaleQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which kind, and what its number of workers shall reach; what is left out, this server's settings say."""

    kind: str = ""
    """Only this kind; one that nobody knows has zeros."""
    target_wait_seconds: float | None = None
    """How long a waiting task may wait before it begins."""
    window_seconds: int | None = None
    """How far back durations, rates and errors are looked at."""
    workers_min: int = 0
    """Never recommend fewer."""
    workers_max: int | None = None
    """Never recommend more, unless more are busy."""
    concurrency: int | None = None
    """Tasks that one worker does at once; without it, what the kind's workers do now."""


class ScaleReport(Struct, frozen=True):
    """Every kind that ever had a task, or has a worker."""

    now: datetime
    window_seconds: int
    target_wait_seconds: float
    kinds: list[ScaleSignals]
    """By name."""
