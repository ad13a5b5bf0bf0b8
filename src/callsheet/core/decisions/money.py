"""Wallets and the ledger: a run reserves its price when it opens, and consumes or refunds it when it ends.

Each function puts the changed wallet and one new entry into the working set. A balance never goes below zero and
always equals the sum of the wallet's entries.
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
    """A ledger entry to write."""

    kind: str
    amount: int
    reserved: int = 0
    consumed: int = 0
    dedup_key: str | None = None
    reason: str | None = None


def wallet_id(tenant: str, user: str) -> str:
    """Return the id of a user's wallet. It is unique because a tenant's name has no slash."""
    return f"{tenant}/{user}"


def wallet_of(ws: WorkingSet, tenant: str, user: str) -> Wallet:
    """Return the user's wallet, or a new empty one."""
    name = wallet_id(tenant, user)
    return ws.find(Wallet, name) or Wallet(name, tenant, user, 0, 0, 0, ws.now, ws.now)


def reserve(ws: WorkingSet, wallet: Wallet, job: Job, actor: Actor) -> None:
    """Reserve the price of a run: move it from the balance to the reserved credits."""
    if job.price > wallet.balance:
        raise InsufficientCredits(job.price, wallet.balance)
    if job.price == 0:
        if ws.find(Wallet, wallet.id) is None:
            ws.put(wallet)
        return
    _post(ws, wallet, Posting("reserve", -job.price, reserved=job.price), actor, job)


def settle(ws: WorkingSet, job: Job, run: Run, final_status: str, refunds: RefundPolicy, delivered: int) -> Settlement:
    """Settle the reserved price of an ended run: consume and refund by the refund policy, exactly once."""
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
    """Add credits to a wallet."""
    check_range("a top-up", amount, 1, ws.limits.price_max)
    _check_balance_limit(ws, wallet, amount)
    return _post(ws, wallet, Posting("topup", amount, dedup_key=dedup_key, reason=reason), actor)


def adjust(ws: WorkingSet, wallet: Wallet, amount: int, dedup_key: str, reason: str, actor: Actor) -> Wallet:
    """Correct a balance by hand. Requires a reason and never goes below zero."""
    check_range("the adjusted amount", abs(amount), 1, ws.limits.price_max)
    if not reason.strip():
        raise BadInput("reason_required", "`reason` is empty: say why the balance changes.")
    if wallet.balance + amount < 0:
        deducted = pluralize(-amount, "credit")
        message = f"The adjustment deducts {deducted} and the balance is {wallet.balance}: deduct at most the balance."
        raise InsufficientCredits(-amount, wallet.balance, message)
    _check_balance_limit(ws, wallet, amount)
    return _post(ws, wallet, Posting("adjust", amount, dedup_key=dedup_key, reason=reason), actor)


def refund_consumed(
    ws: WorkingSet, wallet: Wallet, job: Job, run: Run, dedup_key: str, reason: str, actor: Actor
) -> Wallet:
    """Add the credits that an ended run consumed back to the wallet, as an adjustment of that run."""
    _check_balance_limit(ws, wallet, run.consumed)
    posting = Posting("adjust", run.consumed, consumed=-run.consumed, dedup_key=dedup_key, reason=reason)
    return _post(ws, wallet, posting, actor, replace(job, run=run.no))


def _check_balance_limit(ws: WorkingSet, wallet: Wallet, amount: int) -> None:
    """Refuse credits that would exceed the balance limit once all reserved credits are refunded."""
    if wallet.balance + wallet.reserved + amount > ws.limits.balance_max:
        raise Conflict(
            "balance_too_large",
            f"Adding {pluralize(amount, 'credit')} to {wallet.balance} (and {wallet.reserved} reserved) exceeds the "
            f"limit of {ws.limits.balance_max}: add less.",
        )


def _post(ws: WorkingSet, wallet: Wallet, posting: Posting, actor: Actor, job: Job | None = None) -> Wallet:
    seq = wallet.entries + 1
    at = ws.change_time(wallet, job) if job else ws.change_time(wallet)
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
