"""Money over HTTP: however many ask at once, credits move once."""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from callsheet.core import commands
from callsheet.core.recipe import Recipe, StageSpec
from callsheet.store import verify
from tests.support.contents import contents
from tests.support.racing import at_once
from tests.support.served import TENANT, Served

POSTER = Recipe(name="poster", price=6, stages=[StageSpec(name="print", kind="print")])


@pytest.fixture
def user(served: Served, request: pytest.FixtureRequest) -> str:
    """A user of this test's own, without credits."""
    served.engine.execute(commands.PutWorkflow(recipe=POSTER))
    return str(request.node.name)[:200]


def test_the_same_key_fifty_times_at_once_is_one_job_and_one_reserve(served: Served, user: str) -> None:
    # R84, R88
    _top_up(served, user, 1_000)
    body = {"workflow": "poster", "user": user, "idempotency_key": f"{user}-1"}
    answers = _at_once(served, 50, lambda client: client.post("/v1/jobs", json=body))
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 49}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum(answer.headers.get("idempotent-replay") == "true" for answer in answers) == 49
    assert _moved(served, user) == [("topup", 1_000), ("reserve", -6)]


def test_of_twenty_submits_that_cannot_all_be_paid_one_is_accepted(served: Served, user: str) -> None:
    # R33, R34
    _top_up(served, user, 10)
    answers = _at_once(served, 20, lambda client: client.post("/v1/jobs", json={"workflow": "poster", "user": user}))
    assert Counter(answer.status_code for answer in answers) == {201: 1, 402: 19}
    refused = next(answer.json() for answer in answers if answer.status_code == 402)
    assert refused["code"] == "insufficient_credits"
    assert (served.client("client").get(f"/v1/wallets/{user}").json()["balance"], _sound(served)) == (4, True)
    assert len(served.client("client").get("/v1/jobs", params={"user": user}).json()["jobs"]) == 1


