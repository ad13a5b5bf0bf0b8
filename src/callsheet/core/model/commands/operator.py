"""Operator commands: tenants, workflows, API keys, credits."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from callsheet.core.model.commands.base import Command
from callsheet.core.model.state_machines import Actor
from callsheet.core.model.workflow_definition import WorkflowDefinition

Role = Literal["admin", "client", "viewer", "worker"]


class PutTenant(Command, frozen=True, kw_only=True, gc=False):
    """Create or change a tenant. Fields that are not set keep their value; a new tenant has weight 1 and no limit."""

    tenant: str
    weight: int | None = None
    status: Literal["active", "suspended"] | None = None
    active_jobs_max: int | UnsetType | None = UNSET
    """None removes the tenant's own limit."""
    storage_bytes_max: int | UnsetType | None = UNSET
    """None removes the tenant's own limit."""


class PutWorkflow(Command, frozen=True, kw_only=True, gc=False):
    """Store a definition as the newest version of its workflow."""

    definition: WorkflowDefinition
    owner: str | None = None
    """The tenant that must own the files of the definition; None for any tenant (the operator)."""


class TopUp(Command, frozen=True, kw_only=True, gc=False):
    """Add credits to a user's wallet, once per idempotency key of that user."""

    tenant: str
    user: str
    amount: int
    idempotency_key: str = ""
    reason: str = "top-up"
    actor: Actor = "system"


class Adjust(Command, frozen=True, kw_only=True, gc=False):
    """Correct a user's balance, with a reason."""

    tenant: str
    user: str
    amount: int
    reason: str
    idempotency_key: str = ""
    actor: Actor = "admin"


class Balance(Struct, frozen=True, gc=False):
    """The credits of a wallet after a command."""

    balance: int
    reserved: int
    replay: bool = False


class CreateKey(Command, frozen=True, kw_only=True, gc=False):
    """Create an API key. Only the hash of its secret is stored. A key without a tenant is the operator's."""

    tenant: str
    role: Role
    name: str
    secret_hash: str
    expires_in_seconds: int | None = None


class RevokeKey(Command, frozen=True, kw_only=True, gc=False):
    """Revoke an API key."""

    key_id: str
    tenant: str | None = None
    """The tenant that must own the key; None for any tenant."""
