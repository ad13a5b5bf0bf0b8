"""Calls about money and about the house: wallets, workflows, keys, tenants, operations."""

from typing import Any, Literal
from uuid import uuid4

from callsheet.client.binding import call, iterate
from callsheet.client.models import (
    AuditLine,
    Balance,
    Entry,
    Key,
    Me,
    Ops,
    Tenant,
    Wallet,
    Workflow,
)
from callsheet.client.secret import NewKey, Token, WorkerToken
from callsheet.client.speaking import Speaking, get, given, path, send
from callsheet.client.talk import Items, Talk
from callsheet.client.workers import Worker


class Money(Speaking):
    """Who pays."""

    @call
    def wallet(self, user: str) -> Talk[Wallet]:
        """Return what a user may spend, and what is reserved for jobs under way."""
        return (yield from self._ask(Wallet, get(path("wallets", user))))

    @iterate
    def ledger(self, user: str, *, limit: int | None = None) -> Items[Entry]:
        """Iterate over a user's ledger, newest first; over `limit` lines at most."""
        yield from self._pages(Entry, "entries", path("wallets", user, "ledger"), "before", {}, limit)

    @call
    def topup(
        self, user: str, amount: int, *, idempotency_key: str | None = None, reason: str = "top-up"
    ) -> Talk[Balance]:
        """Add bought credits. The same key moves them once: use the invoice's number; without one a key is made."""
        return (yield from self._posted(user, "topup", amount, idempotency_key, reason))

    @call
    def adjust(self, user: str, amount: int, *, reason: str, idempotency_key: str | None = None) -> Talk[Balance]:
        """Correct a balance by hand, up or down, and say why."""
        return (yield from self._posted(user, "adjust", amount, idempotency_key, reason))

    def _posted(self, user: str, verb: str, amount: int, key: str | None, reason: str) -> Talk[Balance]:
        body = {"amount": amount, "idempotency_key": key or uuid4().hex, "reason": reason}
        return (yield from self._ask(Balance, send("POST", path("wallets", user, verb), body, again=True)))


class House(Speaking):
    """Who gets in, what may be asked for, how things are."""

    @call
    def me(self) -> Talk[Me]:
        """Return who the key says you are."""
        return (yield from self._ask(Me, get(path("me"))))

    @iterate
    def workflows(self) -> Items[Workflow]:
        """Iterate over workflows by name."""
        yield from self._pages(Workflow, "workflows", path("workflows"), "after", {})

    @call
    def workflow(self, name: str) -> Talk[Workflow]:
        """Return a workflow with its JSON Schema."""
        return (yield from self._ask(Workflow, get(path("workflows", name))))

    @call
    def put_workflow(self, name: str, recipe: dict[str, Any]) -> Talk[Workflow]:
        """Make or replace a workflow; an equal one changes nothing."""
        return (yield from self._ask(Workflow, send("PUT", path("workflows", name), {"recipe": recipe}, again=True)))

    @call
    def create_token(self, user: str, seconds: int = 600) -> Talk[Token]:
        """Make a short-lived token with which a browser watches and fetches one user's jobs."""
        body = {"user": user, "seconds": seconds}
        return (yield from self._ask(Token, send("POST", path("tokens"), body, again=True)))

    @iterate
    def keys(self) -> Items[Key]:
        """Iterate over keys, oldest first."""
        yield from self._pages(Key, "keys", path("admin", "keys"), "after", {})

    @call
    def create_key(
        self, name: str, role: Literal["admin", "client", "viewer", "worker"], *, tenant: str | None = None,
        expires_in_seconds: int | None = None,
    ) -> Talk[NewKey]:  # fmt: skip
        """Make a key; its secret is shown this once. Not repeated by itself."""
        body = {"name": name, "role": role, "tenant": tenant, "expires_in_seconds": expires_in_seconds}
        return (yield from self._ask(NewKey, send("POST", path("admin", "keys"), body, again=False)))

    @call
    def revoke_key(self, key_id: str) -> Talk[Key]:
        """Revoke a key: nobody gets in with it any more."""
        return (yield from self._ask(Key, send("DELETE", path("admin", "keys", key_id), again=True)))

    @iterate
    def tenants(self) -> Items[Tenant]:
        """Iterate over tenants by name."""
        yield from self._pages(Tenant, "tenants", path("admin", "tenants"), "after", {})

    @call
    def put_tenant(
        self, tenant: str, *, weight: int | None = None, status: Literal["active", "suspended"] | None = None,
        active_jobs_max: int | None = None,
    ) -> Talk[Tenant]:  # fmt: skip
        """Make or change a tenant; what is left out stays as it is."""
        body = given({"weight": weight, "status": status, "active_jobs_max": active_jobs_max})
        return (yield from self._ask(Tenant, send("PUT", path("admin", "tenants", tenant), body, again=True)))

    @iterate
    def audit(self, *, subject: str = "", limit: int | None = None) -> Items[AuditLine]:
        """Iterate over who did what to the house, newest first; with a `subject` (an id or a name) only to that one.

        With a `limit` it ends after so many lines.
        """
        yield from self._pages(AuditLine, "lines", path("admin", "audit"), "before", {"subject": subject}, limit)

    @call
    def ops(self) -> Talk[Ops]:
        """Return what waits, what runs, who works."""
        return (yield from self._ask(Ops, get(path("admin", "ops"))))

    @iterate
    def workers(self, *, gone: bool = False) -> Items[Worker]:
        """Iterate over workers, by name."""
        yield from self._pages(Worker, "workers", path("admin", "workers"), "after", {"gone": gone or None})

    @call
    def worker(self, worker: str) -> Talk[Worker]:
        """Return one worker, with the tasks in its hand."""
        return (yield from self._ask(Worker, get(path("admin", "workers", worker))))

    @call
    def change_worker(
        self, worker: str, *, approved: bool | None = None, draining: bool | None = None, kinds: list[str] | None = None
    ) -> Talk[Worker]:
        """Approve, drain or assign a worker; what is left out stays as it is."""
        body = given({"approved": approved, "draining": draining, "kinds": kinds})
        return (yield from self._ask(Worker, send("PATCH", path("admin", "workers", worker), body, again=True)))

    @call
    def revoke_worker(self, worker: str) -> Talk[Worker]:
        """Let a worker in no longer; what it holds is given back."""
        return (yield from self._ask(Worker, send("POST", path("admin", "workers", worker, "revoke"), {}, again=True)))

    @call
    def rotate_worker(self, worker: str) -> Talk[WorkerToken]:
        """Give a worker another token; the old one fails at once."""
        return (
            yield from self._ask(WorkerToken, send("POST", path("admin", "workers", worker, "rotate"), {}, again=False))
        )
