"""Money: wallets and their ledger."""

from typing import ClassVar

from callsheet.core.model.rows.base import Row


class Wallet(Row, frozen=True, gc=False):
    """Who pays: what may be spent (`balance`), what is reserved for open runs (`held`), and what ever came and went."""

    TABLE: ClassVar[str] = "wallet"
    FIXED_COLUMNS: ClassVar[int] = 3

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
    """A line of the ledger. `amount` is what the balance gained; `consumed` is what the house earned."""

    TABLE: ClassVar[str] = "entry"
    KEY: ClassVar[tuple[str, ...]] = ("wallet_id", "seq")

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
