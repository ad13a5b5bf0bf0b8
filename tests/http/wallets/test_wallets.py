"""Wallets over HTTP: balances, ledgers page by page, credits that move once, and nobody else's money."""

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


NOTHING = {"topped_up": 0, "consumed": 0}


def test_a_wallet_that_was_never_used_is_empty(live_server: LiveServer) -> None:
    assert wallet(live_server, "new") == {"user": "new", "balance": 0, "reserved": 0, "entries": 0} | NOTHING
    assert live_server.client("client").get("/v1/wallets/new/ledger").json() == {"entries": [], "next": None}


def test_credits_are_added_corrected_reserved_and_consumed(live_server: LiveServer) -> None:
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
    lines = live_server.client("client").get("/v1/wallets/bea/ledger").json()["entries"]
    assert [(line["seq"], line["kind"], line["amount"], line["balance"]) for line in lines] == [
        (4, "refund", 3, 15), (3, "reserve", -3, 12), (2, "adjust", -5, 15), (1, "topup", 20, 20),
    ]  # fmt: skip
    assert [line["job_id"] for line in lines] == [job, job, None, None]
    assert (lines[2]["reason"], lines[2]["actor"]) == ("Mistake.", "admin")


def refund(live_server: LiveServer, job: str, role: str = "admin", **body: Any) -> Any:
    return live_server.client(role).post(f"/v1/jobs/{job}/refund", json=body)


def test_what_a_job_has_consumed_is_given_back_once(live_server: LiveServer) -> None:
    # R79
    top_up(live_server, "rae", amount=10)
    job = live_server.submit(user="rae", priority=99)["id"]
    assert refund(live_server, job, reason="x").json()["code"] == "run_not_ended"
    live_server.work()
    given = refund(live_server, job, reason="Too dark.").json()
    assert given == {"user": "rae", "balance": 10, "reserved": 0, "replay": False}
    assert refund(live_server, job, reason="Too dark.", run=1).json() == given | {"replay": True}
    assert wallet(live_server, "rae")["consumed"] == 0
    line = live_server.client("client").get("/v1/wallets/rae/ledger").json()["entries"][0]
    assert (line["kind"], line["amount"], line["job_id"], line["run"]) == ("adjust", 3, job, 1)
    assert (line["reason"], line["actor"]) == ("Too dark.", "admin")
    audit = live_server.client("admin").get("/v1/admin/audit", params={"subject": job}).json()["entries"]
    assert [(one["action"], one["data"]) for one in audit] == [("job.refund", {"reason": "Too dark."})]


def test_a_refund_that_cannot_be_is_refused(live_server: LiveServer) -> None:
    job = live_server.submit(user="ann")["id"]
    live_server.engine.execute(commands.Cancel(tenant=TENANT, job_id=job))
    said = [
        refund(live_server, job, reason="x"), refund(live_server, job, reason=" "), refund(live_server, job,
        reason="x", run=2),
        refund(live_server, job, reason="x", run=0), refund(live_server, job), refund(live_server, "nobody",
        reason="x"),
        refund(live_server, job, "other client", reason="x"), refund(live_server, job, "client", reason="x"),
    ]  # fmt: skip
    assert [(one.status_code, one.json()["code"]) for one in said] == [
        (409, "nothing_to_refund"), (422, "reason_required"), (404, "run_not_found"), (422, "invalid_body"),
        (422, "invalid_body"), (404, "job_not_found"), (403, "forbidden"), (403, "forbidden"),
    ]  # fmt: skip
    assert said[0].json()["message"] == "Run 1 consumed no credits: 3 credits of its price were refunded when it ended."


def test_a_wallet_knows_what_was_ever_bought_and_used(live_server: LiveServer) -> None:
    # R35, R42
    top_up(live_server, "liv", amount=20)
    top_up(live_server, "liv", amount=10)
    adjust(live_server, "liv", amount=7, reason="A gift is not bought.")
    for end in ("completed", "completed", "canceled", "running"):
        job = live_server.submit(user="liv", priority=99)["id"]
        if end == "completed":
            live_server.work()
        elif end == "canceled":
            live_server.engine.execute(commands.Cancel(tenant=TENANT, job_id=job))
    found = wallet(live_server, "liv")
    assert (found["balance"], found["reserved"], found["topped_up"], found["consumed"]) == (28, 3, 30, 6)


