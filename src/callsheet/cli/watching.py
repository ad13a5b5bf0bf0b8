"""Following a job until it has ended: a bar on a terminal, lines elsewhere, one JSON document a line for programs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from callsheet.cli.output import INTERRUPTED, Failure, moment, one_line, plain, say

if TYPE_CHECKING:
    from callsheet.client import Client, Event, Job, Stage


def follow(client: "Client", job_id: str, *, json: bool = False, after: int = 0) -> "Job":
    """Show what happens to a job, and return it when it has ended."""
    if json:
        for event in client.events(job_id, after=after):
            say(one_line(event))
    elif sys.stdout.isatty():
        _bar(client, job_id, after)
    else:
        parts = _Parts(client, job_id)
        for event in client.events(job_id, after=after):
            for line in _lines(event, parts):
                say(line)
    return client.get(job_id)


@contextmanager
def leaving(job_id: str) -> Iterator[None]:
    """Tell whoever stops waiting with Ctrl-C that the job does not stop."""
    try:
        yield
    except KeyboardInterrupt:
        raise Failure(f"The job goes on: callsheet watch {job_id}", INTERRUPTED, code="interrupted") from None


def ending(job: "Job") -> str:
    """Say how a job ended."""
    if job.error is None:
        return f"{job.id} is {job.status}."
    return f"{job.id} is {job.status}: {plain(job.error.message)} ({job.error.code})"


def to_approve(job_id: str, stage: "Stage") -> str:
    """Say that a stage waits for a person, and what that person types."""
    return f"Stage {stage.no} ({stage.name}) waits for approval: callsheet approve {job_id} {stage.no}"


class _Parts:
    """The stages and tasks of a job, asked for when an event is about one that is not known yet."""

    def __init__(self, client: "Client", job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self._names: dict[str, str] = {}

    def name(self, event: "Event") -> str:
        """Say which stage or task an event is about; of the job itself there is nothing to say."""
        one = event.entity_id
        if one is None or one == event.job_id:
            return ""
        if one not in self._names:
            stages = {stage.id: stage for stage in self._client.stages(self._job_id)}
            self._names |= {stage.id: stage.name for stage in stages.values()}
            for task in self._client.tasks(self._job_id):
                stage = stages[task.stage_id]
                self._names[task.id] = stage.name if stage.tasks_total == 1 else f"{stage.name} {task.no}"
        return self._names.setdefault(one, "")

    def waiting(self, event: "Event") -> str:
        """Say what to type if the event's stage still waits for approval; who looks back hears of none that is over."""
        if event.type != "stage.waiting":
            return ""
        found = (stage for stage in self._client.stages(self._job_id) if stage.id == event.entity_id)
        return next((to_approve(self._job_id, stage) for stage in found if stage.status == "waiting"), "")


def _lines(event: "Event", parts: _Parts) -> Iterator[str]:
    """Say an event in a line; a worker's own lines are one each."""
    data = _data(event)
    begin = [moment(event.at), event.type, parts.name(event)]
    for said in _log(event) or [""]:
        more = [f"{data['progress']} %" if "progress" in data else "", said]
        more += [plain(str(data[name])) for name in ("message", "code", "reason") if data.get(name)]
        yield "  ".join(filter(None, [*begin, *more, parts.waiting(event)]))


def _data(event: "Event") -> dict[str, Any]:
    return event.data if isinstance(event.data, dict) else {}


def _log(event: "Event") -> list[str]:
    return [plain(str(line)) for line in _data(event).get("lines", ())] if event.type == "task.logged" else []


def _bar(client: "Client", job_id: str, after: int) -> None:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415 - only what draws needs it

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    parts = _Parts(client, job_id)
    with Progress(*columns) as progress:
        job = client.get(job_id)
        bar = progress.add_task(job.workflow, total=100, completed=job.progress)
        for event in client.events(job_id, after=after):
            job = client.get(job_id)
            progress.update(bar, completed=job.progress, description=f"{job.workflow} {job.status}")
            name = parts.name(event)
            said = [f"{name}: {line}" for line in _log(event)] + [parts.waiting(event)]
            for line in filter(None, said):
                progress.console.print(Text(line), soft_wrap=True)
