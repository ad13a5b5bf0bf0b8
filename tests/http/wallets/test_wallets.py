"""Wallets over HTTP: balances, ledgers, top-ups, adjustments and refunds, and access to them."""

from typing import Any

import pytest

from callsheet.core.model import commands
from tests.support.processes.live_server import OTHER_TENANT, TENANT, LiveServer


def top_up(live_server: LiveServer, user: str, role: str = "admin", **body: Any) -> Any:
    return live_server.client(role).post(f"/v1/wallets/{user}/topup", json=body)


def adjust(live_server: LiveServer, user: str, **body: Any) -> Any:
    return live_server.client("admin").post(f"/v1/wallets/{user}/adjust", json=body)


def wallet(live_server: LiveServer, user: str, role: str = "client") -> dict[str, Any]:
    found: dict[str, Any] = live_server.client(role).get(f"/v1/wallets/{user}").raise_for_status().json()
    return found


NO_TOTALS = {"topped_up": 0, "consumed": 0}


def test_an_unused_wallet_is_empty(live_server: LiveServer) -> None:
    assert wallet(live_server, "new") == {"user": "new", "balance": 0, "reserved": 0, "entries": 0} | NO_TOTALS
    assert live_server.client("client").get("/v1/wallets/new/ledger").json() == {"entries": [], "next": None}


def test_credits_are_topped_up_adjusted_reserved_and_refunded(live_server: LiveServer) -> None:
    assert top_up(live_server, "bea", amount=20).json() == {
        "user": "bea",
        "balance": 20,
        "reserved": 0,
        "replay": False,
    }
    assert adjust(live_server, "bea", amount=-5, reason="Mistake.").json()["balance"] == 15
    job = live_server.submit(user="bea")["id"]
    assert wallet(live_server, "bea") == {
        "user": "bea", "balance": 12, "reserved": 3, "entries": 3, "topped_up": 20, "consumed": 0,
    }  # fmt: skip
    live_server.engine.execute(commands.Cancel(tenant=TENANT, job_id=job))
    entries = live_server.client("client").get("/v1/wallets/bea/ledger").json()["entries"]
    assert [(entry["seq"], entry["kind"], entry["amount"], entry["balance"]) for entry in entries] == [
        (4, "refund", 3, 15), (3, "reserve", -3, 12), (2, "adjust", -5, 15), (1, "topup", 20, 20),
    ]  # fmt: skip
    assert [entry["job_id"] for entry in entries] == [job, job, None, None]
    assert (entries[2]["reason"], entries[2]["actor"]) == ("Mistake.", "admin")


def refund(live_server: LiveServer, job: str, role: str = "admin", **body: Any) -> Any:
    return live_server.client(role).post(f"/v1/jobs/{job}/refund", json=body)


def test_a_completed_job_is_refunded_once(live_server: LiveServer) -> None:
    # R79
    top_up(live_server, "rae", amount=10)
    job = live_server.submit(user="rae", priority=99)["id"]
    assert refund(live_server, job, reason="x").json()["code"] == "run_not_ended"
    live_server.work()
    refunded = refund(live_server, job, reason="Too dark.").json()
    assert refunded == {"user": "rae", "balance": 10, "reserved": 0, "replay": False}
    assert refund(live_server, job, reason="Too dark.", run=1).json() == refunded | {"replay": True}
    assert wallet(live_server, "rae")["consumed"] == 0
    entry = live_server.client("client").get("/v1/wallets/rae/ledger").json()["entries"][0]
    assert (entry["kind"], entry["amount"], entry["job_id"], entry["run"]) == ("adjust", 3, job, 1)
    assert (entry["reason"], entry["actor"]) == ("Too dark.", "admin")
    audit = live_server.client("admin").get("/v1/admin/audit", params={"subject": job}).json()["entries"]
    assert [(one["action"], one["data"]) for one in audit] == [("job.refund", {"reason": "Too dark."})]


def test_an_invalid_refund_is_refused(live_server: LiveServer) -> None:
    # R79: a canceled job was refunded automatically
    job = live_server.submit(user="ann")["id"]
    live_server.engine.execute(commands.Cancel(tenant=TENANT, job_id=job))
    answers = [
        refund(live_server, job, reason="x"), refund(live_server, job, reason=" "), refund(live_server, job,
        reason="x", run=2),
        refund(live_server, job, reason="x", run=0), refund(live_server, job), refund(live_server, "unknown",
        reason="x"),
        refund(live_server, job, "other client", reason="x"), refund(live_server, job, "client", reason="x"),
    ]  # fmt: skip
    assert [(one.status_code, one.json()["code"]) for one in answers] == [
        (409, "nothing_to_refund"), (422, "reason_required"), (404, "run_not_found"), (422, "invalid_body"),
        (422, "invalid_body"), (404, "job_not_found"), (403, "forbidden"), (403, "forbidden"),
    ]  # fmt: skip
    assert (
        answers[0].json()["message"] == "Run 1 consumed no credits: its price of 3 credits was refunded when it ended."
    )


def test_a_wallet_has_its_lifetime_totals(live_server: LiveServer) -> None:
    # R42
    top_up(live_server, "liv", amount=20)
    top_up(live_server, "liv", amount=10)
    adjust(live_server, "liv", amount=7, reason="An adjustment is no top-up.")
    for end in ("completed", "completed", "canceled", "running"):
        job = live_server.submit(user="liv", priority=99)["id"]
        if end == "completed":
            live_server.work()
        elif end == "canceled":
            live_server.engine.execute(commands.Cancel(tenant=TENANT, job_id=job))
    found = wallet(live_server, "liv")
    assert (found["balance"], found["reserved"], found["topped_up"], found["consumed"]) == (28, 3, 30, 6)


