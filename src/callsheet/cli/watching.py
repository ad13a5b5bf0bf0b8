"""Following a job until it has ended: a bar on a terminal, lines elsewhere, one JSON document a line for programs."""

import sys
from typing import TYPE_CHECKING

import msgspec

from callsheet.cli.output import say

if TYPE_CHECKING:
    from callsheet.client import Client, Event, Job


def follow(client: "Client", job_id: str, *, json: bool = False, after: int = 0) -> "Job":
    """Show what happens to a job, and return it when it has ended."""
    if json or not sys.stdout.isatty():
        for event in client.events(job_id, after=after):
            say(msgspec.json.encode(event).decode() if json else _line(event))
    else:
        _bar(client, job_id, after)
    return client.get(job_id)


def ending(job: "Job") -> str:
    """Say how a job ended."""
    if job.error is None:
        return f"{job.id} is {job.status}."
    return f"{job.id} is {job.status}: {job.error.message} ({job.error.code})"


def _line(event: "Event") -> str:
    parts = [event.at.strftime("%H:%M:%S"), event.type]
    data = event.data if isinstance(event.data, dict) else {}
    if "progress" in data:
        parts.append(f"{data['progress']} %")
    parts += [str(data[name]) for name in ("message", "code", "reason") if data.get(name)]
    return "  ".join(parts)


def _bar(client: "Client", job_id: str, after: int) -> None:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        job = client.get(job_id)
        bar = progress.add_task(job.workflow, total=100, completed=job.progress)
        for event in client.events(job_id, after=after):
            job = client.get(job_id)
            progress.update(bar, completed=job.progress, description=f"{job.workflow} {job.status}")
            if event.type == "stage.waiting":
                progress.print(f"A stage waits for approval: callsheet approve {job_id} STAGE")
