"""Wallets and the ledger. Reserve at the opening of a run; then exactly one of consume or refund at its end.

Each function puts the changed wallet and one new entry into the working set. Nothing ever goes below zero, and
the entries of a wallet, added up, are its balance.
"""

from typing import NamedTuple

from msgspec.structs import replace

from callsheet.core.model.errors import BadInput, Conflict, InsufficientCredits
from callsheet.core.model.plural import pluralize
from callsheet.core.model.rows import Job, LedgerEntry, Run, Wallet
from callsheet.core.model.state_machines import Actor
from callsheet.core.model.workflow_definition import RefundPolicy, check_range
from callsheet.core.working_set import WorkingSet

_FULL = 100


class Settlement(NamedTuple):
    """How a run's price was split at its end."""

    consumed: int
    refunded: int


class Posting(NamedTuple):
    """A ledger line to be written."""

    kind: str
    amount: int
    reserved: int = 0
    consumed: int = 0
    dedup_key: str | None = None
    reason: str | None = None


def wallet_id(tenant: str, user: str) -> str:
    """Return the name of a user's wallet; a tenant's name has no slash."""
    return f"{tenant}/{user}"


def wallet_of(ws: WorkingSet, tenant: str, user: str) -> Wallet:
    """Return the user's wallet; one that does not exist yet is empty."""
    name = wallet_id(tenant, user)
    return ws.find(Wallet, name) or Wallet(name, tenant, user, 0, 0, 0, ws.now, ws.now)


def reserve(ws: WorkingSet, wallet: Wallet, job: Job, actor: Actor) -> None:
    """Take a run's price from the balance and hold it."""
    if job.price > wallet.balance:
        raise InsufficientCredits(job.price, wallet.balance)
    if job.price == 0:
        if ws.find(Wallet, wallet.id) is None:
            ws.put(wallet)
        return
    _post(ws, wallet, Posting("reserve", -job.price, reserved=job.price), actor, job)


def settle(ws: WorkingSet, job: Job, run: Run, final_status: str, refunds: RefundPolicy, delivered: int) -> Settlement:
    """Close a run's reservation, once, by how it ended."""
    if run.status != "open":
        message = f"run {run.no} of job {job.id} is already settled"
        raise AssertionError(message)
    if run.price == 0:
        return Settlement(0, 0)
    consumed_amount = (
        -(-run.price * delivered // _FULL)
        if final_status == "completed"
        else _consumed_part(job, run, final_status, refunds)
    )
    refund_amount = run.price - consumed_amount
    wallet = ws.get(Wallet, job.wallet_id)
    kind = "consume" if final_status == "completed" or consumed_amount else "refund"
    _post(ws, wallet, Posting(kind, refund_amount, reserved=-run.price, consumed=consumed_amount), "system", job)
    return Settlement(consumed_amount, refund_amount)


def _consumed_part(job: Job, run: Run, final_status: str, refunds: RefundPolicy) -> int:
    if final_status == "canceled":
        percent = refunds.canceled if job.started_at is None else refunds.canceled_running
    else:
        percent = refunds.failed if final_status == "failed" else refunds.expired
    return run.price - run.price * percent // _FULL


def top_up(ws: WorkingSet, wallet: Wallet, amount: int, dedup_key: str, reason: str, actor: Actor) -> Wallet:
    """Add bought credits."""
    check_range("a top-up", amount, 1, ws.limits.price_max)
    _check_balance_limit(ws, wallet, amount)
    return _post(ws, wallet, Posting("topup", amount, dedup_key=dedup_key, reason=reason), actor)


def adjust(ws: WorkingSet, wallet: Wallet, amount: int, dedup_key: str, reason: str, actor: Actor) -> Wallet:
    """Correct a balance by hand; always with a reason, never below zero."""
    check_range("what is added or taken", abs(amount), 1, ws.limits.price_max)
    if not reason.strip():
        raise BadInput("reason_required", "An adjustment needs a reason: say why the balance changes.")
    if wallet.balance + amount < 0:
        taken = pluralize(-amount, "credit")
        message = f"This would take {taken} and the balance is {wallet.balance}: it never goes below zero."
        raise InsufficientCredits(-amount, wallet.balance, message)
    _check_balance_limit(ws, wallet, amount)
    return _post(ws, wallet, Posting("adjust", amount, dedup_key=dedup_key, reason=reason), actor)


def refund_consumed(
    ws: WorkingSet, wallet: Wallet, job: Job, run: Run, dedup_key: str, reason: str, actor: Actor
) -> Wallet:
    """Return what an ended run has consumed: a correction by hand that is that run's."""
    _check_balance_limit(ws, wallet, run.consumed)
    posting = Posting("adjust", run.consumed, consumed=-run.consumed, dedup_key=dedup_key, reason=reason)
    return _post(ws, wallet, posting, actor, replace(job, run=run.no))


def _check_balance_limit(ws: WorkingSet, wallet: Wallet, amount: int) -> None:
    """Refuse credits that, with what is held, could not all come back into the wallet."""
    if wallet.balance + wallet.reserved + amount > ws.limits.balance_max:
        raise Conflict("balance_too_large", f"A wallet holds at most {ws.limits.balance_max} credits.")


def _post(ws: WorkingSet, wallet: Wallet, posting: Posting, actor: Actor, job: Job | None = None) -> Wallet:
    seq = wallet.entries + 1
    at = max(ws.now, wallet.updated_at)
    balance = wallet.balance + posting.amount
    topped_up_amount = posting.amount if posting.kind == "topup" else 0
    after = replace(
        wallet, balance=balance, reserved=wallet.reserved + posting.reserved, entries=seq, updated_at=at,
        topped_up=wallet.topped_up + topped_up_amount, consumed=wallet.consumed + posting.consumed,
    )  # fmt: skip
    ws.put(after)
    job_id, run = (job.id, job.run) if job else (None, None)
    entry = LedgerEntry(
        wallet.id, seq, wallet.tenant, posting.kind, posting.amount, posting.consumed, balance, job_id, run,
        posting.dedup_key,
        posting.reason, actor, at,
    )  # fmt: skip
    ws.append(entry)
    return after
