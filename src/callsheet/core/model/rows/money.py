"""Rows of wallets and their ledger."""

from typing import ClassVar

from callsheet.core.model.rows.base import Row


class Wallet(Row, frozen=True, gc=False):
    """The credits of a user: `balance` can be spent, `reserved` belongs to open runs, the rest are totals."""

    TABLE: ClassVar[str] = "wallet"
    FIXED_COLUMNS: ClassVar[int] = 3
    TIMES: ClassVar[tuple[str, ...]] = ("created_at", "updated_at")

    id: str
    tenant: str
    user_id: str
    balance: int
    reserved: int
    entries: int
    created_at: int
    updated_at: int
    topped_up: int = 0
    consumed: int = 0


class LedgerEntry(Row, frozen=True, gc=False):
    """A ledger entry. `amount` is the change of the balance; `consumed` is what the operator earned."""

    TABLE: ClassVar[str] = "entry"
    KEY: ClassVar[tuple[str, ...]] = ("wallet_id", "seq")
    TIMES: ClassVar[tuple[str, ...]] = ("at",)

    wallet_id: str
    seq: int
    tenant: str
    kind: str
    amount: int
    consumed: int
    balance: int
    job_id: str | None
    run: int | None
    dedup_key: str | None
    reason: str | None
    actor: str
    at: int
