"""API keys: create and revoke.

The caller generates the secret. Only its hash is stored, and a revoked key cannot be restored.
"""

from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.model.clock import seconds
from callsheet.core.model.commands import CreateKey, RevokeKey
from callsheet.core.model.errors import BadInput, Conflict, NotFound
from callsheet.core.model.rows import ApiKey, Tenant
from callsheet.core.model.workflow_definition import check_range
from callsheet.core.working_set import WorkingSet

ROLES = ("admin", "client", "viewer", "worker")
_HASH_CHARS = 64


def create_key(ws: WorkingSet, command: CreateKey) -> ApiKey:
    """Store a new key; a repeated command returns the key that it stored before."""
    existing = ws.find(ApiKey, command.id)
    if existing is not None:
        return existing
    if command.role not in ROLES:
        raise BadInput("invalid_role", f"The role {command.role[:80]!r} is unknown: use one of {', '.join(ROLES)}.")
    if not command.tenant and command.role not in {"admin", "worker"}:
        raise BadInput("tenant_required", f"A key with the role {command.role!r} needs a tenant: pass `tenant`.")
    if command.tenant and command.role == "worker":
        raise BadInput("tenant_not_allowed", "A worker key serves all tenants: create it without `tenant`.")
    if command.tenant and ws.find(Tenant, command.tenant) is None:
        raise NotFound("tenant", command.tenant[:80])
    if not command.name.strip() or len(command.name) > ws.limits.name_chars_max or not command.name.isprintable():
        most = ws.limits.name_chars_max
        raise BadInput("invalid_key_name", f"The name of a key must have 1 to {most} printable characters.")
    if len(command.secret_hash) != _HASH_CHARS:
        raise BadInput("invalid_secret", f"The hash of the secret must have {_HASH_CHARS} characters (SHA-256 in hex).")
    if (other := ws.get_fact(facts.API_KEY_BY_SECRET, command.secret_hash)) is not None:
        return _return_same_key(ws.get(ApiKey, other), command)
    expires_in_seconds = command.expires_in_seconds
    if expires_in_seconds is not None:
        check_range("expires_in_seconds", expires_in_seconds, 1, ws.limits.key_expires_in_seconds_max)
    created = ApiKey(
        command.id, command.tenant, command.role, command.name, command.secret_hash, ws.now,
        None if expires_in_seconds is None else ws.now + seconds(expires_in_seconds),
    )  # fmt: skip
    ws.put(created)
    ws.set_fact(facts.API_KEY_BY_SECRET, created.secret_hash, created.id)
    return created


def _return_same_key(existing: ApiKey, command: CreateKey) -> ApiKey:
    """Return the key that has this secret if tenant and role match: two servers may start on one data folder."""
    if (existing.tenant, existing.role) != (command.tenant, command.role) or existing.revoked_at is not None:
        raise Conflict("secret_in_use", "Another key has this secret: generate a new secret.")
    return existing


def revoke_key(ws: WorkingSet, command: RevokeKey) -> ApiKey:
    """Revoke a key now; a key that is already revoked does not change."""
    existing = ws.find(ApiKey, command.key_id)
    if existing is None or command.tenant not in {None, existing.tenant}:
        raise NotFound("key", command.key_id[:80])
    if existing.revoked_at is not None:
        return existing
    if existing.id == command.requested_by:
        raise Conflict("cannot_revoke_own_key", "A key cannot revoke itself: use another admin key.")
    ended = replace(existing, revoked_at=ws.change_time(existing))
    ws.put(ended)
    return ended
