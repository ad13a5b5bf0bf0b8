"""Processes due timers of jobs and tasks: expired leases, backoffs, schedules, deadlines, grace periods."""

from callsheet.core.model.commands import TickJob, TickTask
from callsheet.engine.loops.loop_protocol import PAGE, CommandExecutor, send_due_commands


class Sweeper:
    """Sends a tick to every job and task that is due."""

    def __init__(self, engine: CommandExecutor, page: int = PAGE) -> None:
        self._engine = engine
        self._page = page

    def run_once(self, now: int) -> int:
        jobs = send_due_commands(self._engine, now, "due_jobs", lambda row: TickJob(job_id=row[1]), self._page)
        tasks = send_due_commands(
            self._engine, now, "due_tasks", lambda row: TickTask(task_id=row[1], job_id=row[2]), self._page
        )
        return jobs + tasks
