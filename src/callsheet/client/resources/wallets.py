"""`client.wallets`: read balances and ledgers, add and adjust credits."""

from uuid import uuid4

from callsheet.api.wallets import Balance, LedgerEntry, Wallet
from callsheet.client.method_binding import call, iterate
from callsheet.client.operation_effects import IterableOperation, Operation
from callsheet.client.requests_and_pages import get_request, json_request, paginate, path, send
from callsheet.client.resource import D, Resource


class Wallets(Resource[D]):
    """Read balances and ledgers, add and adjust credits."""

    @call
    def get(self, user: str) -> Operation[Wallet]:
        """Return a user's balance, and the credits reserved for active jobs."""
        return send(self, Wallet, get_request(path("wallets", user)))

    @iterate
    def entries(self, user: str, *, limit: int | None = None) -> IterableOperation[LedgerEntry]:
        """Iterate over a user's ledger entries, newest first."""
        endpoint = path("wallets", user, "ledger")
        return paginate(self, LedgerEntry, "entries", endpoint, {}, limit=limit)

    @call
    def top_up(
        self, user: str, amount: int, *, idempotency_key: str | None = None, reason: str = "top-up"
    ) -> Operation[Balance]:
        """Add credits to a user's wallet.

        The same `idempotency_key` adds the credits once; use the invoice or payment id. An idempotency key belongs to
        one user of one tenant: the same key for another user adds credits to that user too. Without a key the client
        generates one.
        """
        return self._post_entry(user, "topup", amount, idempotency_key, reason)

    @call
    def adjust(self, user: str, amount: int, *, reason: str, idempotency_key: str | None = None) -> Operation[Balance]:
        """Correct a user's balance, up or down. The reason is recorded.

        The same `idempotency_key` changes the balance once. An idempotency key belongs to one user of one tenant: the
        same key for another user changes that user's balance too. Without a key the client generates one.
        """
        return self._post_entry(user, "adjust", amount, idempotency_key, reason)

    def _post_entry(self, user: str, action: str, amount: int, key: str | None, reason: str) -> Operation[Balance]:
        body = {"amount": amount, "idempotency_key": key or uuid4().hex, "reason": reason}
        return send(self, Balance, json_request("POST", path("wallets", user, action), body, idempotent=True))
