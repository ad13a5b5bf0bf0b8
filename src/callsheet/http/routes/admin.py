"""The house: tenants, keys, users' tokens, workers, operations, the audit log."""

from callsheet.api.admin import (
    AuditLog,
    AuditQuery,
    Identity,
    Key,
    KeyBody,
    KeyPage,
    NewKey,
    Ops,
    Tenant,
    TenantBody,
    TenantPage,
    Token,
    TokenBody,
)
from callsheet.api.base import NamesQuery
from callsheet.core.model import commands
from callsheet.core.policy.input_validation import check_user
from callsheet.http.auth.authenticator import Caller, hash_secret, new_secret
from callsheet.http.openapi.error_codes import VALUES
from callsheet.http.server.pagination import parse_list_query
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.router import ADMINS, OPERATOR, OPERATORS, ROLES, WRITERS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import administration


async def get_me(state: AppState, request: Request) -> Response:
    _ = state
    caller: Caller = request.caller
    return Response(Identity(caller.role, caller.tenant, caller.id, caller.user))


async def list_tenants(state: AppState, request: Request) -> Response:
    return Response(await administration.list_tenants(state.queries, parse_list_query(state, request, NamesQuery)))


async def put_tenant(state: AppState, request: Request) -> Response:
    body: TenantBody = request.content
    row = await state.engine.aexecute(
        commands.PutTenant(
            tenant=request.params["tenant"], weight=body.weight, status=body.status,
            active_jobs_max=body.active_jobs_max, requested_by=request.caller.id,
        )
    )  # fmt: skip
    state.authenticator.invalidate()
    return Response(administration.render_tenant(row))


async def list_keys(state: AppState, request: Request) -> Response:
    query = parse_list_query(state, request, NamesQuery)
    return Response(await administration.list_keys(state.queries, request.caller, query))


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
    key = await state.engine.aexecute(
        commands.CreateKey(
            tenant=tenant, role=body.role, name=body.name, secret_hash=hash_secret(secret),
            expires_in_seconds=body.expires_in_seconds, requested_by=caller.id,
        )
    )  # fmt: skip
    return Response(NewKey(administration.render_key(key), secret), 201)


async def revoke_key(state: AppState, request: Request) -> Response:
    caller: Caller = request.caller
    row = await state.engine.aexecute(
        commands.RevokeKey(
            key_id=request.params["key_id"],
            tenant=None if caller.role == OPERATOR else caller.tenant,
            requested_by=caller.id,
        )
    )
    state.authenticator.invalidate()
    return Response(administration.render_key(row))


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
    return Response(await administration.list_audit(state.queries, request.caller, query))


async def get_ops(state: AppState, request: Request) -> Response:
    _ = request
    return Response(await administration.get_ops(state.queries, state.broadcaster.count))


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