def test_the_same_key_moves_credits_once_and_another_amount_is_refused(live_server: LiveServer) -> None:
    first, again = (top_up(live_server, "cat", amount=7, idempotency_key="order-1") for _ in range(2))
    assert (first.json()["replay"], again.json()["replay"], again.json()["balance"]) == (False, True, 7)
    other = top_up(live_server, "cat", amount=8, idempotency_key="order-1")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert adjust(live_server, "cat", amount=7, reason="x", idempotency_key="order-1").json()["balance"] == 14, (
        "another verb"
    )
    assert top_up(live_server, "dan", amount=7, idempotency_key="order-1").json()["balance"] == 7, "another user"


def test_a_ledger_is_read_page_by_page(live_server: LiveServer) -> None:
    for n in range(1, 6):
        top_up(live_server, "eli", amount=n)
    client, before, seen = live_server.client("client"), None, []
    while True:
        query = {"limit": 2} | ({} if before is None else {"cursor": before})
        page = client.get("/v1/wallets/eli/ledger", params=query).raise_for_status().json()
        seen += [line["amount"] for line in page["entries"]]
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
def test_credits_that_cannot_move_are_refused_and_nothing_is_written(
    live_server: LiveServer, verb: str, body: dict[str, Any], status: int, code: str
) -> None:
    before = wallet(live_server, "fay")
    answer = live_server.client("admin").post(f"/v1/wallets/fay/{verb}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert wallet(live_server, "fay") == before


@pytest.mark.parametrize("query", [{"cursor": -1}, {"cursor": 2**63}, {"cursor": "x"}, {"limit": 0}, {"limit": 500}])
def test_a_ledger_query_that_means_nothing_is_refused(live_server: LiveServer, query: dict[str, Any]) -> None:
    answer = live_server.client("client").get("/v1/wallets/ann/ledger", params=query)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_query")


def test_a_user_sees_no_other_users_wallet(live_server: LiveServer) -> None:
    top_up(live_server, "hal", amount=5)
    assert wallet(live_server, "ann", "user")["user"] == "ann"
    for path in ("/v1/wallets/hal", "/v1/wallets/hal/ledger"):
        assert live_server.client("user").get(path).status_code == 403


def test_the_same_name_in_another_tenant_is_another_wallet(live_server: LiveServer) -> None:
    top_up(live_server, "ida", amount=5)
    assert (
        wallet(live_server, "ida", "other client")
        == {"user": "ida", "balance": 0, "reserved": 0, "entries": 0} | NOTHING
    )
    top_up(live_server, "ida", "other admin", amount=9)
    assert (wallet(live_server, "ida")["balance"], wallet(live_server, "ida", "other client")["balance"]) == (5, 9)


def test_an_operator_names_the_tenant(live_server: LiveServer) -> None:
    client = live_server.client("operator", {"callsheet-tenant": OTHER_TENANT})
    client.post("/v1/wallets/joy/topup", json={"amount": 3}).raise_for_status()
    assert (wallet(live_server, "joy", "other client")["balance"], wallet(live_server, "joy")["balance"]) == (3, 0)


@pytest.mark.parametrize("role", ["client", "viewer", "worker", "user", "other client"])
@pytest.mark.parametrize("verb", ["topup", "adjust"])
def test_only_admins_adjust_credits(live_server: LiveServer, role: str, verb: str) -> None:
    body = {"amount": 5, "reason": "please"}
    assert live_server.client(role).post(f"/v1/wallets/kim/{verb}", json=body).status_code == 403
    assert wallet(live_server, "kim")["balance"] == 0


def test_a_users_name_may_be_almost_anything(live_server: LiveServer) -> None:
    for name in ("a%20b", "%E6%9D%B1", "mail%40example.com", "a%3Fb%23c"):
        assert top_up(live_server, name, amount=1).json()["balance"] == 1
        assert wallet(live_server, name)["balance"] == 1


def test_the_header_is_a_top_ups_key_as_good_as_the_bodys(live_server: LiveServer) -> None:
    admin = live_server.client("admin")
    twice = [
        admin.post("/v1/wallets/keyed/topup", json={"amount": 7}, headers={"idempotency-key": "bill-7"}).json()
        for _ in range(2)
    ]
    assert [(answer["balance"], answer["replay"]) for answer in twice] == [(7, False), (7, True)]
    body = {"amount": 7, "idempotency_key": "x"}
    both = admin.post("/v1/wallets/keyed/topup", json=body, headers={"idempotency-key": "bill-7"})
    assert (both.status_code, both.json()["code"]) == (422, "idempotency_key_conflict")
