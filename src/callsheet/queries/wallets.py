"""Wallets and their ledgers."""

from callsheet.api.wallets import Ledger, LedgerQuery, Wallet
from callsheet.core.decisions.money import wallet_id
from callsheet.core.model import rows
from callsheet.core.model.errors import Denied
from callsheet.core.policy.visibility import Viewer, may_see_user
from callsheet.queries import render
from callsheet.queries.context import QueryContext
from callsheet.queries.pages import row_count, split_page


async def get_wallet(context: QueryContext, viewer: Viewer, user: str) -> Wallet:
    """Return the wallet of a user; one that was never used is empty."""
    _check_owner(viewer, user)
    found = await context.reads.lookup("wallet_of", id=wallet_id(viewer.tenant, user))
    wallet = rows.Wallet(*found[0]) if found else rows.Wallet("", viewer.tenant, user, 0, 0, 0, 0, 0)
    return render.wallet_view(wallet)


async def list_ledger(context: QueryContext, viewer: Viewer, user: str, query: LedgerQuery) -> Ledger:
    """Return a page of the ledger of a user, newest first."""
    _check_owner(viewer, user)
    count = row_count(context, query.limit)
    found = await context.reads.lookup(
        "ledger_before", id=wallet_id(viewer.tenant, user), before=query.cursor, count=count
    )
    page, more = split_page(found, query.limit)
    entries = [render.entry_view(rows.LedgerEntry(*row)) for row in page]
    return Ledger(entries, entries[-1].seq if more else None)


def _check_owner(viewer: Viewer, user: str) -> None:
    if not may_see_user(viewer, user):
        raise Denied("forbidden", "A user token can only read its own user's wallet. Use a token of this user.")
