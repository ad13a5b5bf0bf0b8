"""Idempotency keys of bulk submits and retries, in the header or in the body."""

import uuid
from typing import Any

import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.support.processes.live_server import LiveServer


@pytest.fixture
def failed(live_server: LiveServer) -> str:
    """A failed job with its own workflow and kind."""
    name = f"w-{uuid.uuid4().hex}"
    definition = WorkflowDefinition(name=name, price=3, stages=[StageSpec(name="draw", kind=name)])
    live_server.engine.execute(commands.PutWorkflow(definition=definition))
    job = str(live_server.submit(workflow=name)["id"])
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=(name,)))
    live_server.engine.execute(commands.Fail(lease=leased.lease, code="boom", message="It broke.", retryable=False))
    return job


def test_a_bulk_submit_with_a_key_creates_its_jobs_once(live_server: LiveServer) -> None:
    client, key = live_server.client("client"), uuid.uuid4().hex
    job: dict[str, Any] = {"workflow": "sketch", "user": "ann", "input": {"prompt": "dunes"}}
    own = job | {"idempotency_key": uuid.uuid4().hex}

    def submit_bulk(*jobs: dict[str, Any]) -> list[dict[str, Any]]:
        answer = client.post("/v1/jobs/bulk", json={"jobs": jobs}, headers={"idempotency-key": key})
        results: list[dict[str, Any]] = answer.raise_for_status().json()["results"]
        return results

    first = submit_bulk(job, own, job)
    again = submit_bulk(job, own, job)
    assert len({one["job_id"] for one in first}) == 3
    assert [one["status"] for one in (*first, *again)] == [201] * 3 + [200] * 3
    assert [one["job_id"] for one in again] == [one["job_id"] for one in first]
    other = submit_bulk(job | {"priority": 1})
    assert (other[0]["status"], other[0]["problem"]["code"]) == (422, "idempotency_key_reused")


@pytest.mark.parametrize("how", ["new_run", "new_job"])
@pytest.mark.parametrize("where", ["header", "body"])
def test_a_retry_with_a_key_is_charged_once(live_server: LiveServer, failed: str, how: str, where: str) -> None:
    client, key = live_server.client("client"), uuid.uuid4().hex
    before = client.get("/v1/wallets/ann").json()["balance"]
    headers = {"idempotency-key": key} if where == "header" else {}
    body = {"retry_as": how} | ({"idempotency_key": key} if where == "body" else {})
    first, second = (client.post(f"/v1/jobs/{failed}/retry", json=body, headers=headers) for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json()["id"] == second.json()["id"]
    assert (first.json()["id"] == failed) is (how == "new_run")
    assert client.get("/v1/wallets/ann").json()["balance"] == before - first.json()["price"]


def test_two_different_keys_in_one_retry_are_refused(live_server: LiveServer, failed: str) -> None:
    answer = live_server.client("client").post(
        f"/v1/jobs/{failed}/retry", json={"idempotency_key": "a"}, headers={"idempotency-key": "b"}
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_conflict")


def test_an_api_key_cannot_name_another_tenant(live_server: LiveServer) -> None:
    """A request for another tenant is not executed for the tenant of the key."""
    for tenant, status in (("other", 403), ("default", 200), ("", 200)):
        answer = live_server.client("client", {"callsheet-tenant": tenant}).get("/v1/me")
        assert answer.status_code == status, tenant
