"""Marks workers as offline after some time without a heartbeat."""

from callsheet.core.model.clock import SECOND
from callsheet.core.model.commands import TickWorker
from callsheet.engine.loops.loop_protocol import PAGE, CommandExecutor, send_due_commands


class WorkerTimeouts:
    """Sends a tick to every worker that has sent no heartbeat for `timeout_seconds`."""

    def __init__(self, engine: CommandExecutor, timeout_seconds: int, page: int = PAGE) -> None:
        self._engine = engine
        self._timeout = timeout_seconds * SECOND
        self._page = page

    def run_once(self, now: int) -> int:
        seen_before = now - self._timeout
        return send_due_commands(
            self._engine, seen_before, "silent_workers", lambda row: TickWorker(worker_id=row[1]), self._page
        )
