"""`callsheet wallet` and `callsheet quote`."""

import re

from tests.cli.conftest import Run


def test_a_top_up_is_applied_once_per_idempotency_key_and_the_wallet_shows_it(run: Run) -> None:
    assert run("wallet", "topup", "bob", "20", "--idempotency-key", "i1").out == "bob has 20 credits.\n"
    again = run("wallet", "topup", "bob", "20", "--idempotency-key", "i1", "--json")
    assert again.json == {"user": "bob", "balance": 20, "reserved": 0, "replay": True}
    listing = run("wallet", "show", "bob")
    assert listing.out.startswith("bob has 20 credits, and 0 reserved")
    assert "topup" in listing.out
    found = run("wallet", "show", "bob", "--json").json
    assert (found["wallet"]["balance"], [entry["amount"] for entry in found["entries"]]) == (20, [20])
    assert run("wallet", "show", "bob", "--limit", "0", "--json").json["entries"] == []
    assert run("wallet", "topup", "bob", "0").code == 2


def test_a_wallet_is_adjusted_up_and_down_with_a_reason_and_a_time(run: Run) -> None:
    assert run("wallet", "topup", "dan", "20").out == "dan has 20 credits.\n"
    assert run("wallet", "adjust", "dan", "-12", "--reason", "chargeback", "--idempotency-key", "c1").code == 0
    again = run("wallet", "adjust", "dan", "-12", "--reason", "chargeback", "--idempotency-key", "c1")
    assert again.out == "dan has 8 credits; this idempotency key was used before.\n"
    assert run("wallet", "adjust", "dan", "1", "--reason", "rounding", "--json").json["balance"] == 9
    assert run("wallet", "adjust", "dan", "1").code == 2
    heads, _, adjustment, _ = run("wallet", "show", "dan").out.splitlines()[2:]
    assert heads.split()[:4] == ["NO", "AT", "KIND", "AMOUNT"]
    assert re.match(r"2 +\d{4}-\d\d-\d\dT[\d:]{8}[+-]\d\d:\d\d +adjust +-12 ", adjustment)


def test_a_quote_shows_the_price_and_whether_the_balance_covers_it(run: Run) -> None:
    lines = run("quote", "sketch", "--user", "poor", "--input", "prompt=dunes").out.splitlines()
    assert lines[0] == "sketch costs 3 credits; poor has 0, which is not enough."
    quote = run("quote", "sketch", "--user", "ann", "--input", "prompt=dunes", "--json").json
    assert (quote["price"], quote["affordable"], bool(quote["quote"])) == (3, True, True)
    assert run("quote", "nothing", "--user", "ann").code == 1
