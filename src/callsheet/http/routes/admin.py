"""Routes for administration: tenants, API keys, user tokens, the audit log and load counts."""

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
    TenantDetails,
    TenantPage,
    Token,
    TokenBody,
)
from callsheet.api.shared_fields import NamesQuery
from callsheet.core.model import commands
from callsheet.core.policy.request_validation import check_user
from callsheet.http.auth.authenticator import Caller, hash_secret, new_secret
from callsheet.http.openapi.error_codes import VALUES
from callsheet.http.server.list_query import parse_list_query
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.route import ADMINS, OPERATOR, OPERATORS, ROLES, WRITERS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import readiness_and_load, tenants_keys_and_audit


async def get_me(state: AppState, request: Request) -> Response:
    _ = state
    caller: Caller = request.caller
    return Response(Identity(caller.role, caller.tenant, caller.id, caller.user))


async def list_tenants(state: AppState, request: Request) -> Response:
    return Response(
        await tenants_keys_and_audit.list_tenants(state.queries, parse_list_query(state, request, NamesQuery))
    )


async def get_tenant(state: AppState, request: Request) -> Response:
    return Response(await tenants_keys_and_audit.get_tenant(state.queries, request.params["tenant"]))


async def put_tenant(state: AppState, request: Request) -> Response:
    body: TenantBody = request.content
    row = await state.engine.aexecute(
        commands.PutTenant(
            tenant=request.params["tenant"], weight=body.weight, status=body.status,
            active_jobs_max=body.active_jobs_max, storage_bytes_max=body.storage_bytes_max,
            requested_by=request.caller.id,
        )
    )  # fmt: skip
    state.authenticator.invalidate()
    return Response(tenants_keys_and_audit.render_tenant(row))


async def list_keys(state: AppState, request: Request) -> Response:
    query = parse_list_query(state, request, NamesQuery)
    return Response(await tenants_keys_and_audit.list_keys(state.queries, request.caller, query))


async def create_key(state: AppState, request: Request) -> Response:
    body: KeyBody = request.content
    caller: Caller = request.caller
    is_fleet_key = body.role == "worker" and caller.role == OPERATOR
    tenant = body.tenant if body.tenant is not None else "" if is_fleet_key else caller.tenant
    if caller.role != OPERATOR and tenant != caller.tenant:
        raise Problem(403, "forbidden", "Only an operator key may create keys for another tenant. Leave out `tenant`.")
    if caller.role != OPERATOR and body.role == "worker":
        raise Problem(403, "forbidden", "Workers serve all tenants. Only an operator key may create fleet keys.")
    secret = new_secret()
    key = await state.engine.aexecute(
        commands.CreateKey(
            tenant=tenant, role=body.role, name=body.name, secret_hash=hash_secret(secret),
            expires_in_seconds=body.expires_in_seconds, requested_by=caller.id,
        )
    )  # fmt: skip
    return Response(NewKey(tenants_keys_and_audit.render_key(key), secret), 201)


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
    return Response(tenants_keys_and_audit.render_key(row))


async def create_token(state: AppState, request: Request) -> Response:
    body: TokenBody = request.content
    if not 1 <= body.expires_in_seconds <= state.settings.token_expires_in_seconds_max:
        raise Problem(
            422,
            "out_of_range",
            f"expires_in_seconds must be from 1 to {state.settings.token_expires_in_seconds_max}, "
            f"not {body.expires_in_seconds}.",
        )
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
    return Response(await tenants_keys_and_audit.list_audit(state.queries, request.caller, query))


async def get_ops(state: AppState, request: Request) -> Response:
    _ = request
    return Response(
        await readiness_and_load.get_ops(state.queries, state.broadcaster.count, state.fleet.embedded_workers)
    )


ROUTES = (
    Route("GET", "/v1/me", get_me, frozenset(ROLES), "Get the caller's identity", Identity,
          details="Returns the role, tenant and user of the key or token that you send."),
    Route("POST", "/v1/tokens", create_token, WRITERS, "Create a user token", Token,
          TokenBody, status=201, problems=("422 invalid_user", "422 out_of_range"),
          details="A user token is a short-lived credential for a browser. It can read one user's jobs, events, "
          "files and wallet. The server does not store it, so it cannot be listed or revoked. It ends with the key "
          "that created it."),
    Route("GET", "/v1/admin/tenants", list_tenants, OPERATORS, "List tenants", TenantPage, query=NamesQuery,
          details="Sorted by name."),
    Route("GET", "/v1/admin/tenants/{tenant}", get_tenant, OPERATORS, "Get a tenant and its storage usage",
          TenantDetails, problems=("404 tenant_not_found",),
          details="Bytes count from the moment an upload is created, or a worker asks for an upload URL."),
    Route("PUT", "/v1/admin/tenants/{tenant}", put_tenant, OPERATORS, "Create or update a tenant", Tenant,
          TenantBody, problems=("422 invalid_tenant", *VALUES),
          details="To suspend a tenant, set `status` to `suspended`. Its keys can then read, but not change anything."),
    Route("GET", "/v1/admin/keys", list_keys, ADMINS, "List API keys", KeyPage, query=NamesQuery,
          details="Oldest first, including revoked keys. Secrets are never returned. An operator sees the keys of "
          "all tenants."),
    Route("POST", "/v1/admin/keys", create_key, ADMINS, "Create an API key", NewKey, KeyBody,
          status=201, problems=("404 tenant_not_found", "409 secret_in_use", "422 invalid_key_name",
                               "422 tenant_required", "422 tenant_not_allowed", *VALUES),
          details="The response contains the secret. Store it: the server stores only a hash and cannot return it "
          "again."),
    Route("DELETE", "/v1/admin/keys/{key_id}", revoke_key, ADMINS, "Revoke an API key", Key,
          problems=("404 key_not_found", "409 cannot_revoke_own_key"),
          details="This server rejects the key immediately, other servers within a second. Event streams and user "
          "tokens of the key end too."),
    Route("GET", "/v1/admin/audit", list_audit, ADMINS, "List audit log entries", AuditLog,
          query=AuditQuery,
          details="Newest first. An operator key lists the entries of all tenants, an admin key those of its tenant."),
    Route("GET", "/v1/admin/ops", get_ops, OPERATORS, "Get load counts", Ops,
          details="Counts of active jobs, waiting and running tasks by queue, workers and provider calls, across all "
          "tenants."),
)  # fmt: skip