def test_the_same_key_with_another_body_is_refused(served: Served, user: str) -> None:
    # R90
    _top_up(served, user, 100)
    client, key = served.client("client"), {"idempotency-key": f"{user}-1"}
    assert client.post("/v1/jobs", json={"workflow": "poster", "user": user}, headers=key).status_code == 201
    before = contents(served)
    other = client.post("/v1/jobs", json={"workflow": "poster", "user": user, "input": 1}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert contents(served) == before


def test_twenty_cancels_at_once_refund_once(served: Served, user: str) -> None:
    _top_up(served, user, 10)
    job = _submit(served, user)
    answers = _at_once(served, 20, lambda client: client.post(f"/v1/jobs/{job}/cancel"))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert 200 in {answer.status_code for answer in answers}
    assert _moved(served, user) == [("topup", 10), ("reserve", -6), ("refund", 6)]
    assert served.client("client").get(f"/v1/jobs/{job}").json()["status"] == "canceled"


def test_cancel_and_complete_at_once_settle_once(served: Served, user: str) -> None:
    _top_up(served, user, 100)
    for _ in range(10):
        job = _submit(served, user)
        (leased,) = served.engine.execute(commands.Claim(worker_id="w1", kinds=("print",)))
        client = served.client("client")
        at_once(
            partial(client.post, f"/v1/jobs/{job}/cancel", json={"grace_seconds": 0}),
            partial(served.engine.execute, commands.Complete(lease=leased.lease, output=None)),
        )
        ends = [entry for entry in _entries(served, user) if entry["job_id"] == job and entry["kind"] != "reserve"]
        assert len(ends) == 1
    assert _sound(served)


def test_a_completed_job_is_not_tried_again(served: Served, user: str) -> None:
    # R71
    _top_up(served, user, 100)
    job = _submit(served, user)
    served.work("print")
    before = contents(served)
    answer = served.client("client").post(f"/v1/jobs/{job}/retry")
    assert (answer.status_code, answer.json()["code"]) == (409, "illegal_transition")
    assert contents(served) == before


def test_a_failed_job_is_not_tried_again_without_funds(served: Served, user: str) -> None:
    # R72
    _top_up(served, user, 6)
    job = _submit(served, user)
    (leased,) = served.engine.execute(commands.Claim(worker_id="w1", kinds=("print",)))
    served.engine.execute(commands.Fail(lease=leased.lease, code="broken", message="No paper.", retryable=False))
    admin = served.client("admin")
    admin.post(f"/v1/wallets/{user}/adjust", json={"amount": -1, "reason": "a fee"}).raise_for_status()
    shown, before = admin.get(f"/v1/jobs/{job}"), contents(served)
    answer = admin.post(f"/v1/jobs/{job}/retry")
    assert shown.json()["status"] == "failed"
    assert (answer.status_code, answer.json()["code"]) == (402, "insufficient_credits")
    assert contents(served) == before
    assert admin.get(f"/v1/jobs/{job}").content == shown.content
    _top_up(served, user, 1, key="again")
    assert admin.post(f"/v1/jobs/{job}/retry").json()["status"] == "queued"
    served.work("print")
    assert _sound(served)


@pytest.mark.parametrize("reason", ["", " "])
def test_an_adjustment_needs_a_reason(served: Served, user: str, reason: str) -> None:
    before = contents(served)
    body = {"amount": 5, "reason": reason}
    answer = served.client("admin").post(f"/v1/wallets/{user}/adjust", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "reason_required")
    assert contents(served) == before


@pytest.mark.parametrize("role", ["client", "viewer", "worker", "user"])
def test_only_an_admin_moves_credits_by_hand(served: Served, user: str, role: str) -> None:
    before = contents(served)
    body = {"amount": 5, "reason": "a gift"}
    for verb in ("adjust", "topup"):
        assert served.client(role).post(f"/v1/wallets/{user}/{verb}", json=body).status_code == 403
    assert contents(served) == before


def test_an_adjustment_is_audited_with_who_and_why(served: Served, user: str) -> None:
    # R80
    admin = served.client("admin")
    admin.post(f"/v1/wallets/{user}/adjust", json={"amount": 5, "reason": "a gift"}).raise_for_status()
    line = admin.get("/v1/admin/audit?limit=1").json()["lines"][0]
    assert (line["action"], line["subject"]) == ("wallet.adjust", user)
    assert (line["by"], line["data"]) == (admin.get("/v1/me").json()["id"], {"amount": 5, "reason": "a gift"})


def test_the_same_top_up_twenty_times_at_once_counts_once(served: Served, user: str) -> None:
    body = {"amount": 7, "idempotency_key": f"{user}-1"}
    path = f"/v1/wallets/{user}/topup"
    answers = _at_once(served, 20, lambda client: client.post(path, json=body), role="admin")
    assert {(answer.status_code, answer.json()["balance"]) for answer in answers} == {(200, 7)}
    assert sum(answer.json()["replay"] for answer in answers) == 19
    assert _moved(served, user) == [("topup", 7)]


def test_a_bulk_pays_for_as_many_as_it_can(served: Served, user: str) -> None:
    _top_up(served, user, 20)
    body = {"jobs": [{"workflow": "poster", "user": user, "idempotency_key": f"{user}-{n % 5}"} for n in range(10)]}
    first = served.client("client").post("/v1/jobs/bulk", json=body).json()["results"]
    assert [one["status"] for one in first] == [201, 201, 201, 402, 402, 200, 200, 200, 402, 402]
    again = served.client("client").post("/v1/jobs/bulk", json=body).json()["results"]
    assert [one["status"] for one in again] == [200, 200, 200, 402, 402] * 2
    assert [one.get("job_id") for one in again] == [one.get("job_id") for one in first]


# -- steps


def _at_once(
    served: Served, count: int, call: Callable[[httpx.Client], httpx.Response], role: str = "client"
) -> list[httpx.Response]:
    clients = [served.client(role) for _ in range(count)]
    for client in clients:
        client.get("/v1/me")  # connected before the start
    return at_once(*(partial(call, client) for client in clients))


def _top_up(served: Served, user: str, amount: int, key: str = "start") -> None:
    served.engine.execute(commands.TopUp(tenant=TENANT, user=user, amount=amount, idempotency_key=key))


def _submit(served: Served, user: str) -> str:
    body = {"workflow": "poster", "user": user}
    return str(served.client("client").post("/v1/jobs", json=body).raise_for_status().json()["id"])


def _entries(served: Served, user: str) -> list[dict[str, Any]]:
    answer = served.client("client").get(f"/v1/wallets/{user}/ledger?limit=200").raise_for_status()
    entries: list[dict[str, Any]] = json.loads(answer.content)["entries"]
    return entries[::-1]


def _moved(served: Served, user: str) -> list[tuple[str, int]]:
    assert _sound(served)
    return [(entry["kind"], entry["amount"]) for entry in _entries(served, user)]


def _sound(served: Served) -> bool:
    """Whether `verify` finds nothing wrong in the whole database."""
    connection = served.engine.database.connect()
    try:
        return verify.check(connection, connection.now()) == []
    finally:
        connection.close()
