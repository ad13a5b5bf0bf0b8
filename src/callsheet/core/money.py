"""Wallets and the ledger. Reserve at the opening of a run; then exactly one of consume or refund at its end.

Each function puts the changed wallet and one new entry into the working set. Nothing ever goes below zero, and
the entries of a wallet, added up, are its balance.
"""

from typing import NamedTuple

from msgspec.structs import replace

from callsheet.core.counting import counted
from callsheet.core.errors import BadInput, Conflict, InsufficientCredits
from callsheet.core.machine import Actor
from callsheet.core.recipe import Refunds, in_range
from callsheet.core.rows import Entry, Job, Run, Wallet
from callsheet.core.working import WorkingSet

_FULL = 100


class Settlement(NamedTuple):
    """How a run's price was split at its end."""

    consumed: int
    returned: int


class Posting(NamedTuple):
    """A ledger line to be written."""

    kind: str
    amount: int
    held: int = 0
    consumed: int = 0
    idem: str | None = None
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
    _post(ws, wallet, Posting("reserve", -job.price, held=job.price), actor, job)


def settle(ws: WorkingSet, job: Job, run: Run, ending: str, refunds: Refunds, delivered: int) -> Settlement:
    """Close a run's reservation, once, by how it ended."""
    if run.status != "open":
        message = f"run {run.no} of job {job.id} is already settled"
        raise AssertionError(message)
    if run.price == 0:
        return Settlement(0, 0)
    kept = -(-run.price * delivered // _FULL) if ending == "completed" else _kept(job, run, ending, refunds)
    back = run.price - kept
    wallet = ws.get(Wallet, job.wallet_id)
    kind = "consume" if ending == "completed" or kept else "refund"
    _post(ws, wallet, Posting(kind, back, held=-run.price, consumed=kept), "system", job)
    return Settlement(kept, back)


def _kept(job: Job, run: Run, ending: str, refunds: Refunds) -> int:
    if ending == "canceled":
        percent = refunds.canceled if job.started_at is None else refunds.canceled_running
    else:
        percent = refunds.failed if ending == "failed" else refunds.expired
    return run.price - run.price * percent // _FULL


def top_up(ws: WorkingSet, wallet: Wallet, amount: int, idem: str, reason: str, actor: Actor) -> Wallet:
    """Add bought credits."""
    in_range("a top-up", amount, 1, ws.limits.price_max)
    _room(ws, wallet, amount)
    return _post(ws, wallet, Posting("topup", amount, idem=idem, reason=reason), actor)


def adjust(ws: WorkingSet, wallet: Wallet, amount: int, idem: str, reason: str, actor: Actor) -> Wallet:
    """Correct a balance by hand; always with a reason, never below zero."""
    in_range("what is added or taken", abs(amount), 1, ws.limits.price_max)
    if not reason.strip():
        raise BadInput("reason_required", "An adjustment needs a reason: say why the balance changes.")
    if wallet.balance + amount < 0:
        taken = counted(-amount, "credit")
        said = f"This would take {taken} and the balance is {wallet.balance}: it never goes below zero."
        raise InsufficientCredits(-amount, wallet.balance, said)
    _room(ws, wallet, amount)
    return _post(ws, wallet, Posting("adjust", amount, idem=idem, reason=reason), actor)


def give_back(ws: WorkingSet, wallet: Wallet, job: Job, run: Run, idem: str, reason: str, actor: Actor) -> Wallet:
    """Return what an ended run has consumed: a correction by hand that is that run's."""
    _room(ws, wallet, run.consumed)
    line = Posting("adjust", run.consumed, consumed=-run.consumed, idem=idem, reason=reason)
    return _post(ws, wallet, line, actor, replace(job, run=run.no))


def _room(ws: WorkingSet, wallet: Wallet, amount: int) -> None:
    """Refuse credits that, with what is held, could not all come back into the wallet."""
    if wallet.balance + wallet.held + amount > ws.limits.balance_max:
        raise Conflict("balance_too_large", f"A wallet holds at most {ws.limits.balance_max} credits.")


def _post(ws: WorkingSet, wallet: Wallet, line: Posting, actor: Actor, job: Job | None = None) -> Wallet:
    seq = wallet.entries + 1
    at = max(ws.now, wallet.updated_at)
    balance = wallet.balance + line.amount
    bought = line.amount if line.kind == "topup" else 0
    after = replace(
        wallet, balance=balance, held=wallet.held + line.held, entries=seq, updated_at=at,
        topped_up=wallet.topped_up + bought, consumed=wallet.consumed + line.consumed,
    )  # fmt: skip
    ws.put(after)
    job_id, run = (job.id, job.run) if job else (None, None)
    entry = Entry(
        wallet.id, seq, wallet.tenant, line.kind, line.amount, line.consumed, balance, job_id, run, line.idem,
        line.reason, actor, at,
    )  # fmt: skip
    ws.append(entry)
    return after
