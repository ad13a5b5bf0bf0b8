"""Reports why a job that is being watched makes no progress."""

from contextlib import suppress
from typing import TYPE_CHECKING

from callsheet.core.model.terminal_text import sanitize

if TYPE_CHECKING:
    from callsheet.client import Client

_QUIET_TICKS = 6
"""Slightly longer than the five seconds after which the server reports that no worker claims a task."""
_REPORT_GAP_TICKS_MAX = 60
_EXPECTED_CODES = frozenset({"approval", "canceling", "ended", "queued"})
"""Constraints that are normal, or that the caller reports itself."""
_ACTIVE_CODES = frozenset({"provider", "running"})


class StallReporter:
    """Reports what blocks a job when nothing has happened to it for a while, each reason once."""

    def __init__(self, client: "Client", job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self.reset()

    def reset(self) -> None:
        """Start over, because something happened to the job."""
        self._quiet_ticks, self._report_at = 0, _QUIET_TICKS
        self._reported: set[tuple[str, str | None]] = set()

    def tick(self) -> list[str]:
        """Count a tick without an event. Queries the server at growing intervals, and returns the new reasons."""
        self._quiet_ticks += 1
        if self._quiet_ticks < self._report_at:
            return []
        self._report_at += min(self._report_at, _REPORT_GAP_TICKS_MAX)
        return self._new_reasons()

    def _new_reasons(self) -> list[str]:
        from callsheet.client import CallsheetError  # noqa: PLC0415 - slow: imports httpx

        with suppress(CallsheetError):  # the next request may succeed
            constraints = self._client.jobs.explain(self._job_id).constraints
            found = {(constraint.code, constraint.name): constraint.message for constraint in constraints}
            active = any(code in _ACTIVE_CODES for code, _ in found)
            blocking = set() if active else {key for key in found if key[0] not in _EXPECTED_CODES}
            new, self._reported = blocking - self._reported, blocking
            return [sanitize(message) for key, message in found.items() if key in new]
        return []
