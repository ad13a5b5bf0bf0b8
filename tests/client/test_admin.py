"""Money, workflows, keys and the house from Python, by both clients, on both databases."""

from typing import Any

import pytest
from rich.pretty import pretty_repr

from callsheet.client import CallsheetError, Client
from tests.client.both_clients import ClientFactory
from tests.support.processes.live_server import LiveServer


@pytest.fixture
def operator(live_server: LiveServer, client_of: ClientFactory) -> Any:
    return client_of(live_server.url, live_server.keys["operator"])


def test_a_wallet_is_filled_once_per_key_and_its_ledger_is_read_backwards(
    live_server: LiveServer, client_of: ClientFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callsheet.client.requests.PAGE_SIZE_MAX", 2)
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


def test_what_a_job_has_consumed_is_given_back_once(live_server: LiveServer, client_of: ClientFactory) -> None:
    admin = client_of(live_server.url, live_server.keys["admin"])
    user = f"refunded {type(admin).__name__}"
    admin.wallets.top_up(user, 20)
    job = admin.jobs.submit("sketch", user=user, input={"prompt": "x"}, priority=99)
    live_server.work()
    given = admin.jobs.refund(job.id, reason="Too dark.")
    assert (given.user, given.balance, given.replay) == (user, 20, False)
    assert admin.jobs.refund(job.id, reason="Too dark.", run=1).replay is True
    with pytest.raises(CallsheetError) as refused:
        admin.jobs.refund(job.id, reason="Too dark.", run=2)
    assert (refused.value.code, refused.value.status) == ("run_not_found", 404)


def test_workflows_are_put_listed_and_shown(operator: Any) -> None:
    definition = {"price": 4, "stages": [{"name": "draw", "kind": "ink"}], "input_schema": {"type": "object"}}
    made = operator.workflows.put("poster", definition)
    assert operator.workflows.put("poster", definition).version == made.version
    assert (made.price, made.stages, made.definition["input_schema"]) == (4, ["draw"], {"type": "object"})
    assert operator.workflows.get("poster") == made
    assert {"poster", "sketch"} <= {workflow.name for workflow in operator.workflows.list()}
    with pytest.raises(CallsheetError) as refused:
        operator.workflows.put("poster", {"prise": 4})
    assert refused.value.code == "invalid_definition"


def test_keys_are_made_listed_and_revoked_and_a_token_sees_one_user(
    live_server: LiveServer, operator: Any, client_of: ClientFactory
) -> None:
    made = operator.keys.create("for the studio", "client", tenant="default")
    theirs = client_of(live_server.url, made.secret)
    assert (theirs.identity.get().role, theirs.identity.get().tenant) == ("client", "default")
    token = theirs.tokens.create("ann", 60)
    assert client_of(live_server.url, token.token).identity.get().user == "ann"
    assert operator.keys.revoke(made.key.id).revoked_at is not None
    listed = list(operator.keys.list())
    assert made.key.id in {key.id for key in listed}
    with pytest.raises(CallsheetError) as refused:
        theirs.identity.get()
    assert refused.value.status == 401
    assert made.secret not in repr(theirs) + str(refused.value)
    assert (made.secret in f"{made} {pretty_repr(made)}", token.token in f"{token} {pretty_repr(token)}") == (
        False, False,
    )  # fmt: skip
    assert repr(token) == "Token(token='…', user='ann', expires_in_seconds=60)"


def test_the_server_lists_its_tenants_queues_workers_and_audit_lines(live_server: LiveServer, operator: Any) -> None:
    assert operator.tenants.put("third", weight=3).weight == 3
    assert {"default", "other", "third"} <= {tenant.id for tenant in operator.tenants.list()}
    live_server.submit()
    ops = operator.ops.get()
    assert any((queue.kind, queue.workflow) == ("draw", "sketch") and queue.waiting for queue in ops.queues)
    assert "m1" in {worker.worker for worker in operator.workers.list()}
    assert next(operator.audit.list()).action
    assert [line.subject for line in operator.audit.list(subject="third", limit=1)] == ["third"]
    assert {line.subject for line in operator.audit.list(subject="third")} == {"third"}
    live_server.work()


def test_what_is_not_said_of_a_tenant_stays_as_it_is(operator: Any) -> None:
    operator.tenants.put("acme", status="suspended", active_jobs_max=3)
    changed = operator.tenants.put("acme", weight=2)
    assert (changed.weight, changed.status, changed.active_jobs_max) == (2, "suspended", 3)


def test_an_operator_acts_for_the_tenant_that_it_names(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, key = live_server.url, live_server.keys["operator"]
    with Client(url, key) as default, Client(url, key, tenant="other") as other:
        assert (default.identity.get().tenant, other.identity.get().tenant) == ("default", "other")
        assert other.wallets.top_up("zoe", 7).balance == 7
        assert default.wallets.get("zoe").balance == 0
    monkeypatch.setenv("CALLSHEET_TENANT", "other")
    with Client(url, key) as named:
        assert named.wallets.get("zoe").balance == 7


def test_an_operator_looks_after_workers(live_server: LiveServer, operator: Any) -> None:
    live_server.register("tended", "draw")
    assert operator.workers.get("tended").kinds == ["draw"]
    assert operator.workers.update("tended", draining=True).draining
    rotated = operator.workers.rotate_token("tended")
    assert rotated.token != live_server.keys["tended"]
    assert repr(rotated) == "WorkerToken(worker='tended', token='…')"
    assert operator.workers.revoke("tended").status == "revoked"
    assert operator.workers.update("tended", approved=True).status == "offline"
    assert "tended" not in {worker.worker for worker in operator.workers.list()}
    assert "tended" in {worker.worker for worker in operator.workers.list(include_deregistered=True)}
