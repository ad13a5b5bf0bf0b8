"""Commands about jobs: submit, watch, list, look closer, move."""

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.given import input_of
from callsheet.cli.output import FAILED, as_json, group, say, table
from callsheet.cli.server import Server, command
from callsheet.cli.watching import ending, follow

if TYPE_CHECKING:
    from callsheet.client import Client, Job

JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.")]
one = group("job", help="Look at one job, or move it.")


def register(app: typer.Typer) -> None:
    """Add the commands about jobs."""
    for name, function in (("submit", submit), ("watch", watch), ("jobs", jobs), ("approve", approve)):
        command(app, name)(function)
    app.add_typer(one)


def submit(  # noqa: PLR0913 - what a job is made of
    server: Server,
    workflow: Annotated[str, typer.Argument(help="Name of the workflow.")],
    *,
    user: Annotated[str, typer.Option("--user", help="Who asks for it and pays.")],
    input: Annotated[
        list[str] | None, typer.Option("--input", help="JSON, @FILE, name=text or name:=JSON; may be repeated.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option("--label", help="name=value; may be repeated.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="0 to 100; higher goes first.")] = None,
    start_in: Annotated[float, typer.Option("--start-in", help="Seconds to wait before it may start.")] = 0,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="The same key makes one job, however often it is sent.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end; exit code 1 if that is bad.")] = False,
) -> None:
    """Submit a job."""
    body = input_of(input or [])
    labels = _labels(label or [])
    with server.client(patient=wait) as client:
        job = client.submit(
            workflow, user=user, input=body, idempotency_key=idempotency_key, priority=priority,
            start_in_seconds=start_in, labels=labels,
        )  # fmt: skip
        if wait and not server.json:
            job = follow(client, job.id)
        elif wait:
            job = client.wait(job.id)
        _shown(server, job, f"{job.id} is {job.status}, for {job.price} credits." if not wait else ending(job))
    if wait and not job.completed:
        raise typer.Exit(FAILED)


def watch(server: Server, job_id: JobId) -> None:
    """Follow a job to its end; exit code 1 if that is bad. With --json, one event a line."""
    with server.client(patient=True) as client:
        job = follow(client, job_id, json=server.json)
    if not server.json:
        say(ending(job))
    if not job.completed:
        raise typer.Exit(FAILED)


