"""`callsheet jobs`, `watch` and `approve`: list, show, watch, approve, cancel, pause, retry and refund jobs."""

import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.commands.jobs.download import download
from callsheet.cli.commands.jobs.input_events_and_changes import JobId, add_tasks, delete, events, show_input, update
from callsheet.cli.commands.jobs.submit import submit
from callsheet.cli.connection import Server, command
from callsheet.cli.output import (
    FAILED,
    as_json,
    create_group,
    format_count,
    format_duration,
    format_time,
    print_line,
    print_result,
    table,
)
from callsheet.cli.watch import approval_hint, describe_end, follow, hint_on_interrupt
from callsheet.core.model.plural import pluralize
from callsheet.core.model.state_machines import JOB

if TYPE_CHECKING:
    from callsheet.client import Job, JobExplanation, ProgressEstimate, Stage

_PHASE_TEXTS = {"canceling": "is being canceled", "approval": "waits for approval"}
jobs = create_group("jobs", help="List, show and change jobs.", invoke_without_command=True)


def register(app: typer.Typer) -> None:
    """Add the commands about jobs."""
    for name, function in (("submit", submit), ("watch", watch), ("approve", approve)):
        command(app, name)(function)
    app.add_typer(jobs)


def watch(server: Server, job_id: JobId) -> None:
    """Follow a job until it ends; exit code 1 unless it completes. With --json, one event per line."""
    with server.client(wait_for_server=True) as client, hint_on_interrupt(job_id):
        job = follow(client, job_id, json=server.json)
    if not server.json:
        print_line(describe_end(job))
    if not job.completed:
        raise typer.Exit(FAILED)


def _complete_status(incomplete: str) -> list[str]:
    """Return the statuses that begin with a text, for shell completion."""
    return sorted({move.target for move in JOB.moves if move.target.startswith(incomplete)})


def list_jobs(  # noqa: PLR0913 - one parameter per filter
    server: Server,
    *,
    status: Annotated[str, typer.Option("--status", help="Only in this status.", autocompletion=_complete_status)] = "",
    needs_approval: Annotated[
        bool, typer.Option("--needs-approval", help="Only those that wait for approval.")
    ] = False,
    workflow: Annotated[str, typer.Option("--workflow", help="Only of this workflow.")] = "",
    user: Annotated[str, typer.Option("--user", help="Only of this user.")] = "",
    label: Annotated[str, typer.Option("--label", help="Only with this name=value.")] = "",
    since: Annotated[str, typer.Option("--since", help="Submitted at or after, like 2026-01-31T12:00:00Z.")] = "",
    until: Annotated[str, typer.Option("--until", help="Submitted before.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of results.")] = 20,
) -> None:
    """List jobs, newest first."""
    with server.client() as client:
        listed = list(
            client.jobs.list(
                status=status, phase="approval" if needs_approval else "", workflow=workflow, user=user, label=label,
                since=since, until=until, limit=limit,
            )
        )  # fmt: skip
    if server.json:
        as_json({"jobs": listed})
        return
    table(
        ("JOB", "WORKFLOW", "USER", "STATUS", "PROGRESS", "PRICE", "SUBMITTED"),
        (
            (j.id, j.workflow, j.user, j.phase or j.status, f"{j.progress} %", j.price, format_time(j.created_at))
            for j in listed
        ),
        empty="There are no such jobs.",
        droppable=("PRICE", "PROGRESS", "SUBMITTED", "USER"),
        wrappable=("WORKFLOW",),
    )


def approve(
    server: Server,
    job_id: JobId,
    stage: Annotated[str, typer.Argument(help="Number or name of the stage.")],
    approver: Annotated[
        str | None, typer.Option("--approver", help="Name of the approver. Default: your user name.")
    ] = None,
) -> None:
    """Approve a stage that needs approval."""
    with server.client() as client:
        approved = client.jobs.approve(job_id, stage, approver=approver or getpass.getuser())
    sentence = f"Stage {approved.no} ({approved.name}) is {approved.status}, approved by {approved.approved_by}."
    print_result(approved, sentence, json=server.json)


# -- one job


def show(server: Server, job_id: JobId) -> None:
    """Show a job with its stages, tasks and files."""
    with server.client() as client:
        job, stages, tasks = client.jobs.get(job_id), client.jobs.stages(job_id), list(client.jobs.tasks(job_id))
        outputs, runs = list(client.jobs.outputs(job_id)), client.jobs.runs(job_id)
    if server.json:
        as_json({"job": job, "stages": stages, "tasks": tasks, "outputs": outputs, "runs": runs})
        return
    print_line(describe_end(job) if job.ended else _describe_status(job))
    price = pluralize(job.price, "credit")
    print_line(
        f"{job.workflow} for {job.user}: {price}, {job.progress} %, run {job.run}, {format_time(job.created_at)}\n"
    )
    stages_by_id = {stage.id: stage for stage in stages}
    table(
        ("STAGE", "TASK", "KIND", "STATUS", "PROGRESS", "ATTEMPTS", "MESSAGE"),
        (
            (stages_by_id[t.stage_id].name, t.no, t.kind, t.phase or t.status, f"{t.progress} %", t.attempts,
             t.error.message if t.error else t.message or _waiting_note(stages_by_id[t.stage_id])) for t in tasks
        ),
        empty="It has no tasks yet.",
        droppable=("ATTEMPTS", "KIND", "PROGRESS"),
        wrappable=("MESSAGE",),
    )  # fmt: skip
    for stage in stages:
        if stage.status == "waiting":
            print_line(f"\n{approval_hint(job_id, stage)}")
    files = [file for output in outputs for file in output.files]
    if files:
        print_line("")
        table(
            ("FILE", "NAME", "TYPE", "BYTES"),
            ((f.id, f.name, f.media_type, f.bytes) for f in files),
            empty="", droppable=("TYPE", "BYTES"), wrappable=("NAME",),
        )  # fmt: skip


