"""Following a job until it has ended: a bar on a terminal, lines elsewhere, one JSON document a line for programs."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from callsheet.cli.hearing import Hear, Held, heard
from callsheet.cli.output import INTERRUPTED, Failure, moment, one_line, plain, say
from callsheet.core.clock import SECOND
from callsheet.core.estimate import Past

if TYPE_CHECKING:
    from callsheet.client import Client, Event, Job, Stage

    Heard = Iterable[Event | None]

Now = Callable[[], datetime]


def _now() -> datetime:
    return datetime.now(UTC)


def follow(client: "Client", job_id: str, *, json: bool = False, hear: "Hear[Event]" = heard, now: Now = _now) -> "Job":
    """Show what happens to a job, and return it when it has ended; `hear` says when nothing happens."""
    events = client.events(job_id)
    if json:
        for event in events:
            say(one_line(event))
    elif sys.stdout.isatty():
        _bar(client, job_id, hear(events), now)
    else:
        _told(client, job_id, hear(events))
    return client.get(job_id)


def told(client: "Client", job_id: str, events: Iterable["Event"], *, json: bool) -> None:
    """Say events in lines."""
    parts = _Parts(client, job_id)
    for event in events:
        for line in [one_line(event)] if json else _lines(event, parts):
            say(line)


def _told(client: "Client", job_id: str, events: "Heard") -> None:
    parts, held = _Parts(client, job_id), Held(client, job_id)
    for event in events:
        if event is not None:
            held.news()
        for line in held.beat() if event is None else _lines(event, parts):
            say(line)


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


def _bar(client: "Client", job_id: str, events: "Heard", now: Now) -> None:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415 - only what draws needs it

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[far]:>6}"), TimeElapsedColumn())
    parts, held = _Parts(client, job_id), Held(client, job_id)
    with Progress(*columns) as progress:
        job = client.get(job_id)
        bar = progress.add_task(job.workflow, total=100, completed=job.progress, far="")
        for event in events:
            said = held.beat() if event is None else [f"{parts.name(event)}: {line}" for line in _log(event)]
            if event is not None:
                held.news()
                said.append(parts.waiting(event))
                if event.seq > job.events:  # else the job is known as it was after this event, or after a later one
                    job = client.get(job_id)
            done, far = how_far(job, now())
            progress.update(
                bar, completed=done, far=far, description=f"{job.workflow} {job.status}", refresh=event is None
            )
            for line in filter(None, said):
                progress.console.print(Text(line), soft_wrap=True)


def how_far(job: "Job", now: datetime) -> tuple[int, str]:
    """Return how far a job is in percent, and how that is written; where its kind reports nothing, a guess (~)."""
    if job.progress or job.expected is None or job.started_at is None or job.ended:
        return job.progress, f"{job.progress} %"
    half, most = (int(seconds * SECOND) for seconds in (job.expected.seconds_p50, job.expected.seconds_p90))
    past = Past([half] * 5 + [most] * 5)  # ten of which half, and nine, took so long: as the server's bar guesses
    guess = past.percent(int((now - job.started_at).total_seconds() * SECOND))
    return guess, f"~{guess} %"