def jobs(  # noqa: PLR0913 - filters
    server: Server,
    *,
    status: Annotated[str, typer.Option("--status", help="Only in this status.")] = "",
    workflow: Annotated[str, typer.Option("--workflow", help="Only of this workflow.")] = "",
    user: Annotated[str, typer.Option("--user", help="Only of this user.")] = "",
    label: Annotated[str, typer.Option("--label", help="Only with this name=value.")] = "",
    since: Annotated[str, typer.Option("--since", help="Submitted at or after, like 2026-01-31T12:00:00Z.")] = "",
    until: Annotated[str, typer.Option("--until", help="Submitted before.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 20,
) -> None:
    """List jobs, newest first."""
    with server.client() as client:
        found: list[Job] = []
        for job in client.jobs(status=status, workflow=workflow, user=user, label=label, since=since, until=until):
            found.append(job)
            if len(found) == limit:
                break
    if server.json:
        as_json({"jobs": found})
        return
    table(
        ("JOB", "WORKFLOW", "USER", "STATUS", "PROGRESS", "PRICE", "SUBMITTED"),
        ((j.id, j.workflow, j.user, j.status, f"{j.progress} %", j.price, _when(j)) for j in found),
        empty="There are no such jobs.",
        least=("PRICE", "PROGRESS", "SUBMITTED", "USER"),
    )


def approve(
    server: Server,
    job_id: JobId,
    stage: Annotated[str, typer.Argument(help="The stage that waits: its number or its name.")],
    by: Annotated[str | None, typer.Option("--by", help="Who approves; by default you.")] = None,
) -> None:
    """Let a waiting stage go on."""
    with server.client() as client:
        done = client.approve(job_id, stage, approver=by or getpass.getuser())
    if server.json:
        as_json(done)
        return
    say(f"Stage {done.no} ({done.name}) is {done.status}, approved by {done.approved_by}.")


# -- one job


def show(server: Server, job_id: JobId) -> None:
    """Show a job with its stages, tasks and files."""
    with server.client() as client:
        job, stages, tasks = client.get(job_id), client.stages(job_id), client.tasks(job_id)
        outputs, runs = client.outputs(job_id), client.runs(job_id)
    if server.json:
        as_json({"job": job, "stages": stages, "tasks": tasks, "outputs": outputs, "runs": runs})
        return
    say(f"{ending(job) if job.ended else f'{job.id} is {job.status}.'}")
    say(f"{job.workflow} for {job.user}: {job.price} credits, {job.progress} %, run {job.run}, {_when(job)}\n")
    named = {stage.id: stage.name for stage in stages}
    table(
        ("STAGE", "TASK", "KIND", "STATUS", "PROGRESS", "TRIES", "MESSAGE"),
        (
            (named[t.stage_id], t.no, t.kind, t.status, f"{t.progress} %", t.attempts,
             t.error.message if t.error else t.message) for t in tasks
        ),
        empty="It has no tasks yet.",
    )  # fmt: skip
    files = [file for output in outputs for file in output.files]
    if files:
        say("")
        table(("FILE", "NAME", "TYPE", "BYTES"), ((f.id, f.name, f.media_type, f.bytes) for f in files), empty="")


def cancel(
    server: Server,
    job_id: JobId,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; it is kept.")] = None,
    grace: Annotated[int | None, typer.Option("--grace", help="Seconds a worker has to stop.")] = None,
) -> None:
    """Cancel a job; what is reserved goes back."""
    with server.client() as client:
        _moved(server, client.cancel(job_id, reason=reason, grace_seconds=grace))


def pause(server: Server, job_id: JobId) -> None:
    """Hand out no further task of a job."""
    with server.client() as client:
        _moved(server, client.pause(job_id))


def resume(server: Server, job_id: JobId) -> None:
    """Go on with a paused job."""
    with server.client() as client:
        _moved(server, client.resume(job_id))


def retry(
    server: Server,
    job_id: JobId,
    as_new_job: Annotated[bool, typer.Option("--as-new-job", help="A new job, in place of a new run.")] = False,
) -> None:
    """Try a failed or expired job again."""
    with server.client() as client:
        _moved(server, client.retry(job_id, "new_job" if as_new_job else "new_run"))


def why(server: Server, job_id: JobId) -> None:
    """Say what holds a job, its place in its queue, and when it may start."""
    with server.client() as client:
        said = client.why(job_id)
    if server.json:
        as_json(said)
        return
    for held in said.constraints:
        say(f"{held.message} ({held.code})")
    if not said.constraints:
        say(f"{said.job_id} is {said.status}; nothing holds it.")
    if said.position is not None:
        say(f"Its place in the queue is {said.position}.")
    if said.start.estimated_seconds is not None:
        say(f"It may start in about {said.start.estimated_seconds:.0f} seconds: an estimate from {said.start.samples}.")


def download(
    server: Server,
    job_id: JobId,
    to: Annotated[Path, typer.Option("--to", help="Folder for the files; made if it is not there.")] = Path(),
) -> None:
    """Fetch the files of a job, proved by their digests."""
    with server.client() as client:
        saved = _saved(client, job_id, to)
    if server.json:
        as_json({"files": [str(path) for path in saved]})
        return
    for path in saved:
        say(str(path))
    if not saved:
        say("It has no files.")


for _function in (show, cancel, retry, pause, resume, why, download):
    command(one)(_function)


# -- steps


def _saved(client: "Client", job_id: str, to: Path) -> list[Path]:
    """Save every file under its stage's and task's number, so that none replaces another."""
    saved = []
    for output in client.outputs(job_id):
        for file in output.files:
            to.mkdir(parents=True, exist_ok=True)
            name = f"{output.stage_no}-{output.task_no}-{Path(file.name).name or file.id}"
            saved.append(client.download(file, to / name))
    return saved


def _moved(server: Server, job: "Job") -> None:
    _shown(server, job, f"{job.id} is {'being canceled' if job.phase == 'canceling' else job.status}.")


def _shown(server: Server, job: "Job", sentence: str) -> None:
    if server.json:
        as_json(job)
    else:
        say(sentence)


def _labels(words: list[str]) -> dict[str, str] | None:
    pairs = [word.partition("=") for word in words]
    if any(not name or not sign for name, sign, _ in pairs):
        raise typer.BadParameter("--label takes name=value.")
    return {name: value for name, _, value in pairs} or None


def _when(job: "Job") -> str:
    return job.created_at.astimezone().strftime("%Y-%m-%dT%H:%M")
