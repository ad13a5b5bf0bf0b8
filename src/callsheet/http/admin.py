"""The house: tenants, keys, users' tokens, workers, operations, the audit log."""

import time
from typing import Any, Literal

from msgspec import Struct

from callsheet.core import commands, rows
from callsheet.core.submit import check_user
from callsheet.http import views
from callsheet.http.auth import Who, hashed, new_secret
from callsheet.http.codes import VALUES
from callsheet.http.house import House
from callsheet.http.paging import LAST_ID, NamesQuery, limited, listed, paged
from callsheet.http.problem import Problem
from callsheet.http.request import Request
from callsheet.http.route import ADMINS, HOUSE, OPERATOR, ROLES, WRITERS, Answer, Route


class Tenants(Struct, frozen=True):
    """Tenants by name."""

    tenants: list[views.Tenant]
    next: str | None


class TenantBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant's share and cap; what is left out stays as it is."""

    weight: int | None = None
    status: Literal["active", "suspended"] | None = None
    active_jobs_max: int | None = None


class KeyBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Who gets in, as what. Only an operator names another tenant, or none for another operator."""

    name: str
    role: Literal["admin", "client", "viewer", "worker"]
    tenant: str | None = None
    expires_in_seconds: int | None = None


class Keys(Struct, frozen=True):
    """Keys, oldest first."""

    keys: list[views.Key]
    next: str | None


class TokenBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose jobs a browser may watch, and for how long."""

    user: str
    seconds: int = 600


class Token(Struct, frozen=True):
    """A user's token: a bearer key that reads that user's jobs, files and wallet, and nothing else."""

    token: str
    user: str
    expires_in_seconds: int


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which lines; newest first."""

    before: str = LAST_ID
    limit: int = 100
    subject: str | None = None
    """Only what was done to this one: a worker, a job, a key."""


class AuditLog(Struct, frozen=True):
    """Lines, newest first."""

    lines: list[views.AuditLine]
    next: str | None


class Queue(Struct, frozen=True):
    """What waits and runs of one kind for one workflow."""

    kind: str
    workflow: str
    waiting: int
    running: int


class Ops(Struct, frozen=True):
    """How the house is doing."""

    now: str | None
    active_jobs: dict[str, int]
    queues: list[Queue]
    workers: int
    streams: int
    calls: int
    calls_overdue: int


class Me(Struct, frozen=True):
    """Who the key says you are."""

    role: str
    tenant: str
    id: str
    user: str | None


async def me(house: House, request: Request) -> Answer:
    _ = house
    who: Who = request.who
    return Answer(Me(who.role, who.tenant, who.id, who.user))


async def list_tenants(house: House, request: Request) -> Answer:
    query = listed(house, request, NamesQuery)
    found = await house.reads.fetch("tenants_after", after=query.after, count=limited(house, query.limit))
    page, more = paged(found, query.limit)
    return Answer(Tenants([views.tenant_view(rows.Tenant(*row)) for row in page], page[-1][0] if more else None))


async def put_tenant(house: House, request: Request) -> Answer:
    body: TenantBody = request.content
    row: rows.Tenant = await house.engine.aexecute(
        commands.PutTenant(
            tenant=request.params["tenant"], weight=body.weight, status=body.status,
            active_jobs_max=body.active_jobs_max, by=request.who.id,
        )
    )  # fmt: skip
    house.keys.forget()
    return Answer(views.tenant_view(row))


async def list_keys(house: House, request: Request) -> Answer:
    query = listed(house, request, NamesQuery)
    found = await house.reads.fetch("keys_of", **_scope(request), after=query.after, count=limited(house, query.limit))
    page, more = paged(found, query.limit)
    return Answer(Keys([views.key_view(rows.ApiKey(*row)) for row in page], page[-1][0] if more else None))


async def create_key(house: House, request: Request) -> Answer:
    body: KeyBody = request.content
    who: Who = request.who
    of_house = body.role == "worker" and who.role == OPERATOR
    tenant = body.tenant if body.tenant is not None else "" if of_house else who.tenant
    if who.role != OPERATOR and tenant != who.tenant:
        raise Problem(403, "forbidden", "Only an operator makes keys for another tenant.")
    if who.role != OPERATOR and body.role == "worker":
        raise Problem(403, "forbidden", "Workers serve all tenants: only an operator makes their keys.")
    secret = new_secret()
    made: rows.ApiKey = await house.engine.aexecute(
        commands.CreateKey(
            tenant=tenant, role=body.role, name=body.name, secret_hash=hashed(secret),
            expires_in_seconds=body.expires_in_seconds, by=who.id,
        )
    )  # fmt: skip
    return Answer(views.NewKey(views.key_view(made), secret), 201)


async def revoke_key(house: House, request: Request) -> Answer:
    who: Who = request.who
    row: rows.ApiKey = await house.engine.aexecute(
        commands.RevokeKey(
            key_id=request.params["key_id"], tenant=None if who.role == OPERATOR else who.tenant, by=who.id
        )
    )
    house.keys.forget()
    return Answer(views.key_view(row))


async def create_token(house: House, request: Request) -> Answer:
    body: TokenBody = request.content
    if not 1 <= body.seconds <= house.settings.token_seconds_max:
        raise Problem(422, "out_of_range", f"seconds must be from 1 to {house.settings.token_seconds_max}.")
    check_user(body.user, house.engine.settings.limits)
    return Answer(Token(house.keys.token(request.who, body.user, body.seconds), body.user, body.seconds), 201)


async def list_audit(house: House, request: Request) -> Answer:
    query = listed(house, request, AuditQuery)
    count = limited(house, query.limit)
    given = {**_scope(request), "before": query.before, "count": count}
    if query.subject is None:
        found = await house.scans.fetch("audit_of", **given)
    else:
        found = await house.scans.fetch("audit_about", subject=query.subject, **given)
    page, more = paged(found, query.limit)
    return Answer(AuditLog([views.audit_view(rows.Audit(*row)) for row in page], page[-1][0] if more else None))


async def ops(house: House, request: Request) -> Answer:
    _ = request
    depths, active, workers, ((calls, overdue),) = await house.scans.fetch_all([
        ("depths", {}), ("active_jobs", {}), ("workers_live", {}), ("calls_open", {}),
    ])  # fmt: skip
    return Answer(
        Ops(
            views.moment(time.time_ns() // 1_000), {row[0]: row[1] for row in active}, [Queue(*row) for row in depths],
            len({row[0] for row in workers}), house.hub.count, calls, overdue,
        )
    )  # fmt: skip


def _scope(request: Request) -> dict[str, Any]:
    """Return whose lines a caller sees: an operator everybody's."""
    return {"tenant": request.who.tenant, "all": int(request.who.role == OPERATOR)}


