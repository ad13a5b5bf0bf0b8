"""Lists of jobs: newest first, by what they are, page by page."""

from typing import Any

from callsheet.api.base import LAST_ID
from callsheet.api.jobs import JobPage, ListQuery
from callsheet.core.decisions.money import wallet_id
from callsheet.core.model import rows
from callsheet.core.model.state_machines import JOB as JOB_MACHINE
from callsheet.http.auth.authenticator import Caller
from callsheet.http.server.pagination import (
    decode_cursor,
    encode_cursor,
    parse_list_query,
    row_count,
    split_page,
)
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.router import READERS_AND_USERS, USER, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import render


async def list_jobs(state: AppState, request: Request) -> Response:
    query = parse_list_query(state, request, ListQuery)
    caller: Caller = request.caller
    count = row_count(state, query.limit)
    if query.status and query.status not in JOB_MACHINE.statuses:
        raise Problem(422, "invalid_query", f"status is one of {', '.join(sorted(JOB_MACHINE.statuses))}.")
    if query.phase not in {"", render.APPROVAL}:
        raise Problem(422, "invalid_query", f"phase is {render.APPROVAL}; for others, ask for a status.")
    user = caller.user if caller.role == USER else query.user
    label, value = _parse_label(query.label)
    filters: dict[str, Any] = {
        "status": query.status, "phase": query.phase, "workflow": query.workflow, "label": label, "label_value": value,
        "since": _parse_time(query.since, 0), "until": _parse_time(query.until, 2**62),
        "before": decode_cursor(state, "jobs", caller.tenant, query.cursor, str) if query.cursor else LAST_ID,
        "count": count,
    }  # fmt: skip
    if user:
        found = await state.reads.scan("jobs_of_wallet", wallet=wallet_id(caller.tenant, user), **filters)
    else:
        found = await state.reads.scan(_query_name(query), tenant=caller.tenant, **filters)
    page, more = split_page(found, query.limit)
    jobs = [rows.Job(*row) for row in page]
    cursor = encode_cursor(state, "jobs", caller.tenant, jobs[-1].id) if more else None
    return Response(
        JobPage([render.job_view(job, await state.duration_estimates.estimate(job)) for job in jobs], cursor)
    )


def _query_name(query: ListQuery) -> str:
    """Return the query that lists a tenant's jobs; those that wait, have not ended, or ended badly, are few."""
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
        raise Problem(422, "invalid_query", "A time looks like 2026-01-31T12:00:00Z.") from None


def _parse_label(text: str) -> tuple[str, str]:
    """Return the name and the value of a label filter: `name=value`."""
    name, found, value = text.partition("=")
    if text and not (found and name):
        raise Problem(422, "invalid_query", "A label filter is name=value.")
    return name, value


ROUTES = (
    Route("GET", "/v1/jobs", list_jobs, READERS_AND_USERS, "List jobs, newest first", JobPage, query=ListQuery,
          problems=("422 invalid_cursor",)),
)  # fmt: skip