def test_a_repeated_key_moves_credits_once_and_another_amount_is_refused(live_server: LiveServer) -> None:
    first, again = (top_up(live_server, "cat", amount=7, idempotency_key="order-1") for _ in range(2))
    assert (first.json()["replay"], again.json()["replay"], again.json()["balance"]) == (False, True, 7)
    other = top_up(live_server, "cat", amount=8, idempotency_key="order-1")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert adjust(live_server, "cat", amount=7, reason="x", idempotency_key="order-1").json()["balance"] == 14, (
        "another kind of entry"
    )
    assert top_up(live_server, "dan", amount=7, idempotency_key="order-1").json()["balance"] == 7, "another user"


def test_a_ledger_is_listed_newest_first_page_by_page(live_server: LiveServer) -> None:
    for n in range(1, 6):
        top_up(live_server, "eli", amount=n)
    client, before, seen = live_server.client("client"), None, []
    while True:
        query = {"limit": 2} | ({} if before is None else {"cursor": before})
        page = client.get("/v1/wallets/eli/ledger", params=query).raise_for_status().json()
        seen += [entry["amount"] for entry in page["entries"]]
        before = page["next"]
        if before is None:
            break
    assert seen == [5, 4, 3, 2, 1]


BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("topup", {"amount": 0}, 422, "out_of_range"),
    ("topup", {"amount": -5}, 422, "out_of_range"),
    ("topup", {"amount": 10**19}, 422, "out_of_range"),
    ("topup", {"amount": 1.5}, 422, "invalid_body"),
    ("topup", {}, 422, "invalid_body"),
    ("topup", {"amount": 1, "actor": "system"}, 422, "invalid_body"),
    ("adjust", {"amount": -1, "reason": "x"}, 402, "insufficient_credits"),
    ("adjust", {"amount": 5, "reason": "  "}, 422, "reason_required"),
    ("adjust", {"amount": 5}, 422, "invalid_body"),
]


@pytest.mark.parametrize(("verb", "body", "status", "code"), BAD, ids=str)
def test_an_invalid_top_up_or_adjustment_is_refused_and_changes_nothing(
    live_server: LiveServer, verb: str, body: dict[str, Any], status: int, code: str
) -> None:
    before = wallet(live_server, "fay")
    answer = live_server.client("admin").post(f"/v1/wallets/fay/{verb}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert wallet(live_server, "fay") == before


@pytest.mark.parametrize("query", [{"cursor": -1}, {"cursor": 2**63}, {"cursor": "x"}, {"limit": 0}, {"limit": 500}])
def test_an_invalid_ledger_query_is_refused(live_server: LiveServer, query: dict[str, Any]) -> None:
    answer = live_server.client("client").get("/v1/wallets/ann/ledger", params=query)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_query")


def test_a_user_token_cannot_read_the_wallet_of_another_user(live_server: LiveServer) -> None:
    top_up(live_server, "hal", amount=5)
    assert wallet(live_server, "ann", "user")["user"] == "ann"
    for path in ("/v1/wallets/hal", "/v1/wallets/hal/ledger"):
        assert live_server.client("user").get(path).status_code == 403


def test_users_of_the_same_name_in_two_tenants_have_separate_wallets(live_server: LiveServer) -> None:
    top_up(live_server, "ida", amount=5)
    assert (
        wallet(live_server, "ida", "other client")
        == {"user": "ida", "balance": 0, "reserved": 0, "entries": 0} | NO_TOTALS
    )
    top_up(live_server, "ida", "other admin", amount=9)
    assert (wallet(live_server, "ida")["balance"], wallet(live_server, "ida", "other client")["balance"]) == (5, 9)


def test_an_operator_selects_the_tenant_with_a_header(live_server: LiveServer) -> None:
    client = live_server.client("operator", {"callsheet-tenant": OTHER_TENANT})
    client.post("/v1/wallets/joy/topup", json={"amount": 3}).raise_for_status()
    assert (wallet(live_server, "joy", "other client")["balance"], wallet(live_server, "joy")["balance"]) == (3, 0)


@pytest.mark.parametrize("role", ["client", "viewer", "worker", "user", "other client"])
@pytest.mark.parametrize("verb", ["topup", "adjust"])
def test_only_admins_adjust_credits(live_server: LiveServer, role: str, verb: str) -> None:
    body = {"amount": 5, "reason": "please"}
    assert live_server.client(role).post(f"/v1/wallets/kim/{verb}", json=body).status_code == 403
    assert wallet(live_server, "kim")["balance"] == 0


def test_a_user_name_may_contain_special_characters(live_server: LiveServer) -> None:
    for name in ("a%20b", "%E6%9D%B1", "mail%40example.com", "a%3Fb%23c"):
        assert top_up(live_server, name, amount=1).json()["balance"] == 1
        assert wallet(live_server, name)["balance"] == 1


def test_the_key_of_a_top_up_can_be_in_the_header_or_in_the_body(live_server: LiveServer) -> None:
    admin = live_server.client("admin")
    twice = [
        admin.post("/v1/wallets/keyed/topup", json={"amount": 7}, headers={"idempotency-key": "bill-7"}).json()
        for _ in range(2)
    ]
    assert [(answer["balance"], answer["replay"]) for answer in twice] == [(7, False), (7, True)]
    body = {"amount": 7, "idempotency_key": "x"}
    both = admin.post("/v1/wallets/keyed/topup", json=body, headers={"idempotency-key": "bill-7"})
    assert (both.status_code, both.json()["code"]) == (422, "idempotency_key_conflict")
