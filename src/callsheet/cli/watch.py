"""Follow a job until it has ended: with a progress bar on a terminal, else one line per event, as text or JSON."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from callsheet.cli.output import INTERRUPTED, Failure, format_time, json_line, print_line
from callsheet.cli.stall_reporter import StallReporter
from callsheet.cli.stream_ticks import AddTicks, add_ticks
from callsheet.core.model.clock import SECOND
from callsheet.core.model.terminal_text import sanitize
from callsheet.core.policy.explanation.duration_estimate import PastDurations

if TYPE_CHECKING:
    from callsheet.client import Client, Event, Job, Stage

    TickedEvents = Iterable[Event | None]

Clock = Callable[[], datetime]


def _now() -> datetime:
    return datetime.now(UTC)


def follow(
    client: "Client", job_id: str, *, json: bool = False, ticker: "AddTicks[Event]" = add_ticks, now: Clock = _now
) -> "Job":
    """Show the events of a job, and return it when it has ended. `ticker` adds ticks to a quiet stream."""
    events = client.jobs.events(job_id)
    if json:
        for event in events:
            print_line(json_line(event))
    elif sys.stdout.isatty():
        _show_bar(client, job_id, ticker(events), now)
    else:
        _print_progress_lines(client, job_id, ticker(events))
    return client.jobs.get(job_id)


def print_events(client: "Client", job_id: str, events: Iterable["Event"], *, json: bool) -> None:
    """Print events, one per line."""
    part_names = _PartNames(client, job_id)
    for event in events:
        for line in [json_line(event)] if json else _format_event(event, part_names):
            print_line(line)


def _print_progress_lines(client: "Client", job_id: str, events: "TickedEvents") -> None:
    part_names, stall = _PartNames(client, job_id), StallReporter(client, job_id)
    for event in events:
        if event is not None:
            stall.reset()
        for line in stall.tick() if event is None else _format_event(event, part_names):
            print_line(line)


@contextmanager
def hint_on_interrupt(job_id: str) -> Iterator[None]:
    """On Ctrl-C, explain that the job keeps running."""
    try:
        yield
    except KeyboardInterrupt:
        raise Failure(
            f"The job keeps running. Follow it with: callsheet watch {job_id}", INTERRUPTED, code="interrupted"
        ) from None


def describe_end(job: "Job") -> str:
    """Describe how a job ended."""
    if job.error is None:
        return f"{job.id} is {job.status}."
    return f"{job.id} is {job.status}: {sanitize(job.error.message)} ({job.error.code})"


def approval_hint(job_id: str, stage: "Stage") -> str:
    """Describe that a stage waits for approval, with the command that approves it."""
    return f"Stage {stage.no} ({sanitize(stage.name)}) waits for approval: callsheet approve {job_id} {stage.no}"


class _PartNames:
    """Names of a job's stages and tasks, fetched when an event names an unknown one."""

    def __init__(self, client: "Client", job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self._names: dict[str, str] = {}

    def name(self, event: "Event") -> str:
        """Return the name of the event's stage or task; empty if it is about the job itself."""
        entity_id = event.entity_id
        if entity_id is None or entity_id == event.job_id:
            return ""
        if entity_id not in self._names:
            stages = {stage.id: stage for stage in self._client.jobs.stages(self._job_id)}
            self._names |= {stage.id: sanitize(stage.name) for stage in stages.values()}
            for task in self._client.jobs.tasks(self._job_id):
                stage = stages[task.stage_id]
                name = sanitize(stage.name)
                self._names[task.id] = name if stage.tasks_total == 1 else f"{name} {task.no}"
        return self._names.setdefault(entity_id, "")

    def waiting_hint(self, event: "Event") -> str:
        """Return how to approve the event's stage, if it still waits for approval."""
        if event.type != "stage.waiting":
            return ""
        found = (stage for stage in self._client.jobs.stages(self._job_id) if stage.id == event.entity_id)
        return next((approval_hint(self._job_id, stage) for stage in found if stage.status == "waiting"), "")


def _format_event(event: "Event", part_names: _PartNames) -> Iterator[str]:
    """Format an event as one line; a log event has one line per log line."""
    data = _data(event)
    prefix = [format_time(event.at), event.type, part_names.name(event)]
    for log_line in _log_lines(event) or [""]:
        details = [f"{data['progress']} %" if "progress" in data else "", log_line]
        details += [sanitize(str(data[name])) for name in ("message", "code", "reason") if data.get(name)]
        yield "  ".join(filter(None, [*prefix, *details, part_names.waiting_hint(event)]))


def _data(event: "Event") -> dict[str, Any]:
    return event.data if isinstance(event.data, dict) else {}


def _log_lines(event: "Event") -> list[str]:
    return [sanitize(str(line)) for line in _data(event).get("lines", ())] if event.type == "task.logged" else []


def _show_bar(client: "Client", job_id: str, events: "TickedEvents", now: Clock) -> None:
    from rich.console import Console  # noqa: PLC0415 - slow
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - slow
    from rich.text import Text  # noqa: PLC0415 - slow

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[percent]:>6}"),
        TimeElapsedColumn(),
    )
    part_names, stall = _PartNames(client, job_id), StallReporter(client, job_id)
    with Progress(*columns, console=Console()) as progress:  # the shared console knows only the first terminal
        job = client.jobs.get(job_id)
        bar = progress.add_task(sanitize(job.workflow), total=100, completed=job.progress, percent="")
        for event in events:
            messages = (
                stall.tick() if event is None else [f"{part_names.name(event)}: {line}" for line in _log_lines(event)]
            )
            if event is not None:
                stall.reset()
                messages.append(part_names.waiting_hint(event))
                if event.seq > job.last_event_seq:  # else `job` already reflects this event
                    job = client.jobs.get(job_id)
            done, percent = estimate_progress(job, now())
            description = sanitize(f"{job.workflow} {job.status}")
            progress.update(bar, completed=done, percent=percent, description=description, refresh=event is None)
            for line in filter(None, messages):
                progress.console.print(Text(line), soft_wrap=True)


def estimate_progress(job: "Job", now: datetime) -> tuple[int, str]:
    """Return a job's progress in percent and its text. Without reported progress it is an estimate, marked ~."""
    if job.progress or job.duration_estimate is None or job.started_at is None or job.ended:
        return job.progress, f"{job.progress} %"
    median, p90 = (
        int(seconds * SECOND) for seconds in (job.duration_estimate.seconds_p50, job.duration_estimate.seconds_p90)
    )
    # Ten durations with this median and 90th percentile, so that the estimate equals the server's.
    history = PastDurations([median] * 5 + [p90] * 5)
    estimate = history.percent(int((now - job.started_at).total_seconds() * SECOND))
    return estimate, f"~{estimate} %"
