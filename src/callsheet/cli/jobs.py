"""Commands about jobs: submit, watch, list, look closer, move."""

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.given import input_of
from callsheet.cli.output import FAILED, Failure, as_json, group, lasting, moment, say, table
from callsheet.cli.server import Server, command
from callsheet.cli.watching import ending, follow, leaving, to_approve
from callsheet.core.counting import counted
from callsheet.core.machine import JOB

if TYPE_CHECKING:
    from callsheet.client import CallsheetError, Client, Job, Stage

_PHASES = {"canceling": "is being canceled", "approval": "waits for approval"}
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
        from callsheet.client import CallsheetError  # noqa: PLC0415 - brings httpx

        try:
            job = client.submit(
                workflow, user=user, input=body, idempotency_key=idempotency_key, priority=priority,
                start_in_seconds=start_in, labels=labels,
            )  # fmt: skip
        except CallsheetError as error:
            raise _told(client, workflow, error) if body is None else error from None
        if not wait or not server.json:
            _shown(server, job, f"{job.id} is {job.status}, for {counted(job.price, 'credit')}.")
        if wait:
            with leaving(job.id):
                job = client.wait(job.id) if server.json else follow(client, job.id)
            _shown(server, job, ending(job))
    if wait and not job.completed:
        raise typer.Exit(FAILED)


def watch(server: Server, job_id: JobId) -> None:
    """Follow a job to its end; exit code 1 if that is bad. With --json, one event a line."""
    with server.client(patient=True) as client, leaving(job_id):
        job = follow(client, job_id, json=server.json)
    if not server.json:
        say(ending(job))
    if not job.completed:
        raise typer.Exit(FAILED)


def _statuses(incomplete: str) -> list[str]:
    """Return the statuses that begin so, for the shell."""
    return sorted({move.target for move in JOB.moves if move.target.startswith(incomplete)})


def jobs(  # noqa: PLR0913 - filters
    server: Server,
    *,
    status: Annotated[str, typer.Option("--status", help="Only in this status.", autocompletion=_statuses)] = "",
    waiting: Annotated[bool, typer.Option("--waiting", help="Only those that wait for approval.")] = False,
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
        phase = "approval" if waiting else ""
        for job in client.jobs(
            status=status, phase=phase, workflow=workflow, user=user, label=label, since=since, until=until
        ):
            found.append(job)
            if len(found) == limit:
                break
    if server.json:
        as_json({"jobs": found})
        return
    table(
        ("JOB", "WORKFLOW", "USER", "STATUS", "PROGRESS", "PRICE", "SUBMITTED"),
        (
            (j.id, j.workflow, j.user, j.phase or j.status, f"{j.progress} %", j.price, moment(j.created_at))
            for j in found
        ),
        empty="There are no such jobs.",
        least=("PRICE", "PROGRESS", "SUBMITTED", "USER"),
        text=("WORKFLOW",),
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
        outputs, runs = list(client.outputs(job_id)), client.runs(job_id)
    if server.json:
        as_json({"job": job, "stages": stages, "tasks": tasks, "outputs": outputs, "runs": runs})
        return
    say(ending(job) if job.ended else _standing(job))
    price = counted(job.price, "credit")
    say(f"{job.workflow} for {job.user}: {price}, {job.progress} %, run {job.run}, {moment(job.created_at)}\n")
    staged = {stage.id: stage for stage in stages}
    table(
        ("STAGE", "TASK", "KIND", "STATUS", "PROGRESS", "TRIES", "MESSAGE"),
        (
            (staged[t.stage_id].name, t.no, t.kind, t.phase or t.status, f"{t.progress} %", t.attempts,
             t.error.message if t.error else t.message or _held(staged[t.stage_id])) for t in tasks
        ),
        empty="It has no tasks yet.",
        least=("TRIES", "KIND", "PROGRESS"),
        text=("MESSAGE",),
    )  # fmt: skip
    for stage in stages:
        if stage.status == "waiting":
            say(f"\n{to_approve(job_id, stage)}")
    files = [file for output in outputs for file in output.files]
    if files:
        say("")
        table(
            ("FILE", "NAME", "TYPE", "BYTES"),
            ((f.id, f.name, f.media_type, f.bytes) for f in files),
            empty="", least=("TYPE", "BYTES"), text=("NAME",),
        )  # fmt: skip


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


def refund(
    server: Server,
    job_id: JobId,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept.")],
    run: Annotated[int | None, typer.Option("--run", min=1, help="Of this run; by default the last.")] = None,
) -> None:
    """Give back what a job has consumed; once."""
    with server.client() as client:
        done = client.refund(job_id, reason=reason, run=run)
    if server.json:
        as_json(done)
        return
    say(f"{done.user} has {counted(done.balance, 'credit')}{': it was given back before' if done.replay else ''}.")


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
        say(f"It may start in about {lasting(said.start.estimated_seconds)}: {said.start.reason}")
    elif said.position is not None:
        say(said.start.reason)


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


for _function in (show, cancel, retry, refund, pause, resume, why, download):
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
    _shown(server, job, _standing(job))


def _standing(job: "Job") -> str:
    return f"{job.id} {_PHASES.get(job.phase or '') or f'is {job.phase or job.status}'}."


def _held(stage: "Stage") -> str:
    return "waits for approval" if stage.status == "waiting" else ""


def _told(client: "Client", workflow: str, error: "CallsheetError") -> Exception:
    """Say what is wrong with a job that was submitted without an input: what its workflow requires, if that is it."""
    schema = client.workflow(workflow).recipe.get("input_schema") if error.code == "invalid_input" else None
    needed = schema.get("required") if isinstance(schema, dict) else None
    if not needed:
        return error
    return Failure(f"{workflow} needs --input: {', '.join(needed)}.", code=error.code, request_id=error.request_id)


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
