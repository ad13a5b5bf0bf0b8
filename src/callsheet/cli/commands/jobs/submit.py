"""`callsheet submit`: submit one job from the command line, or many from a file."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from callsheet.cli.commands.jobs.input_events_and_changes import (
    Metadata,
    Priority,
    parse_document,
    parse_labels,
    read_text_file,
)
from callsheet.cli.connection import Server
from callsheet.cli.output import FAILED, Failure, as_json, print_result, table
from callsheet.cli.value_parsers import Input, parse_input
from callsheet.cli.watch import describe_end, follow, hint_on_interrupt
from callsheet.core.model.plural import pluralize
from callsheet.core.model.strict_json import decode_json

if TYPE_CHECKING:
    from callsheet.client import BulkResult, CallsheetError, Client, Job, NewJob, SubmittedJob


def submit(  # noqa: PLR0913 - one parameter per field of a job
    server: Server,
    workflow: Annotated[str, typer.Argument(help="Name of the workflow.", show_default=False)] = "",
    *,
    user: Annotated[str, typer.Option("--user", help="User who pays for the job.", show_default=False)] = "",
    input: Input = None,
    label: Annotated[list[str] | None, typer.Option("--label", help="name=value; may be repeated.")] = None,
    metadata: Metadata = None,
    priority: Priority = None,
    start_in: Annotated[float, typer.Option("--start-in", help="Seconds to wait before the job may start.")] = 0,
    deadline: Annotated[
        int | None, typer.Option("--deadline", metavar="SECONDS", help="Seconds after which the job expires.")
    ] = None,
    stages: Annotated[
        str | None,
        typer.Option("--stages", metavar="JSON", help="The job's own stages: a JSON list, or @FILE with one."),
    ] = None,
    quote: Annotated[str | None, typer.Option("--quote", metavar="TOKEN", help="Quote that fixes the price.")] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key", help="The same key returns the same job. Keys are unique per user of a tenant."
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch", metavar="FILE", help="Many jobs, one JSON object per line (- is standard input). WORKFLOW and "
            "--user are the defaults for lines without them. Exit code 1 if a job is rejected.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the job; exit code 1 unless it completes.")] = False,
) -> None:  # fmt: skip
    """Submit a job, or many from a file."""
    options = {
        "input": parse_input(input or []), "labels": parse_labels(label or []), "priority": priority,
        "metadata": parse_document("--metadata", metadata, dict[str, Any]), "start_in_seconds": start_in,
        "deadline_seconds": deadline, "stages": parse_document("--stages", stages, list[dict[str, Any]]),
        "quote": quote,
        "idempotency_key": idempotency_key,
    }  # fmt: skip
    if batch is not None:
        _reject_single_job_options(wait=wait, **options)
        _submit_many(server, _read_jobs(batch, defaults={"workflow": workflow, "user": user}))
        return
    for name, value in (("WORKFLOW", workflow), ("--user", user)):
        if not value:
            raise typer.BadParameter(f"Missing {name}.")
    with server.client(wait_for_server=wait) as client:
        submitted = _submit_one(client, workflow, user, options)
        job: Job = submitted
        if not wait or not server.json:
            print_result(job, _describe_submitted(submitted), json=server.json)
        if wait:
            with hint_on_interrupt(job.id):
                job = client.jobs.wait(job.id) if server.json else follow(client, job.id)
            print_result(job, describe_end(job), json=server.json)
    if wait and not job.completed:
        raise typer.Exit(FAILED)


# -- one job


def _submit_one(client: "Client", workflow: str, user: str, options: dict[str, Any]) -> "SubmittedJob":
    from callsheet.client import CallsheetError  # noqa: PLC0415 - slow: imports httpx

    try:
        return client.jobs.submit(workflow, user=user, **options)
    except CallsheetError as error:
        raise _explain_missing_input(client, workflow, error) if options["input"] is None else error from None


def _describe_submitted(job: "SubmittedJob") -> str:
    if job.replay:
        return f"{job.id} was submitted before and is {job.status}."
    return f"{job.id} is {job.status}, for {pluralize(job.price, 'credit')}."


def _explain_missing_input(client: "Client", workflow: str, error: "CallsheetError") -> Exception:
    """Return an error that lists the required input fields if the input is missing; else the original error."""
    schema = client.workflows.get(workflow).definition.get("input_schema") if error.code == "invalid_input" else None
    required = schema.get("required") if isinstance(schema, dict) else None
    if not required:
        return error
    return Failure(
        f"{workflow} requires --input with {', '.join(required)}.", code=error.code, request_id=error.request_id
    )


# -- many jobs


def _reject_single_job_options(**options: Any) -> None:
    """Reject options of a single job: with --batch, each line of the file has its own."""
    names = {"labels": "label", "start_in_seconds": "start-in", "deadline_seconds": "deadline"}
    fields = [f"--{names.get(name, name).replace('_', '-')}" for name, value in options.items() if value]
    if fields:
        raise typer.BadParameter(
            f"--batch cannot be combined with {', '.join(fields)}. Write these fields in the file."
        )


def _read_jobs(name: str, defaults: dict[str, str]) -> "list[NewJob]":
    """Read all jobs, one per line. An invalid line fails the command before any job is sent."""
    from callsheet.client import NewJob  # noqa: PLC0415 - slow: imports httpx

    shared = {name: value for name, value in defaults.items() if value}
    jobs = []
    for no, line in enumerate(read_text_file(name).splitlines(), 1):
        if line.strip():
            try:
                fields = decode_json(line, dict[str, Any])
                jobs.append(msgspec.convert(shared | fields, NewJob))
            except msgspec.MsgspecError as error:
                raise typer.BadParameter(f"Line {no} of {name} is not a valid job: {error}.") from None
    if not jobs:
        raise typer.BadParameter(f"{name} has no jobs. Write one JSON object per line.")
    return jobs


def _submit_many(server: Server, jobs: "list[NewJob]") -> None:
    with server.client(wait_for_server=True) as client:
        results = client.jobs.submit_many(jobs)
    if server.json:
        as_json({"results": results})
    else:
        table(
            ("NO", "WORKFLOW", "USER", "OUTCOME", "JOB", "MESSAGE"),
            (
                (no, job.workflow, job.user, _describe_outcome(result), result.job_id,
                 (result.problem or {}).get("message"))
                for no, (job, result) in enumerate(zip(jobs, results, strict=True), 1)
            ),
            empty="", droppable=("USER", "WORKFLOW"), wrappable=("MESSAGE",),
        )  # fmt: skip
    if any(result.job_id is None for result in results):
        raise typer.Exit(FAILED)


def _describe_outcome(result: "BulkResult") -> str:
    if result.job_id is None:
        return str((result.problem or {}).get("code", result.status))
    return "submitted before" if result.replay else "submitted"
