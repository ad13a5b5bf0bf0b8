"""Keys: how programs come in. The secret is made outside and never kept; a revoked key is never valid again."""

from msgspec.structs import replace

from callsheet.core.clock import seconds
from callsheet.core.commands import CreateKey, RevokeKey
from callsheet.core.errors import BadInput, Conflict, Unknown
from callsheet.core.recipe import in_range
from callsheet.core.rows import ApiKey, Tenant
from callsheet.core.working import WorkingSet

ROLES = ("admin", "client", "viewer", "worker")
_HASH_CHARS = 64


def create_key(ws: WorkingSet, command: CreateKey) -> ApiKey:
    """Write down a new key; the same command again finds its own."""
    known = ws.find(ApiKey, command.id)
    if known is not None:
        return known
    if command.role not in ROLES:
        raise BadInput("invalid_role", f"A role is one of {', '.join(ROLES)}.")
    if not command.tenant and command.role not in {"admin", "worker"}:
        raise BadInput("tenant_required", "Only an admin or a worker key is without a tenant: name the tenant.")
    if command.tenant and command.role == "worker":
        raise BadInput("tenant_not_allowed", "Workers serve all tenants: their key is the house's, without a tenant.")
    if command.tenant and ws.find(Tenant, command.tenant) is None:
        raise Unknown("tenant", command.tenant[:80])
    if not command.name.strip() or len(command.name) > ws.limits.name_chars_max or not command.name.isprintable():
        raise BadInput("invalid_key_name", f"A key's name has 1 to {ws.limits.name_chars_max} printable characters.")
    if len(command.secret_hash) != _HASH_CHARS:
        raise BadInput("invalid_secret", "The hash of a key's secret has 64 characters.")
    if (other := ws.fact("key_of", command.secret_hash)) is not None:
        return _same(ws.get(ApiKey, other), command)
    lasting = command.expires_in_seconds
    if lasting is not None:
        in_range("expires_in_seconds", lasting, 1, ws.limits.key_seconds_max)
    made = ApiKey(
        command.id, command.tenant, command.role, command.name, command.secret_hash, ws.now,
        None if lasting is None else ws.now + seconds(lasting),
    )  # fmt: skip
    ws.put(made)
    ws.set_fact("key_of", made.secret_hash, made.id)
    return made


def _same(known: ApiKey, command: CreateKey) -> ApiKey:
    """Return the key that has this secret, if it is the same in all else: two servers may start on one folder."""
    if (known.tenant, known.role) != (command.tenant, command.role) or known.revoked_at is not None:
        raise Conflict("secret_in_use", "Another key has this secret: make a new one.")
    return known


def revoke_key(ws: WorkingSet, command: RevokeKey) -> ApiKey:
    """End a key now; one that has ended stays as it was."""
    known = ws.find(ApiKey, command.key_id)
    if known is None or command.tenant not in {None, known.tenant}:
        raise Unknown("key", command.key_id[:80])
    if known.revoked_at is not None:
        return known
    if known.id == command.by:
        raise Conflict("own_key", "A key cannot revoke itself: use another admin key.")
    ended = replace(known, revoked_at=ws.now)
    ws.put(ended)
    return ended
