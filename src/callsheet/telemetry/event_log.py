"""Structured log: one JSON object per event or refused transition.

Lines are `job.created`, `job.transition` for every transition of a job, `job.completed` and `job.failed` with the
credits, `job.transition_denied` for a refused transition, and all other events under their own type.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from callsheet.core.model.clock import rfc3339
from callsheet.core.model.errors import IllegalTransition, Refusal
from callsheet.core.model.rows import Event
from callsheet.core.model.terminal_text import escape_json

_DENIED_MAX = 10_000
"""Maximum number of refused transitions that wait to be written; the oldest are dropped."""
_FIELD_NAMES = {"price": "credits_cost", "consumed": "credits_consumed", "refunded": "credits_refunded"}


def log_records(event: Event) -> Iterator[dict[str, Any]]:
    """Return the log lines of one event."""
    entity = event.type.split(".")[0]
    common: dict[str, Any] = {"ts": rfc3339(event.at), "event": event.type, "job_id": event.subject, "run": event.run}
    data = {_FIELD_NAMES.get(key, key): value for key, value in json.loads(event.data or "{}").items()}
    if entity == "job" and event.source is not None:
        transition = {"from_status": event.source, "to_status": event.target, "actor": event.actor}
        yield common | {"event": "job.transition"} | transition
        if event.target not in {"completed", "failed", "expired", "canceled"}:
            return
    if event.entity_id is not None:
        common["entity_id" if entity == "job" else f"{entity}_id"] = event.entity_id
    if event.type == "job.created":
        common["type"] = data.pop("workflow", None)
    yield common | data


def denied_record(at: int, job_id: str | None, refusal: IllegalTransition) -> dict[str, Any]:
    """Return the log line of a refused transition."""
    return {
        "ts": rfc3339(at), "event": "job.transition_denied", "job_id": job_id, "entity": refusal.details["entity"],
        "from_status": refusal.source, "to_status": refusal.target, "actor": refusal.details["actor"],
    }  # fmt: skip


class JsonLogWriter:
    """Writes log lines to a stream. A `Relay` calls `events`, a `LoopRunner` calls `run_once`."""

    def __init__(self, stream: TextIO, clock: Callable[[], int]) -> None:
        self._stream = stream
        self._clock = clock
        self._refused: deque[dict[str, Any]] = deque(maxlen=_DENIED_MAX)
        self._lock = threading.Lock()

    def events(self, feed: Sequence[tuple[int, int, Event]]) -> None:
        self._write([line for *_, event in feed for line in log_records(event)])

    def record_refusal(self, command: object, refusal: Refusal) -> None:
        """Record a refused transition. `run_once` writes it, so that the caller does not wait for the stream."""
        if isinstance(refusal, IllegalTransition):
            lease = getattr(command, "lease", None)
            job_id = lease.job_id if lease else getattr(command, "job_id", None)
            self._refused.append(denied_record(self._clock(), job_id, refusal))

    def run_once(self, now: int) -> int:  # noqa: ARG002 - a line has the time of the refusal
        """Write the recorded refused transitions."""
        pending = []
        while self._refused:
            pending.append(self._refused.popleft())
        if pending:
            self._write(pending)
        return len(pending)

    def _write(self, records: Sequence[dict[str, Any]]) -> None:
        with self._lock:
            for line in records:
                self._stream.write(escape_json(json.dumps(line, separators=(",", ":"))) + "\n")
            self._stream.flush()
