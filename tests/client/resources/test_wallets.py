"""Wallets, by both clients, on both databases."""

import pytest

from callsheet.client import CallsheetError
from tests.client.both_clients import ClientFactory
from tests.support.processes.live_server import LiveServer


def test_a_top_up_is_applied_once_per_idempotency_key_and_entries_are_listed_newest_first(
    live_server: LiveServer, client_of: ClientFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callsheet.client.requests_and_pages.PAGE_SIZE_MAX", 2)
    admin = client_of(live_server.url, live_server.keys["admin"])
    user = f"user of {type(admin).__name__} / ü"
    assert admin.wallets.get(user).balance == 0
    assert admin.wallets.top_up(user, 20, idempotency_key="invoice").replay is False
    again = admin.wallets.top_up(user, 20, idempotency_key="invoice")
    assert (again.balance, again.replay) == (20, True)
    assert admin.wallets.top_up(user, 5, reason="gift").balance == 25
    assert admin.wallets.adjust(user, -10, reason="mistake").balance == 15
    wallet = admin.wallets.get(user)
    assert (wallet.user, wallet.balance, wallet.reserved, wallet.entries) == (user, 15, 0, 3)
    assert [(entry.amount, entry.reason) for entry in admin.wallets.entries(user)] == [
        (-10, "mistake"), (5, "gift"), (20, "top-up"),
    ]  # fmt: skip
    with pytest.raises(CallsheetError) as refused:
        admin.wallets.adjust(user, -100, reason="too much")
    assert (refused.value.code, refused.value.status, refused.value.details["balance"]) == (
        "insufficient_credits", 402, 15,
    )  # fmt: skip
