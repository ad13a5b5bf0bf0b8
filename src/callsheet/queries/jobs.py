"""Jobs as a caller sees them: one job, lists of jobs, and waiting for a job to change."""

import asyncio
from typing import Any, NamedTuple, Protocol

from callsheet.api.jobs import DurationEstimate, JobPage, JobsQuery
from callsheet.api.shared_fields import LAST_ID
from callsheet.core.decisions.money import wallet_id
from callsheet.core.model import rows
from callsheet.core.model.errors import BadInput, NotFound
from callsheet.core.model.state_machines import JOB as JOB_MACHINE
from callsheet.core.policy.visibility import Viewer, may_see_job
from callsheet.queries import render
from callsheet.queries.context import QueryContext
from callsheet.queries.pages import decode_cursor, encode_cursor, row_count, split_page

_NAME_CHARS_MAX = 80


class JobDocument(NamedTuple):
    """A job as JSON, and its ETag."""

    body: bytes
    etag: str


class Subscription(Protocol):
    """Notifies of new events."""

    @property
    def ended(self) -> bool: ...

    async def wait(self, seconds: float) -> bool: ...

    def discard_events(self) -> None: ...


# -- one job


async def find_job(context: QueryContext, viewer: Viewer, job_id: str) -> rows.Job:
    """Return the row of a job that the viewer may see."""
    found = await context.reads.lookup_row("jobs_unlocked", job_id)
    job = rows.Job(*found) if found else None
    if job is None or not may_see_job(viewer, job):
        raise NotFound("job", job_id[:_NAME_CHARS_MAX])
    return job


async def render_job(context: QueryContext, job: rows.Job) -> JobDocument:
    """Return a job as the API shows it."""
    estimate = await context.duration_estimates.estimate(job)
    return JobDocument(render.job_json(job, estimate), job_etag(job, estimate))


async def get_job(context: QueryContext, viewer: Viewer, job_id: str) -> JobDocument:
    """Return a job."""
    return await render_job(context, await find_job(context, viewer, job_id))


def job_etag(job: rows.Job, estimate: DurationEstimate | None) -> str:
    """Return the ETag of a job: it changes with the job's row and with its estimate."""
    if estimate is None:
        return f'{_row_etag(job)}"'
    return f'{_row_etag(job)}-{estimate.seconds_p50}-{estimate.seconds_p90}-{estimate.samples}"'


def _row_etag(job: rows.Job) -> str:
    """Return the first part of a job's ETag, which depends only on its row."""
    return f'"{job.run}-{job.seq}-{job.updated_at}'


def has_changed(job: rows.Job, known_etag: str | None) -> bool:
    """Return whether a job has ended or, for a client that knows an ETag, has changed since. Estimates do not count."""
    return job.finished_at is not None or (known_etag not in {None, "*"} and _row_etag(job) not in str(known_etag))


async def wait_for_change(
    context: QueryContext,
    viewer: Viewer,
    job_id: str,
    known_etag: str | None,
    subscription: Subscription,
    wait_seconds: float,
) -> JobDocument:
    """Wait until a job has changed, the time is over, or the server shuts down; then return the job."""
    loop = asyncio.get_running_loop()
    end = loop.time() + min(max(wait_seconds, 0), context.settings.wait_seconds_max)
    while True:
        job = await find_job(context, viewer, job_id)
        remaining = end - loop.time()
        if has_changed(job, known_etag) or remaining <= 0 or subscription.ended:
            return await render_job(context, job)
        await subscription.wait(remaining)
        subscription.discard_events()


# -- lists


async def list_jobs(context: QueryContext, viewer: Viewer, query: JobsQuery) -> JobPage:
    """Return a page of the jobs that the viewer may see, newest first."""
    count = row_count(context, query.limit)
    if query.status and query.status not in JOB_MACHINE.statuses:
        raise BadInput("invalid_query", f"status must be one of {', '.join(sorted(JOB_MACHINE.statuses))}.")
    if query.phase not in {"", render.APPROVAL}:
        raise BadInput("invalid_query", f"phase must be {render.APPROVAL}; use status for other filters.")
    user = viewer.user if viewer.user is not None else query.user
    label, value = _parse_label(query.label)
    filters: dict[str, Any] = {
        "status": query.status, "phase": query.phase, "workflow": query.workflow, "label": label, "label_value": value,
        "since": _parse_time(query.since, 0), "until": _parse_time(query.until, 2**62),
        "before": decode_cursor(context, "jobs", viewer.tenant, query.cursor, str) if query.cursor else LAST_ID,
        "count": count,
    }  # fmt: skip
    if user:
        found = await context.reads.scan("jobs_of_wallet", wallet=wallet_id(viewer.tenant, user), **filters)
    else:
        found = await context.reads.scan(_query_name(query), tenant=viewer.tenant, **filters)
    page, more = split_page(found, query.limit)
    jobs = [rows.Job(*row) for row in page]
    cursor = encode_cursor(context, "jobs", viewer.tenant, jobs[-1].id) if more else None
    return JobPage([render.job_view(job, await context.duration_estimates.estimate(job)) for job in jobs], cursor)


def _query_name(query: JobsQuery) -> str:
    """Return the query that lists a tenant's jobs. Jobs that wait, are open or have failed have small indexes."""
    if query.phase:
        return "jobs_waiting"
    if query.status in {"", "completed"}:
        return "jobs_of_tenant"
    return "jobs_failed" if query.status in JOB_MACHINE.terminal else "jobs_open"


def _parse_time(text: str, default: int) -> int:
    if not text:
        return default
    try:
        return render.parse_time(text.replace(" ", "+"))
    except (ValueError, OverflowError):
        raise BadInput(
            "invalid_query", f"{text[:_NAME_CHARS_MAX]!r} is not a time: use RFC 3339, such as 2026-01-31T12:00:00Z."
        ) from None


def _parse_label(text: str) -> tuple[str, str]:
    """Return the name and the value of a label filter: `name=value`."""
    name, found, value = text.partition("=")
    if text and not (found and name):
        raise BadInput("invalid_query", f"label must have the form name=value, not {text[:_NAME_CHARS_MAX]!r}.")
    return name, value
