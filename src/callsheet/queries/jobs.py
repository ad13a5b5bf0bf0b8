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
from callsheet.queries.pages import decode_cursor, encode_cursor, row_count

_NAME_CHARS_MAX = 80
_END_OF_TIME = 2**62
_SCANNED_FIRST = 10
"""A page of a filtered list first reads this many times its size. PostgreSQL stops when it is full, SQLite does not."""


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


class _JobScan(NamedTuple):
    """How to read a list of jobs: the query, the columns that select its part of an index, and the filters."""

    query: str
    scope: dict[str, str]
    filters: dict[str, Any]

    @property
    def is_filtered(self) -> bool:
        """Whether many rows of the part can be filtered out. `since` does not count: it ends the list."""
        return any(self.filters[name] for name in ("status", "phase", "workflow", "label"))


class _Position(NamedTuple):
    """A position in a list of jobs, newest first: before all jobs that are older."""

    created_at: int = _END_OF_TIME
    id: str = LAST_ID


async def list_jobs(context: QueryContext, viewer: Viewer, query: JobsQuery) -> JobPage:
    """Return a page of the jobs that the viewer may see, newest first."""
    count = row_count(context, query.limit)
    _check_filters(query)
    scan = _plan_scan(viewer, query)
    start = _Position(_parse_time(query.until, _END_OF_TIME), "" if query.until else LAST_ID)
    if query.cursor:
        start = min(start, decode_cursor(context, "jobs", viewer.tenant, query.cursor, _Position))
    jobs, end = await _read_page(context, scan, start, count)
    cursor = encode_cursor(context, "jobs", viewer.tenant, end) if end else None
    return JobPage([render.job_view(job, await context.duration_estimates.estimate(job)) for job in jobs], cursor)


async def _read_page(
    context: QueryContext, scan: _JobScan, start: _Position, count: int
) -> tuple[list[rows.Job], _Position | None]:
    """Return the jobs of a page, and the position of the next one; None after the last page.

    Rows can be filtered out, at least those of deleted jobs. If the first scan finds too few jobs, the second one reads
    all rows that are allowed.
    """
    most = max(context.settings.scan_rows_max, count)
    end: _Position | None = None
    jobs: list[rows.Job] = []
    first = min(_SCANNED_FIRST * count, most) if scan.is_filtered else count
    for scanned in (first, most):
        keyset = {**scan.scope, "before_at": start.created_at, "before": start.id, "scanned": scanned}
        jobs = [rows.Job(*row) for row in await context.reads.scan(scan.query, **keyset, **scan.filters, count=count)]
        if len(jobs) == count:
            jobs.pop()
            return jobs, _Position(jobs[-1].created_at, jobs[-1].id)
        end = await _scan_end(context, scan, keyset)
        if end is None:
            break
    return jobs, end


async def _scan_end(context: QueryContext, scan: _JobScan, keyset: dict[str, Any]) -> _Position | None:
    """Return the last job that a scan has read; None if the scan has read the rest of the list."""
    found = await context.reads.scan(f"{scan.query}_scan_end", **keyset)
    return _Position(*found[0]) if found and found[0][0] >= scan.filters["since"] else None


def _check_filters(query: JobsQuery) -> None:
    if query.status and query.status not in JOB_MACHINE.statuses:
        raise BadInput("invalid_query", f"status must be one of {', '.join(sorted(JOB_MACHINE.statuses))}.")
    if query.phase not in {"", render.APPROVAL}:
        raise BadInput("invalid_query", f"phase must be {render.APPROVAL}; use status for other filters.")


def _plan_scan(viewer: Viewer, query: JobsQuery) -> _JobScan:
    """Select the part of an index to read, by user, phase or status. The other filters apply to its rows."""
    user = viewer.user if viewer.user is not None else query.user
    label, value = _parse_label(query.label)
    filters: dict[str, Any] = {
        "status": query.status, "phase": query.phase, "workflow": query.workflow, "label": label, "label_value": value,
        "since": _parse_time(query.since, 0),
    }  # fmt: skip
    if user:
        return _JobScan("jobs_of_wallet", {"wallet": wallet_id(viewer.tenant, user)}, filters)
    if query.phase:
        return _JobScan("jobs_waiting", {"tenant": viewer.tenant}, filters | {"phase": ""})
    if query.status not in {"", "completed"}:
        return _JobScan(
            "jobs_in_status", {"tenant": viewer.tenant, "of_status": query.status}, filters | {"status": ""}
        )
    return _JobScan("jobs_of_tenant", {"tenant": viewer.tenant}, filters)


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
