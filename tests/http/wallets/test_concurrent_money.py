"""Credits over HTTP under concurrency: they move once, however many requests arrive at once."""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.store import verify
from tests.support.databases.database_contents import database_contents
from tests.support.engine.concurrency import run_concurrently
from tests.support.processes.live_server import TENANT, LiveServer

POSTER = WorkflowDefinition(name="poster", price=6, stages=[StageSpec(name="print", kind="print")])


@pytest.fixture
def user(live_server: LiveServer, request: pytest.FixtureRequest) -> str:
    """A new user without credits."""
    live_server.engine.execute(commands.PutWorkflow(definition=POSTER))
    return str(request.node.name)[:200]


def test_fifty_concurrent_submits_with_one_key_create_one_job_and_one_reservation(
    live_server: LiveServer, user: str
) -> None:
    # R88
    _top_up(live_server, user, 1_000)
    body = {"workflow": "poster", "user": user, "idempotency_key": f"{user}-1"}
    answers = _send_concurrently(live_server, 50, lambda client: client.post("/v1/jobs", json=body))
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 49}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum(answer.headers.get("idempotent-replay") == "true" for answer in answers) == 49
    assert _entry_amounts(live_server, user) == [("topup", 1_000), ("reserve", -6)]


def test_twenty_concurrent_submits_do_not_spend_more_than_the_balance(live_server: LiveServer, user: str) -> None:
    # R33, R34, C9
    _top_up(live_server, user, 10)
    answers = _send_concurrently(
        live_server, 20, lambda client: client.post("/v1/jobs", json={"workflow": "poster", "user": user})
    )
    assert Counter(answer.status_code for answer in answers) == {201: 1, 402: 19}
    refused = next(answer.json() for answer in answers if answer.status_code == 402)
    assert refused["code"] == "insufficient_credits"
    assert (live_server.client("client").get(f"/v1/wallets/{user}").json()["balance"], _verify_passes(live_server)) == (
        4,
        True,
    )
    assert len(live_server.client("client").get("/v1/jobs", params={"user": user}).json()["jobs"]) == 1


def test_the_same_key_with_another_body_is_refused(live_server: LiveServer, user: str) -> None:
    # R90
    _top_up(live_server, user, 100)
    client, key = live_server.client("client"), {"idempotency-key": f"{user}-1"}
    assert client.post("/v1/jobs", json={"workflow": "poster", "user": user}, headers=key).status_code == 201
    before = database_contents(live_server)
    other = client.post("/v1/jobs", json={"workflow": "poster", "user": user, "input": 1}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert database_contents(live_server) == before


def test_twenty_concurrent_cancels_refund_once(live_server: LiveServer, user: str) -> None:
    _top_up(live_server, user, 10)
    job = _submit(live_server, user)
    answers = _send_concurrently(live_server, 20, lambda client: client.post(f"/v1/jobs/{job}/cancel"))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert 200 in {answer.status_code for answer in answers}
    assert _entry_amounts(live_server, user) == [("topup", 10), ("reserve", -6), ("refund", 6)]
    assert live_server.client("client").get(f"/v1/jobs/{job}").json()["status"] == "canceled"


def test_a_concurrent_cancel_and_completion_settle_once(live_server: LiveServer, user: str) -> None:
    _top_up(live_server, user, 100)
    for _ in range(10):
        job = _submit(live_server, user)
        (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("print",)))
        client = live_server.client("client")
        run_concurrently(
            partial(client.post, f"/v1/jobs/{job}/cancel", json={"grace_seconds": 0}),
            partial(live_server.engine.execute, commands.Complete(lease=leased.lease, output=None)),
        )
        ends = [entry for entry in _entries(live_server, user) if entry["job_id"] == job and entry["kind"] != "reserve"]
        assert len(ends) == 1
    assert _verify_passes(live_server)


def test_a_completed_job_cannot_be_retried(live_server: LiveServer, user: str) -> None:
    # R71
    _top_up(live_server, user, 100)
    job = _submit(live_server, user)
    live_server.work("print")
    before = database_contents(live_server)
    answer = live_server.client("client").post(f"/v1/jobs/{job}/retry")
    assert (answer.status_code, answer.json()["code"]) == (409, "illegal_transition")
    assert database_contents(live_server) == before


def test_a_failed_job_cannot_be_retried_without_enough_credits(live_server: LiveServer, user: str) -> None:
    # R72
    _top_up(live_server, user, 6)
    job = _submit(live_server, user)
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("print",)))
    live_server.engine.execute(commands.Fail(lease=leased.lease, code="broken", message="No paper.", retryable=False))
    admin = live_server.client("admin")
    admin.post(f"/v1/wallets/{user}/adjust", json={"amount": -1, "reason": "a fee"}).raise_for_status()
    failed, before = admin.get(f"/v1/jobs/{job}"), database_contents(live_server)
    answer = admin.post(f"/v1/jobs/{job}/retry")
    assert failed.json()["status"] == "failed"
    assert (answer.status_code, answer.json()["code"]) == (402, "insufficient_credits")
    assert database_contents(live_server) == before
    assert admin.get(f"/v1/jobs/{job}").content == failed.content
    _top_up(live_server, user, 1, key="again")
    assert admin.post(f"/v1/jobs/{job}/retry").json()["status"] == "queued"
    live_server.work("print")
    assert _verify_passes(live_server)


