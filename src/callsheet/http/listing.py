"""Lists of jobs: newest first, by what they are, page by page."""

from typing import Any

from msgspec import Struct

from callsheet.core import rows
from callsheet.core.machine import JOB as JOB_MACHINE
from callsheet.core.money import wallet_id
from callsheet.http import views
from callsheet.http.auth import Who
from callsheet.http.house import House
from callsheet.http.paging import LAST_ID, cursor_of, limited, listed, paged, place_of
from callsheet.http.problem import Problem
from callsheet.http.request import Request
from callsheet.http.route import USER, WATCHERS, Answer, Route


class ListQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs to list; newest first."""

    status: str = ""
    phase: str = ""
    workflow: str = ""
    user: str = ""
    label: str = ""
    since: str = ""
    until: str = ""
    limit: int = 50
    cursor: str = ""


class Page(Struct, frozen=True):
    """Jobs, newest first, and where to go on."""

    jobs: list[views.Job]
    next: str | None


async def list_jobs(house: House, request: Request) -> Answer:
    query = listed(house, request, ListQuery)
    who: Who = request.who
    count = limited(house, query.limit)
    if query.status and query.status not in JOB_MACHINE.statuses:
        raise Problem(422, "invalid_query", f"status is one of {', '.join(sorted(JOB_MACHINE.statuses))}.")
    if query.phase not in {"", views.APPROVAL}:
        raise Problem(422, "invalid_query", f"phase is {views.APPROVAL}; for others, ask for a status.")
    user = who.user if who.role == USER else query.user
    label, value = _label(query.label)
    given: dict[str, Any] = {
        "status": query.status, "phase": query.phase, "workflow": query.workflow, "label": label, "label_value": value,
        "since": _at(query.since, 0), "until": _at(query.until, 2**62),
        "before": place_of(house, "jobs", who.tenant, query.cursor, str) if query.cursor else LAST_ID, "count": count,
    }  # fmt: skip
    if user:
        found = await house.scans.fetch("jobs_of_wallet", wallet=wallet_id(who.tenant, user), **given)
    else:
        found = await house.scans.fetch(_listing(query), tenant=who.tenant, **given)
    page, more = paged(found, query.limit)
    jobs = [rows.Job(*row) for row in page]
    cursor = cursor_of(house, "jobs", who.tenant, jobs[-1].id) if more else None
    return Answer(Page([views.job_view(job, await house.expectations.of(job)) for job in jobs], cursor))


def _listing(query: ListQuery) -> str:
    """Return the query that lists a tenant's jobs; those that wait, have not ended, or ended badly, are few."""
    if query.phase:
        return "jobs_waiting"
    if query.status in {"", "completed"}:
        return "jobs_listed"
    return "jobs_bad" if query.status in JOB_MACHINE.terminal else "jobs_open"


def _at(text: str, default: int) -> int:
    if not text:
        return default
    try:
        return views.at_of(text.replace(" ", "+"))
    except (ValueError, OverflowError):
        raise Problem(422, "invalid_query", "A time looks like 2026-01-31T12:00:00Z.") from None


def _label(text: str) -> tuple[str, str]:
    """Return the name and the value of a label filter: `name=value`."""
    name, found, value = text.partition("=")
    if text and not (found and name):
        raise Problem(422, "invalid_query", "A label filter is name=value.")
    return name, value


ROUTES = (
    Route("GET", "/v1/jobs", list_jobs, WATCHERS, "List jobs, newest first", Page, query=ListQuery,
          problems=("422 invalid_cursor",)),
)  # fmt: skip
