"""Calls about money and about the house: wallets, workflows, keys, tenants, operations."""

from typing import Any, Literal
from uuid import uuid4

from callsheet.client.method_binding import call, iterate
from callsheet.client.models import (
    AuditEntry,
    Balance,
    Identity,
    Key,
    LedgerEntry,
    Ops,
    Tenant,
    Wallet,
    Workflow,
)
from callsheet.client.operations import IterableOperation, Operation
from callsheet.client.resource import Resource, get, json_request, path, without_none
from callsheet.client.secret_models import NewKey, Token, WorkerToken
from callsheet.client.worker_models import Worker


class Wallets(Resource):
    """Who pays."""

    @call
    def wallet(self, user: str) -> Operation[Wallet]:
        """Return what a user may spend, and what is reserved for jobs under way."""
        return (yield from self._request(Wallet, get(path("wallets", user))))

    @iterate
    def ledger(self, user: str, *, limit: int | None = None) -> IterableOperation[LedgerEntry]:
        """Iterate over a user's ledger, newest first; over `limit` lines at most."""
        yield from self._paginate(LedgerEntry, "entries", path("wallets", user, "ledger"), "before", {}, limit)

    @call
    def topup(
        self, user: str, amount: int, *, idempotency_key: str | None = None, reason: str = "top-up"
    ) -> Operation[Balance]:
        """Add bought credits. The same key moves them once: use the invoice's number; without one a key is made."""
        return (yield from self._post_entry(user, "topup", amount, idempotency_key, reason))

    @call
    def adjust(self, user: str, amount: int, *, reason: str, idempotency_key: str | None = None) -> Operation[Balance]:
        """Correct a balance by hand, up or down, and say why."""
        return (yield from self._post_entry(user, "adjust", amount, idempotency_key, reason))

    def _post_entry(self, user: str, action: str, amount: int, key: str | None, reason: str) -> Operation[Balance]:
        body = {"amount": amount, "idempotency_key": key or uuid4().hex, "reason": reason}
        return (
            yield from self._request(
                Balance, json_request("POST", path("wallets", user, action), body, idempotent=True)
            )
        )


class Admin(Resource):
    """Who gets in, what may be asked for, how things are."""

    @call
    def me(self) -> Operation[Identity]:
        """Return who the key says you are."""
        return (yield from self._request(Identity, get(path("me"))))

    @iterate
    def workflows(self) -> IterableOperation[Workflow]:
        """Iterate over workflows by name."""
        yield from self._paginate(Workflow, "workflows", path("workflows"), "after", {})

    @call
    def workflow(self, name: str) -> Operation[Workflow]:
        """Return a workflow with its JSON Schema."""
        return (yield from self._request(Workflow, get(path("workflows", name))))

    @call
    def put_workflow(self, name: str, definition: dict[str, Any]) -> Operation[Workflow]:
        """Make or replace a workflow; an equal one changes nothing."""
        return (
            yield from self._request(
                Workflow, json_request("PUT", path("workflows", name), {"definition": definition}, idempotent=True)
            )
        )

    @call
    def create_token(self, user: str, expires_in_seconds: int = 600) -> Operation[Token]:
        """Make a short-lived token with which a browser watches and fetches one user's jobs."""
        body = {"user": user, "expires_in_seconds": expires_in_seconds}
        return (yield from self._request(Token, json_request("POST", path("tokens"), body, idempotent=True)))

    @iterate
    def keys(self) -> IterableOperation[Key]:
        """Iterate over keys, oldest first."""
        yield from self._paginate(Key, "keys", path("admin", "keys"), "after", {})

    @call
    def create_key(
        self, name: str, role: Literal["admin", "client", "viewer", "worker"], *, tenant: str | None = None,
        expires_in_seconds: int | None = None,
    ) -> Operation[NewKey]:  # fmt: skip
        """Make a key; its secret is shown this once. Not repeated by itself."""
        body = {"name": name, "role": role, "tenant": tenant, "expires_in_seconds": expires_in_seconds}
        return (yield from self._request(NewKey, json_request("POST", path("admin", "keys"), body, idempotent=False)))

    @call
    def revoke_key(self, key_id: str) -> Operation[Key]:
        """Revoke a key: nobody gets in with it any more."""
        return (yield from self._request(Key, json_request("DELETE", path("admin", "keys", key_id), idempotent=True)))

    @iterate
    def tenants(self) -> IterableOperation[Tenant]:
        """Iterate over tenants by name."""
        yield from self._paginate(Tenant, "tenants", path("admin", "tenants"), "after", {})

    @call
    def put_tenant(
        self, tenant: str, *, weight: int | None = None, status: Literal["active", "suspended"] | None = None,
        active_jobs_max: int | None = None,
    ) -> Operation[Tenant]:  # fmt: skip
        """Make or change a tenant; what is left out stays as it is."""
        body = without_none({"weight": weight, "status": status, "active_jobs_max": active_jobs_max})
        return (
            yield from self._request(
                Tenant, json_request("PUT", path("admin", "tenants", tenant), body, idempotent=True)
            )
        )

    @iterate
    def audit(self, *, subject: str = "", limit: int | None = None) -> IterableOperation[AuditEntry]:
        """Iterate over who did what to the house, newest first; with a `subject` (an id or a name) only to that one.

        With a `limit` it ends after so many lines.
        """
        yield from self._paginate(AuditEntry, "lines", path("admin", "audit"), "before", {"subject": subject}, limit)

    @call
    def ops(self) -> Operation[Ops]:
        """Return what waits, what runs, who works."""
        return (yield from self._request(Ops, get(path("admin", "ops"))))

    @iterate
    def workers(self, *, include_deregistered: bool = False) -> IterableOperation[Worker]:
        """Iterate over workers, by name."""
        yield from self._paginate(
            Worker, "workers", path("admin", "workers"), "after", {"include_deregistered": include_deregistered or None}
        )

    @call
    def worker(self, worker: str) -> Operation[Worker]:
        """Return one worker, with the tasks in its hand."""
        return (yield from self._request(Worker, get(path("admin", "workers", worker))))

    @call
    def update_worker(
        self, worker: str, *, approved: bool | None = None, draining: bool | None = None, kinds: list[str] | None = None
    ) -> Operation[Worker]:
        """Approve, drain or assign a worker; what is left out stays as it is."""
        body = without_none({"approved": approved, "draining": draining, "kinds": kinds})
        return (
            yield from self._request(
                Worker, json_request("PATCH", path("admin", "workers", worker), body, idempotent=True)
            )
        )

    @call
    def revoke_worker(self, worker: str) -> Operation[Worker]:
        """Let a worker in no longer; what it holds is given back."""
        return (
            yield from self._request(
                Worker, json_request("POST", path("admin", "workers", worker, "revoke"), {}, idempotent=True)
            )
        )

    @call
    def rotate_worker_token(self, worker: str) -> Operation[WorkerToken]:
        """Give a worker another token; the old one fails at once."""
        return (
            yield from self._request(
                WorkerToken, json_request("POST", path("admin", "workers", worker, "rotate"), {}, idempotent=False)
            )
        )
