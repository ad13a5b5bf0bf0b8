"""Commands about jobs: watch, list, look closer, move; those that submit, shape and fetch stand beside this."""

import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.fetching import download
from callsheet.cli.output import FAILED, as_json, group, lasting, moment, say, table
from callsheet.cli.server import Server, command
from callsheet.cli.shaping import JobId, add_tasks, change, delete, events, show_input
from callsheet.cli.submitting import submit
from callsheet.cli.watching import ending, follow, leaving, to_approve
from callsheet.core.counting import counted
from callsheet.core.machine import JOB

if TYPE_CHECKING:
    from callsheet.client import Job, ProgressEstimate, Stage, Why

_PHASES = {"canceling": "is being canceled", "approval": "waits for approval"}
one = group("job", help="Look at one job, or move it.")


def register(app: typer.Typer) -> None:
    """Add the commands about jobs."""
    for name, function in (("submit", submit), ("watch", watch), ("jobs", jobs), ("approve", approve)):
        command(app, name)(function)
    app.add_typer(one)


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
        found = list(
            client.jobs(
                status=status, phase="approval" if waiting else "", workflow=workflow, user=user, label=label,
                since=since, until=until, limit=limit,
            )
        )  # fmt: skip
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
        job, stages, tasks = client.get(job_id), client.stages(job_id), list(client.tasks(job_id))
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
    """Say what holds a job.

    Also its place in its queue, and when it may start and end, which is an estimate.
    """
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
    for line in (_starting(said), _remaining(said.remaining)):
        if line:
            say(line)


for _function in (show, cancel, retry, refund, pause, resume, why, download, delete, change, events):
    command(one)(_function)
command(one, "input")(show_input)
command(one, "add-tasks")(add_tasks)


# -- steps


def _starting(said: "Why") -> str:
    """Say when a job may start, and that it is a guess; of one that waits for its turn, why none can be made."""
    start = said.start
    if start.estimated_seconds is None:
        return start.reason if said.position is not None else ""
    basis = f", says {_estimate(start.samples)}" if start.samples else ""
    return f"It may start in about {lasting(start.estimated_seconds)}{basis}: {start.reason}"


def _remaining(left: "ProgressEstimate") -> str:
    """Say how far a job may be, and that it is a guess; one that is over all that were before has no end to tell."""
    if left.percent is None:
        return ""
    if left.remaining_seconds_p50 is None:
        return f"About {left.percent} % is done, says {_estimate(left.samples)}. {left.reason}"
    rest = f"About {lasting(left.remaining_seconds_p50)} to go"
    return f"{rest}, and about {left.percent} % done, says {_estimate(left.samples)}. {left.reason}"


def _estimate(samples: int) -> str:
    return f"an estimate from {counted(samples, 'task')}"


def _moved(server: Server, job: "Job") -> None:
    _shown(server, job, _standing(job))


def _standing(job: "Job") -> str:
    return f"{job.id} {_PHASES.get(job.phase or '') or f'is {job.phase or job.status}'}."


def _held(stage: "Stage") -> str:
    return "waits for approval" if stage.status == "waiting" else ""


def _shown(server: Server, job: "Job", sentence: str) -> None:
    if server.json:
        as_json(job)
    else:
        say(sentence)
