"""Tenants, keys, user tokens, the audit log, and the state of the server."""

from datetime import datetime
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from callsheet.api.base import LAST_ID, SecretStruct


class Tenant(Struct, frozen=True):
    """A customer boundary."""

    id: str
    weight: int
    status: str
    active_jobs_max: int | None
    created_at: datetime


class TenantPage(Struct, frozen=True):
    """Tenants by name."""

    tenants: list[Tenant]
    next: str | None


class TenantBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant's share and cap; what is left out stays as it is."""

    weight: int | None = None
    status: Literal["active", "suspended"] | None = None
    active_jobs_max: int | UnsetType | None = UNSET


class Key(Struct, frozen=True):
    """A key, without its secret."""

    id: str
    tenant: str
    role: str
    name: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class NewKey(SecretStruct, frozen=True):
    """A new key; its secret is shown this once."""

    key: Key
    secret: str


class KeyBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Who gets in, as what. Only an operator names another tenant, or none for another operator."""

    name: str
    role: Literal["admin", "client", "viewer", "worker"]
    tenant: str | None = None
    expires_in_seconds: int | None = None


class KeyPage(Struct, frozen=True):
    """Keys, oldest first."""

    keys: list[Key]
    next: str | None


class TokenBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose jobs a browser may watch, and for how long."""

    user: str
    expires_in_seconds: int = 600


class Token(SecretStruct, frozen=True):
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


class AuditEntry(Struct, frozen=True):
    """Who did what to the house."""

    id: str
    tenant: str
    at: datetime
    by: str
    action: str
    subject: str
    data: Any


class AuditLog(Struct, frozen=True):
    """Lines, newest first."""

    lines: list[AuditEntry]
    next: str | None


class Queue(Struct, frozen=True):
    """What waits and runs of one kind for one workflow."""

    kind: str
    workflow: str
    waiting: int
    running: int


class Ops(Struct, frozen=True):
    """How the house is doing."""

    now: datetime
    active_jobs: dict[str, int]
    queues: list[Queue]
    workers: int
    streams: int
    provider_calls: int
    provider_calls_overdue: int


class Identity(Struct, frozen=True):
    """Who the key says you are."""

    role: str
    tenant: str
    id: str
    user: str | None


class Health(Struct, frozen=True):
    """That we are there."""

    status: str