def cancel(
    server: Server,
    job_id: JobId,
    reason: Annotated[str | None, typer.Option("--reason", help="Reason to record.")] = None,
    grace: Annotated[int | None, typer.Option("--grace", help="Seconds that workers have to stop.")] = None,
) -> None:
    """Cancel a job and release its reserved credits."""
    with server.client() as client:
        _print_status(server, client.jobs.cancel(job_id, reason=reason, grace_seconds=grace))


def pause(server: Server, job_id: JobId) -> None:
    """Pause a job."""
    with server.client() as client:
        _print_status(server, client.jobs.pause(job_id))


def resume(server: Server, job_id: JobId) -> None:
    """Resume a paused job."""
    with server.client() as client:
        _print_status(server, client.jobs.resume(job_id))


def retry(
    server: Server,
    job_id: JobId,
    as_new_job: Annotated[bool, typer.Option("--as-new-job", help="Create a new job instead of a new run.")] = False,
) -> None:
    """Retry a failed or expired job."""
    with server.client() as client:
        _print_status(server, client.jobs.retry(job_id, "new_job" if as_new_job else "new_run"))


def refund(
    server: Server,
    job_id: JobId,
    reason: Annotated[str, typer.Option("--reason", help="Reason to record.")],
    run: Annotated[int | None, typer.Option("--run", min=1, help="Run to refund. Default: the last.")] = None,
) -> None:
    """Refund what a job has consumed."""
    with server.client() as client:
        balance = client.jobs.refund(job_id, reason=reason, run=run)
    if server.json:
        as_json(balance)
        return
    replay_note = "; it was refunded before" if balance.replay else ""
    print_line(f"{balance.user} has {pluralize(balance.balance, 'credit')}{replay_note}.")


def why(server: Server, job_id: JobId) -> None:
    """Explain why a job is waiting.

    Also prints its position in the queue, and estimates of when it starts and ends.
    """
    with server.client() as client:
        explanation = client.jobs.explain(job_id)
    if server.json:
        as_json(explanation)
        return
    for constraint in explanation.constraints:
        print_line(f"{constraint.message} ({constraint.code})")
    if not explanation.constraints:
        print_line(f"{explanation.job_id} is {explanation.status}; nothing blocks it.")
    if explanation.position is not None:
        position = format_count(explanation.position, is_capped=explanation.position_is_capped)
        print_line(f"Its position in the queue is {position}.")
    for line in (_format_start(explanation), _format_remaining(explanation.remaining)):
        if line:
            print_line(line)


for _function in (show, cancel, retry, refund, pause, resume, why, download, delete, update, events):
    command(jobs)(_function)
command(jobs, is_default=True)(list_jobs)
command(jobs, "list")(list_jobs)
command(jobs, "input")(show_input)
command(jobs, "add-tasks")(add_tasks)


# -- formatting


def _format_start(explanation: "JobExplanation") -> str:
    """Format the estimated start of a job; for a queued job without an estimate, the reason why there is none."""
    start = explanation.start
    if start.estimated_seconds is None:
        return start.reason if explanation.position is not None else ""
    basis = f" ({_format_samples(start.samples)})" if start.samples else ""
    return f"It may start in about {format_duration(start.estimated_seconds)}{basis}: {start.reason}"


def _format_remaining(estimate: "ProgressEstimate") -> str:
    """Format the estimated progress and remaining time of a job."""
    if estimate.percent is None:
        return ""
    if estimate.remaining_seconds_p50 is None:
        return f"About {estimate.percent} % is done ({_format_samples(estimate.samples)}). {estimate.reason}"
    remaining = f"About {format_duration(estimate.remaining_seconds_p50)} to go"
    return f"{remaining}, and about {estimate.percent} % done ({_format_samples(estimate.samples)}). {estimate.reason}"


def _format_samples(samples: int) -> str:
    return f"estimated from {pluralize(samples, 'task')}"


def _print_status(server: Server, job: "Job") -> None:
    print_result(job, _describe_status(job), json=server.json)


def _describe_status(job: "Job") -> str:
    return f"{job.id} {_PHASE_TEXTS.get(job.phase or '') or f'is {job.phase or job.status}'}."


def _waiting_note(stage: "Stage") -> str:
    return "waits for approval" if stage.status == "waiting" else ""
