"""The house: tenants, keys, users' tokens, workers, operations, the audit log."""

import time
from typing import Any

from callsheet.api.admin import (
    AuditLog,
    AuditQuery,
    Identity,
    Key,
    KeyBody,
    KeyPage,
    NewKey,
    Ops,
    Queue,
    Tenant,
    TenantBody,
    TenantPage,
    Token,
    TokenBody,
)
from callsheet.api.base import NamesQuery
from callsheet.core.decisions.submit import check_user
from callsheet.core.model import commands, rows
from callsheet.http.auth.authenticator import Caller, hash_secret, new_secret
from callsheet.http.openapi.error_codes import VALUES
from callsheet.http.server.pagination import parse_list_query, row_count, split_page
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.router import ADMINS, OPERATOR, OPERATORS, ROLES, WRITERS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import render


async def get_me(state: AppState, request: Request) -> Response:
    _ = state
    caller: Caller = request.caller
    return Response(Identity(caller.role, caller.tenant, caller.id, caller.user))


async def list_tenants(state: AppState, request: Request) -> Response:
    query = parse_list_query(state, request, NamesQuery)
    found = await state.reads.lookup("tenants_after", after=query.after, count=row_count(state, query.limit))
    page, more = split_page(found, query.limit)
    return Response(TenantPage([render.tenant_view(rows.Tenant(*row)) for row in page], page[-1][0] if more else None))


async def put_tenant(state: AppState, request: Request) -> Response:
    body: TenantBody = request.content
    row: rows.Tenant = await state.engine.aexecute(
        commands.PutTenant(
            tenant=request.params["tenant"], weight=body.weight, status=body.status,
            active_jobs_max=body.active_jobs_max, by=request.caller.id,
        )
    )  # fmt: skip
    state.authenticator.invalidate()
    return Response(render.tenant_view(row))


async def list_keys(state: AppState, request: Request) -> Response:
    query = parse_list_query(state, request, NamesQuery)
    found = await state.reads.lookup(
        "api_keys_after", **_scope(request), after=query.after, count=row_count(state, query.limit)
    )
    page, more = split_page(found, query.limit)
    return Response(KeyPage([render.key_view(rows.ApiKey(*row)) for row in page], page[-1][0] if more else None))


async def create_key(state: AppState, request: Request) -> Response:
    body: KeyBody = request.content
    caller: Caller = request.caller
    is_fleet_key = body.role == "worker" and caller.role == OPERATOR
    tenant = body.tenant if body.tenant is not None else "" if is_fleet_key else caller.tenant
    if caller.role != OPERATOR and tenant != caller.tenant:
        raise Problem(403, "forbidden", "Only an operator makes keys for another tenant.")
    if caller.role != OPERATOR and body.role == "worker":
        raise Problem(403, "forbidden", "Workers serve all tenants: only an operator makes their keys.")
    secret = new_secret()
    made: rows.ApiKey = await state.engine.aexecute(
        commands.CreateKey(
            tenant=tenant, role=body.role, name=body.name, secret_hash=hash_secret(secret),
            expires_in_seconds=body.expires_in_seconds, by=caller.id,
        )
    )  # fmt: skip
    return Response(NewKey(render.key_view(made), secret), 201)


async def revoke_key(state: AppState, request: Request) -> Response:
    caller: Caller = request.caller
    row: rows.ApiKey = await state.engine.aexecute(
        commands.RevokeKey(
            key_id=request.params["key_id"], tenant=None if caller.role == OPERATOR else caller.tenant, by=caller.id
        )
    )
    state.authenticator.invalidate()
    return Response(render.key_view(row))


async def create_token(state: AppState, request: Request) -> Response:
    body: TokenBody = request.content
    if not 1 <= body.expires_in_seconds <= state.settings.token_expires_in_seconds_max:
        raise Problem(422, "out_of_range", f"seconds must be from 1 to {state.settings.token_expires_in_seconds_max}.")
    check_user(body.user, state.engine.settings.limits)
    return Response(
        Token(
            state.authenticator.create_user_token(request.caller, body.user, body.expires_in_seconds),
            body.user,
            body.expires_in_seconds,
        ),
        201,
    )


async def list_audit(state: AppState, request: Request) -> Response:
    query = parse_list_query(state, request, AuditQuery)
    count = row_count(state, query.limit)
    given = {**_scope(request), "before": query.before, "count": count}
    if query.subject is None:
        found = await state.reads.scan("audit_of", **given)
    else:
        found = await state.reads.scan("audit_of_subject", subject=query.subject, **given)
    page, more = split_page(found, query.limit)
    return Response(AuditLog([render.audit_view(rows.Audit(*row)) for row in page], page[-1][0] if more else None))


async def get_ops(state: AppState, request: Request) -> Response:
    _ = request
    depths, active, workers, ((provider_calls, overdue),) = await state.reads.scan_many([
        ("depths", {}), ("active_jobs", {}), ("leases_by_worker", {}), ("open_calls", {}),
    ])  # fmt: skip
    return Response(
        Ops(
            render.to_datetime(time.time_ns() // 1_000), {row[0]: row[1] for row in active}, [Queue(*row)
            for row in depths],
            len({row[0] for row in workers}), state.broadcaster.count, provider_calls, overdue,
        )
    )  # fmt: skip


def _scope(request: Request) -> dict[str, Any]:
    """Return whose lines a caller sees: an operator everybody's."""
    return {"tenant": request.caller.tenant, "all": int(request.caller.role == OPERATOR)}


ROUTES = (
    Route("GET", "/v1/me", get_me, frozenset(ROLES), "Who am I", Identity),
    Route("POST", "/v1/tokens", create_token, WRITERS, "Make a short-lived token for one user's browser", Token,
          TokenBody, status=201, problems=("422 invalid_user", "422 out_of_range")),
    Route("GET", "/v1/admin/tenants", list_tenants, OPERATORS, "List tenants", TenantPage, query=NamesQuery),
    Route("PUT", "/v1/admin/tenants/{tenant}", put_tenant, OPERATORS, "Make or change a tenant", Tenant,
        TenantBody,
          problems=("422 invalid_tenant", *VALUES)),
    Route("GET", "/v1/admin/keys", list_keys, ADMINS, "List keys", KeyPage, query=NamesQuery),
    Route("POST", "/v1/admin/keys", create_key, ADMINS, "Make a key; its secret is shown once", NewKey, KeyBody,
          status=201, problems=("404 tenant_not_found", "409 secret_in_use", "422 invalid_key_name",
                               "422 tenant_required", "422 tenant_not_allowed", *VALUES)),
    Route("DELETE", "/v1/admin/keys/{key_id}", revoke_key, ADMINS, "Revoke a key", Key,
          problems=("404 key_not_found", "409 cannot_revoke_own_key")),
    Route("GET", "/v1/admin/audit", list_audit, ADMINS, "Who did what, newest first", AuditLog, query=AuditQuery),
    Route("GET", "/v1/admin/ops", get_ops, OPERATORS, "What waits, what runs, who works", Ops),
)  # fmt: skip
