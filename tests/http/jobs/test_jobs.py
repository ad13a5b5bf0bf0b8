"""Submitting and reading jobs over HTTP."""

import re
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from callsheet.core.model import commands
from callsheet.core.model.commands import Command
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.engine import Engine
from callsheet.engine.engine import Unavailable
from tests.support.processes.live_server import LiveServer

TIMES = ("created", "started", "finished", "updated")


def test_a_submit_returns_the_job_and_its_location(live_server: LiveServer) -> None:
    # R38
    client = live_server.client("client")
    answer = client.post("/v1/jobs", json={"workflow": "sketch", "user": "ann", "input": {"prompt": "dunes"}})
    assert (answer.status_code, answer.json()["status"], answer.json()["price"]) == (201, "queued", 3)
    assert client.get(answer.headers["location"]).json() == answer.json()


def test_a_repeated_idempotency_key_returns_the_same_job_without_a_new_charge(live_server: LiveServer) -> None:
    # R87, R90
    client = live_server.client("client")
    body = {"workflow": "sketch", "user": "ann", "input": {"prompt": "dunes"}}
    before = client.get("/v1/wallets/ann").json()["balance"]
    first = client.post("/v1/jobs", json=body, headers={"idempotency-key": "replay-1"})
    again = client.post("/v1/jobs", json=body | {"idempotency_key": "replay-1"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.headers["idempotent-replay"] == "true"
    assert again.json()["id"] == first.json()["id"]
    other = client.post("/v1/jobs", json=body | {"idempotency_key": "replay-1", "priority": 7})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert client.get("/v1/wallets/ann").json()["balance"] == before - first.json()["price"]


def test_a_job_has_its_input_status_output_attempts_and_times(live_server: LiveServer) -> None:
    # R147, R148
    client, job_input = live_server.client("client"), {"prompt": "dunes", "threads": "2", "unknown": None}
    live_server.engine.execute(
        commands.PutWorkflow(definition=WorkflowDefinition(name="whole", stages=[StageSpec(name="draw", kind="whole")]))
    )
    job = live_server.submit(workflow="whole", input=job_input)
    path = f"/v1/jobs/{job['id']}"
    assert uuid.UUID(job["id"]).version == 7
    assert client.get(f"{path}/input").json()["input"] == job_input
    assert {name: job[name] for name in ("status", "cancel_requested", "error", "started_at", "finished_at")} == {
        "status": "queued", "cancel_requested": False, "error": None, "started_at": None, "finished_at": None,
    }  # fmt: skip
    live_server.work("whole", {"path": "a.mp4"})
    after = client.get(path).json()
    assert after["created_at"] <= after["started_at"] <= after["finished_at"] == after["updated_at"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z", after[f"{name}_at"]) for name in TIMES)
    (output,) = client.get(f"{path}/outputs").json()["outputs"]
    assert (after["status"], after["error"], output["output"]) == ("completed", None, {"path": "a.mp4"})
    (task,) = client.get(f"{path}/tasks").json()["tasks"]
    assert (task["attempts"], task["attempts_counted"], task["attempts_max"]) == (1, 1, 3)
    assert [event["seq"] for event in client.get(f"{path}/events").json()["events"]] == list(range(1, 8))


class FailingEngine:
    """An engine whose database becomes unavailable after so many commands of a bulk submit."""

    def __init__(self, engine: Engine, done: int, error: Exception) -> None:
        self._engine = engine
        self._done = done
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def aexecute_many(self, many: Sequence[Command]) -> list[Any]:
        answers = await self._engine.aexecute_many(many[: self._done]) if self._done else []
        return [*answers, *(self._error for _ in many[self._done :])]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(Unavailable("unavailable"), 503, "unavailable"), (KeyError("x"), 500, "internal_error")],
)
def test_accepted_jobs_of_a_bulk_submit_are_returned_although_the_database_fails(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str
) -> None:
    state, faults = live_server.callsheet.state, list[str]()
    inputs: list[dict[str, Any]] = [{"prompt": 7}, {}, {}]
    one = {"workflow": "sketch", "user": "ann"}
    body = {
        "jobs": [one | {"input": one_input, "idempotency_key": f"{code}-{n}"} for n, one_input in enumerate(inputs)]
    }
    with monkeypatch.context() as patched:
        patched.setattr(state, "report_error", lambda request_id, _error: faults.append(request_id))
        patched.setattr(state, "engine", FailingEngine(live_server.engine, 2, error))
        partly = live_server.client("client").post("/v1/jobs/bulk", json=body)
        patched.setattr(state, "engine", FailingEngine(live_server.engine, 0, error))
        nothing = live_server.client("client").post("/v1/jobs/bulk", json=body)
    bad, accepted, missed = partly.json()["results"]
    assert (partly.status_code, bad["status"], accepted["status"]) == (200, 422, 201)
    assert (missed["status"], missed["problem"]["code"], "job_id" in missed) == (status, code, False)
    assert (nothing.status_code, nothing.json()["code"]) == (status, code)
    assert len(faults) == (2 if status == 500 else 0)
    again = live_server.client("client").post("/v1/jobs/bulk", json=body).json()["results"]
    assert [one["status"] for one in again] == [422, 200, 201]
    assert again[1]["job_id"] == accepted["job_id"]


def test_a_user_at_the_limit_of_active_jobs_gets_retry_after(live_server: LiveServer) -> None:
    # R171
    live_server.client("operator").put("/v1/admin/tenants/other", json={"active_jobs_max": 1}).raise_for_status()
    active = live_server.submit("other client")
    body = {"workflow": "sketch", "user": "ann", "input": {"prompt": "one too many"}}
    refused = live_server.client("other client").post("/v1/jobs", json=body)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_active_jobs")
    assert int(refused.headers["retry-after"]) > 0
    live_server.client("other client").post(f"/v1/jobs/{active['id']}/cancel", json={}).raise_for_status()
    assert live_server.client("other client").post("/v1/jobs", json=body).status_code == 201, "a place is free"
    answers = live_server.client().get("/openapi.json").json()["paths"]["/v1/jobs"]["post"]["responses"]
    name = "429-too_many_active_jobs-too_many_connections-too_many_failed_auth"
    assert answers["429"] == {"$ref": f"#/components/responses/{name}"}
    shared = live_server.client().get("/openapi.json").json()["components"]["responses"]
    assert "Retry-After" in shared[name]["headers"]


def test_concurrent_reads_return_to_each_caller_only_its_own_jobs(live_server: LiveServer) -> None:
    mine, deleted = live_server.submit()["id"], live_server.submit()["id"]
    live_server.client("client").delete(f"/v1/jobs/{deleted}").raise_for_status()
    clients = [live_server.client(role) for role in ("client", "other client", "viewer", "other viewer")]

    def read_both(n: int) -> tuple[int, int]:
        client = clients[n % 4]
        return client.get(f"/v1/jobs/{mine}").status_code, client.get(f"/v1/jobs/{deleted}").status_code

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(read_both, range(40)))
    assert answers == [(200, 404), (404, 404)] * 20
