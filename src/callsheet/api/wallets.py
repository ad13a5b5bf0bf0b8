"""Wallets, ledger entries, top-ups and refunds."""

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from callsheet.api.base import NUMBER_MAX


class Wallet(Struct, frozen=True):
    """What a user may spend, what is reserved for jobs under way, and what was ever topped up and consumed."""

    user: str
    balance: int
    reserved: int
    entries: int
    topped_up: int
    consumed: int


class LedgerQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which lines; newest first."""

    before: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] = NUMBER_MAX
    """Lines with a smaller number; without it the newest."""
    limit: int = 50


class LedgerEntry(Struct, frozen=True):
    """A line of the ledger."""

    seq: int
    kind: str
    amount: int
    consumed: int
    balance: int
    job_id: str | None
    run: int | None
    reason: str | None
    actor: str
    at: datetime


class Ledger(Struct, frozen=True):
    """Lines of a wallet's ledger, newest first."""

    entries: list[LedgerEntry]
    next: int | None


class TopUpBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Bought credits; the same key moves them once."""

    amount: int
    idempotency_key: str = ""
    reason: str = "top-up"


class AdjustBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A correction by hand, up or down, and why."""

    amount: int
    reason: str
    idempotency_key: str = ""


class RefundBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Why, and of which run; by default the last."""

    reason: str
    run: Annotated[int, Meta(ge=1, le=NUMBER_MAX)] | None = None


class Balance(Struct, frozen=True):
    """The wallet after the movement."""

    user: str
    balance: int
    reserved: int
    replay: bool
