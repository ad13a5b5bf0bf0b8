"""Credentials: whom an API key or a worker's token belongs to. Secrets are looked up by their hash."""

from typing import NamedTuple

from callsheet.core.model.rows import ApiKey, Worker
from callsheet.engine.reads.facade import Reads
from callsheet.store.connection import Rows


class KeyOwner(NamedTuple):
    """The owner of an API key that is neither revoked nor expired."""

    key_id: str
    role: str
    tenant: str
    """Empty if the key belongs to an operator or to the fleet."""
    suspended: bool
    """The tenant is suspended."""


async def find_key_by_hash(reads: Reads, secret_hash: str) -> KeyOwner | None:
    """Return the owner of the key with this secret; None if the key is unknown, revoked or expired."""
    return _key_owner(reads, await reads.lookup("api_key_by_hash", key=secret_hash))


async def find_key_by_id(reads: Reads, key_id: str) -> KeyOwner | None:
    """Return the owner of a key; None if the key is unknown, revoked or expired."""
    return _key_owner(reads, await reads.lookup("api_key_by_id", key=key_id))


async def find_worker_by_token(reads: Reads, token_hash: str) -> Worker | None:
    """Return the worker with this token."""
    found = await reads.lookup("worker_by_token", key=token_hash)
    return Worker(*found[0]) if found else None


def _key_owner(reads: Reads, found: Rows) -> KeyOwner | None:
    if not found:
        return None
    database_time, tenant_status, *columns = found[0]
    key = ApiKey(*columns)
    expired = key.expires_at is not None and key.expires_at <= reads.engine_time(database_time)
    if key.revoked_at is not None or expired:
        return None
    return KeyOwner(key.id, key.role, key.tenant, suspended=tenant_status == "suspended")
