"""Autoscaling signals per kind of work."""

from typing import Annotated

from msgspec import Struct

from callsheet.api.shared_fields import Example, Time, doc
from callsheet.core.policy.autoscale import ScaleSignals

_SIGNALS = {
    "kind": "draw", "depth": 42, "depth_is_capped": False, "ready": 40, "backoff": 2, "oldest_wait_seconds": 95.2,
    "running": 8, "running_is_capped": False, "workers": 4, "busy_workers": 4, "capacity": 8, "free": 0,
    "attempt_seconds_p50": 30.0, "attempt_seconds_p95": 48.5,
    "samples": 120, "basis": "window", "arrivals_per_second": 0.31, "completions_per_second": 0.2,
    "estimated_wait_seconds": 153.75, "recommended_workers": 9, "scale_down_safe": False, "failed_attempts": 1,
    "lost_leases": 0, "spot_interruptions": 2, "reason": "42 tasks wait, 8 run; an attempt takes 30 s.",
}  # fmt: skip


class ScaleQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The kind to report on, and the target for the recommended number of workers. Defaults are server settings."""

    kind: Annotated[str, doc("Report only this kind. An unknown kind is reported with zeros.", "draw")] = ""
    target_wait_seconds: Annotated[
        float | None, doc("How long a task may wait. Default: `scale_target_wait_seconds`.", 60.0)
    ] = None
    window_seconds: Annotated[
        int | None, doc("Period that durations, rates and errors cover. Default: `scale_window_seconds`.", 600)
    ] = None
    workers_min: Annotated[int, doc("Lower bound of the recommended number of workers.", 1)] = 0
    workers_max: Annotated[
        int | None, doc("Upper bound of the recommended number, unless more workers are busy.", 8)
    ] = None
    concurrency: Annotated[
        int | None, doc("Tasks that one worker runs at the same time. Default: the average of the workers.", 2)
    ] = None


class ScaleReport(Struct, frozen=True):
    """Signals of every kind that has had a task or has a worker, for an autoscaler."""

    measured_at: Annotated[Time, doc("Time of the measurement.", Example.AT)]
    window_seconds: Annotated[int, doc("Period that durations, rates and errors cover, in seconds.", 600)]
    target_wait_seconds: Annotated[
        float, doc("How long a task may wait, in seconds: the target of the recommendation.", 60.0)
    ]
    kinds: Annotated[list[ScaleSignals], doc("Signals per kind, sorted by name.", [_SIGNALS])]
