"""Wallets, ledger entries, top-ups, adjustments and refunds."""

from typing import Annotated

from msgspec import Meta, Struct

from callsheet.api.shared_fields import NUMBER_MAX, Example, Time, doc


class Wallet(Struct, frozen=True):
    """A user's wallet: the balance to spend, and credits reserved for open jobs."""

    user: Annotated[str, doc("Your id for the user.", "ann")]
    balance: Annotated[int, doc("Credits that the user can spend.", 97)]
    reserved: Annotated[int, doc("Credits reserved for jobs that have not ended.", 3)]
    entries: Annotated[int, doc("Number of ledger entries.", 2)]
    topped_up: Annotated[int, doc("Sum of all top-ups. Adjustments are not included.", 100)]
    consumed: Annotated[int, doc("Sum of all consumed credits, minus what an admin refunded later.", 0)]


class LedgerQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Pagination of a ledger. The newest entry is first."""

    cursor: Annotated[int, doc("`next` of the previous page.", 40), Meta(ge=0, le=NUMBER_MAX)] = NUMBER_MAX
    limit: Annotated[int, doc("Maximum number of entries to return.", 50)] = 50


class LedgerEntry(Struct, frozen=True):
    """An entry of the ledger. Entries are never changed."""

    seq: Annotated[int, doc("Number of the entry, from 1 without gaps.", 1)]
    kind: Annotated[
        str,
        doc("`topup`; `adjust`: a correction, or a refund by an admin; `reserve`: a run opened; `consume`: a run ended "
            "and consumed its price or a part of it; `refund`: a run ended and consumed nothing.", "topup"),
    ]  # fmt: skip
    amount: Annotated[int, doc("Change of the balance in credits; negative if credits were taken.", 100)]
    consumed: Annotated[int, doc("Credits that the entry consumed; negative if an admin refunded consumed credits.", 0)]
    balance: Annotated[int, doc("Balance after the entry.", 100)]
    job_id: Annotated[str | None, doc("Id of the job, if the entry is for a job.", None)]
    run: Annotated[int | None, doc("Number of that job's run.", None)]
    reason: Annotated[str | None, doc("Reason of a top-up, adjustment or refund by an admin.", "top-up")]
    actor: Annotated[str, doc("Who caused it: `user`, `admin`, `worker` or `system`.", "admin")]
    at: Annotated[Time, doc("Time of the entry.", Example.AT)]


class Ledger(Struct, frozen=True):
    """One page of a wallet's ledger, newest first."""

    entries: Annotated[list[LedgerEntry], doc("Entries of this page.")]
    next: Annotated[int | None, doc("Cursor of the next page. Null on the last page.", None)]


class TopUpBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Credits to add to a wallet."""

    amount: Annotated[int, doc("Credits to add, at least 1.", 100)]
    idempotency_key: Annotated[
        str,
        doc(
            "Makes the top-up idempotent: the same key adds the credits once. Unique per user of a tenant.",
            "invoice-2026-031",
        ),
    ] = ""
    reason: Annotated[str, doc("Reason, recorded in the ledger.")] = "top-up"


class AdjustBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A manual correction of a balance."""

    amount: Annotated[int, doc("Credits to add; negative to deduct.", -5)]
    reason: Annotated[str, doc("Reason, recorded in the ledger.", "Goodwill, booked twice.")]
    idempotency_key: Annotated[
        str, doc("Makes the adjustment idempotent: the same key changes the balance once. Unique per user of a tenant.")
    ] = ""


class RefundBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Which run of a job to refund, and why."""

    reason: Annotated[str, doc("Reason, recorded in the ledger.", "The picture was too dark.")]
    run: Annotated[
        Annotated[int, Meta(ge=1, le=NUMBER_MAX)] | None, doc("Number of the run. Default: the last run.")
    ] = None


class Balance(Struct, frozen=True):
    """A wallet after a change."""

    user: Annotated[str, doc("Your id for the user.", "ann")]
    balance: Annotated[int, doc("Credits that the user can spend.", 97)]
    reserved: Annotated[int, doc("Credits reserved for jobs that have not ended.", 3)]
    replay: Annotated[bool, doc("Whether an earlier request made this change, so that nothing changed now.", False)]