@pytest.mark.parametrize("reason", ["", " "])
def test_an_adjustment_needs_a_reason(live_server: LiveServer, user: str, reason: str) -> None:
    before = database_contents(live_server)
    body = {"amount": 5, "reason": reason}
    answer = live_server.client("admin").post(f"/v1/wallets/{user}/adjust", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "reason_required")
    assert database_contents(live_server) == before


@pytest.mark.parametrize("role", ["client", "viewer", "worker", "user"])
def test_only_an_admin_adjusts_credits(live_server: LiveServer, user: str, role: str) -> None:
    before = database_contents(live_server)
    body = {"amount": 5, "reason": "a gift"}
    for verb in ("adjust", "topup"):
        assert live_server.client(role).post(f"/v1/wallets/{user}/{verb}", json=body).status_code == 403
    assert database_contents(live_server) == before


def test_an_adjustment_is_in_the_audit_log_with_its_key_and_reason(live_server: LiveServer, user: str) -> None:
    # R80
    admin = live_server.client("admin")
    admin.post(f"/v1/wallets/{user}/adjust", json={"amount": 5, "reason": "a gift"}).raise_for_status()
    entry = admin.get("/v1/admin/audit?limit=1").json()["entries"][0]
    assert (entry["action"], entry["subject"]) == ("wallet.adjust", user)
    assert (entry["by"], entry["data"]) == (admin.get("/v1/me").json()["id"], {"amount": 5, "reason": "a gift"})


def test_twenty_concurrent_top_ups_with_one_key_count_once(live_server: LiveServer, user: str) -> None:
    body = {"amount": 7, "idempotency_key": f"{user}-1"}
    path = f"/v1/wallets/{user}/topup"
    answers = _send_concurrently(live_server, 20, lambda client: client.post(path, json=body), role="admin")
    assert {(answer.status_code, answer.json()["balance"]) for answer in answers} == {(200, 7)}
    assert sum(answer.json()["replay"] for answer in answers) == 19
    assert _entry_amounts(live_server, user) == [("topup", 7)]


def test_a_bulk_submit_accepts_as_many_jobs_as_the_balance_covers(live_server: LiveServer, user: str) -> None:
    _top_up(live_server, user, 20)
    body = {"jobs": [{"workflow": "poster", "user": user, "idempotency_key": f"{user}-{n % 5}"} for n in range(10)]}
    first = live_server.client("client").post("/v1/jobs/bulk", json=body).json()["results"]
    assert [one["status"] for one in first] == [201, 201, 201, 402, 402, 200, 200, 200, 402, 402]
    again = live_server.client("client").post("/v1/jobs/bulk", json=body).json()["results"]
    assert [one["status"] for one in again] == [200, 200, 200, 402, 402] * 2
    assert [one.get("job_id") for one in again] == [one.get("job_id") for one in first]


# -- helpers


def _send_concurrently(
    live_server: LiveServer, count: int, call: Callable[[httpx.Client], httpx.Response], role: str = "client"
) -> list[httpx.Response]:
    clients = [live_server.client(role) for _ in range(count)]
    for client in clients:
        client.get("/v1/me")  # opens the connection before the race
    return run_concurrently(*(partial(call, client) for client in clients))


def _top_up(live_server: LiveServer, user: str, amount: int, key: str = "start") -> None:
    live_server.engine.execute(commands.TopUp(tenant=TENANT, user=user, amount=amount, idempotency_key=key))


def _submit(live_server: LiveServer, user: str) -> str:
    body = {"workflow": "poster", "user": user}
    return str(live_server.client("client").post("/v1/jobs", json=body).raise_for_status().json()["id"])


def _entries(live_server: LiveServer, user: str) -> list[dict[str, Any]]:
    answer = live_server.client("client").get(f"/v1/wallets/{user}/ledger?limit=200").raise_for_status()
    entries: list[dict[str, Any]] = json.loads(answer.content)["entries"]
    return entries[::-1]


def _entry_amounts(live_server: LiveServer, user: str) -> list[tuple[str, int]]:
    assert _verify_passes(live_server)
    return [(entry["kind"], entry["amount"]) for entry in _entries(live_server, user)]


def _verify_passes(live_server: LiveServer) -> bool:
    """Return whether `verify` finds nothing wrong in the whole database."""
    connection = live_server.engine.database.connect()
    try:
        return verify.check(connection, connection.now()) == []
    finally:
        connection.close()