ROUTES = (
    Route("GET", "/v1/me", me, frozenset(ROLES), "Who am I", Me),
    Route("POST", "/v1/tokens", create_token, WRITERS, "Make a short-lived token for one user's browser", Token,
          TokenBody, status=201, problems=("422 invalid_user", "422 out_of_range")),
    Route("GET", "/v1/admin/tenants", list_tenants, HOUSE, "List tenants", Tenants, query=NamesQuery),
    Route("PUT", "/v1/admin/tenants/{tenant}", put_tenant, HOUSE, "Make or change a tenant", views.Tenant, TenantBody,
          problems=("422 invalid_tenant", *VALUES)),
    Route("GET", "/v1/admin/keys", list_keys, ADMINS, "List keys", Keys, query=NamesQuery),
    Route("POST", "/v1/admin/keys", create_key, ADMINS, "Make a key; its secret is shown once", views.NewKey, KeyBody,
          status=201, problems=("404 tenant_not_found", "409 secret_in_use", "422 invalid_key_name",
                               "422 tenant_required", "422 tenant_not_allowed", *VALUES)),
    Route("DELETE", "/v1/admin/keys/{key_id}", revoke_key, ADMINS, "Revoke a key", views.Key,
          problems=("404 key_not_found", "409 own_key")),
    Route("GET", "/v1/admin/audit", list_audit, ADMINS, "Who did what, newest first", AuditLog, query=AuditQuery),
    Route("GET", "/v1/admin/ops", ops, HOUSE, "What waits, what runs, who works", Ops),
)  # fmt: skip
