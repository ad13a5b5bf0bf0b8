"""The worker protocol in plain HTTP over a real socket: register, claim, complete and deregister."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from callsheet.settings import Settings
from tests.http.worker_sandbox import PNG, HttpWorker, WorkerSandbox, expect_json
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

# -- claim


def test_a_worker_registers_claims_uploads_a_file_and_completes(sandbox: WorkerSandbox) -> None:
    """R241."""
    job = sandbox.submit()
    http_worker = sandbox.http_worker()
    assert (http_worker.registration["worker"], http_worker.registration["kinds"],
    http_worker.registration["approved"]) == (
        sandbox.name("w1"), [sandbox.kind], True,
    )  # fmt: skip
    (task,) = http_worker.claim()
    assert (task["kind"], task["input"], task["files"]) == (sandbox.kind, {"prompt": "a lighthouse"}, [])
    made = http_worker.put(task, PNG)
    done = expect_json(http_worker.post_lease("complete", task, output={"seed": 7}, files=[made]))
    assert (done["status"], done["job_status"], done["replay"]) == ("completed", "completed", False)
    assert expect_json(http_worker.post_lease("complete", task, output={"seed": 7}, files=[made]))["replay"] is True
    (output,) = expect_json(sandbox.live_server.client("client").get(f"/v1/jobs/{job['id']}/outputs"))["outputs"]
    (file,) = output["files"]
    assert sandbox.live_server.client("client").get(f"/v1/files/{file['id']}").content == PNG


def test_a_claimed_task_contains_no_tenant_and_no_object_key(sandbox: WorkerSandbox) -> None:
    job = sandbox.submit()
    http_worker = sandbox.http_worker()
    answer = http_worker.http.post("/v1/worker/claim", json={})
    assert job["id"] in answer.text
    assert "default" not in answer.text
    assert "jobs/" not in answer.text


def test_a_waiting_claim_returns_as_soon_as_there_is_a_task(sandbox: WorkerSandbox) -> None:
    """R216."""
    http_worker = sandbox.http_worker()
    assert http_worker.claim() == []
    waiting_claims = sandbox.live_server.callsheet.state.fleet.waiting_claims
    tasks: list[Any] = []
    thread = threading.Thread(target=lambda: tasks.extend(http_worker.claim(wait_seconds=30)))
    thread.start()
    wait_until(lambda: waiting_claims.count == 1)
    job = sandbox.submit()
    thread.join()
    assert [task["lease"]["job_id"] for task in tasks] == [job["id"]]


def test_a_claim_returns_no_more_tasks_than_the_concurrency_of_the_worker(sandbox: WorkerSandbox) -> None:
    """R156."""
    for _ in range(5):
        sandbox.submit()
    http_worker = sandbox.http_worker(concurrency=3)
    assert len(http_worker.claim(count=2)) == 2
    assert len(http_worker.claim(count=5)) == 1
    assert expect_json(http_worker.http.post("/v1/worker/claim", json={}), 409)["code"] == "worker_full"


def test_a_worker_gets_tasks_of_its_assigned_kinds_only(sandbox: WorkerSandbox) -> None:
    """R46, R188, R209: the kind is created while the server runs."""
    song = sandbox.workflow(f"sing-{sandbox.suffix}")
    sandbox.submit(workflow=song)
    job = sandbox.submit()
    http_worker = sandbox.http_worker("both", sandbox.kind, song, concurrency=5)
    assert sandbox.update_worker("both", kinds=[sandbox.kind])["kinds"] == [sandbox.kind]
    assert http_worker.claim(count=5, kinds=[song]) == []
    assert [task["lease"]["job_id"] for task in http_worker.claim(count=5)] == [job["id"]]
    sandbox.update_worker("both", kinds=[])
    assert [task["kind"] for task in http_worker.claim(count=5)] == [song]


def test_a_worker_without_assigned_kinds_waits_like_the_others(sandbox: WorkerSandbox) -> None:
    """Otherwise it would poll in a busy loop."""
    sandbox.http_worker("w1", sandbox.kind, "something-else")
    sandbox.update_worker("w1", kinds=["something-else"])
    http_worker = sandbox.http_worker()  # it registers again, without the assigned kind
    start = time.monotonic()
    assert http_worker.claim(wait_seconds=0.5) == []
    assert time.monotonic() - start >= 0.5


# -- register and deregister


def test_registering_the_same_name_again_is_a_restart(sandbox: WorkerSandbox) -> None:
    """R202, R203, R210: the worker gets a new token, the old one fails, and its task is requeued."""
    job = sandbox.submit()
    before = sandbox.http_worker()
    (task,) = before.claim()
    after = sandbox.http_worker()
    assert expect_json(before.http.post("/v1/worker/claim", json={}), 401)["code"] == "invalid_worker_token"
    assert expect_json(after.post_lease("complete", task), 409)["code"] == "lease_lost"
    (again,) = after.claim()
    assert (again["lease"]["job_id"], again["lease"]["attempt"]) == (job["id"], 2)
    body = {"worker": sandbox.name("w1"), "kinds": [sandbox.kind]}
    for role in ("client", "admin", sandbox.name("w1")):
        answer = sandbox.live_server.client(role).post("/v1/worker/register", json=body)
        assert expect_json(answer, 403)["code"] == "forbidden", role
    assert after.heartbeat(again)["results"][0]["error"] is None, "the registered worker is not affected"


def test_a_deregistered_worker_requeues_its_tasks(sandbox: WorkerSandbox) -> None:
    """R211, R212."""
    sandbox.submit()
    http_worker = sandbox.http_worker()
    http_worker.claim()
    assert expect_json(http_worker.http.post("/v1/worker/deregister", json={"reason": "night"})) == {"requeued": 1}
    assert expect_json(http_worker.http.post("/v1/worker/claim", json={}), 401)["code"] == "invalid_worker_token"
    assert len(sandbox.http_worker("w2").claim()) == 1
    operator = sandbox.live_server.client("operator")
    entries = expect_json(operator.get("/v1/admin/audit", params={"subject": sandbox.name("w1")}))["entries"]
    assert (entries[0]["action"], entries[0]["data"]) == ("worker.deregister", {"reason": "night"})


def test_wrong_keys_are_limited_after_twenty_failures_on_all_routes_together(tmp_path: Path) -> None:
    """R198: a valid key from the same address is still accepted, and a request without a key is not a failure."""
    with LiveServer(tmp_path / "callsheet.db", tmp_path) as live_server:
        wrong = live_server.client(headers={"authorization": "Bearer cs_wrong"})
        assert live_server.client().get("/v1/jobs").json()["code"] == "missing_key"
        calls = [
            lambda: wrong.post("/v1/worker/register", json={"worker": "w", "kinds": ["draw"]}),
            lambda: wrong.get("/v1/jobs"),
            lambda: wrong.get("/v1/events", headers={"accept": "text/event-stream"}),
        ]
        answers = [calls[n % 3]() for n in range(24)]
        assert [answer.status_code for answer in answers] == [401] * 20 + [429] * 4
        assert {answer.json()["code"] for answer in answers[20:]} == {"too_many_failed_auth"}
        assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in answers[20:])
        assert live_server.client().get("/v1/jobs").json()["code"] == "missing_key"
        assert live_server.client("client").get("/v1/jobs").status_code == 200
        assert live_server.register("w")["worker"] == "w"


def test_the_number_of_workers_is_limited_and_a_deregistered_one_frees_a_place(
    database_url: Any, tmp_path: Any
) -> None:
    """R201."""
    with LiveServer(database_url, tmp_path, settings=Settings(limits=Limits(workers_max=3))) as live_server:
        http_worker = HttpWorker(live_server, "a")  # beside m1 of the fixture
        HttpWorker(live_server, "b")
        body = {"worker": "c", "kinds": ["draw"]}
        refused = expect_json(live_server.client("worker").post("/v1/worker/register", json=body), 409)
        assert (refused["code"], refused["max"]) == ("fleet_full", 3)
        HttpWorker(live_server, "b")  # a restart takes no further place
        http_worker.http.post("/v1/worker/deregister", json={}).raise_for_status()
        HttpWorker(live_server, "c")


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"worker": "../x"}, "invalid_worker"),
        ({"kinds": []}, "out_of_range"),
        ({"kinds": ["a b"]}, "invalid_kind"),
        ({"concurrency": 0}, "out_of_range"),
        ({"labels": {"": "x"}}, "invalid_label"),
        ({"capabilities": {"x": "y" * 20_000}}, "capabilities_too_large"),
        ({"token": "mine"}, "invalid_body"),
    ],
)
def test_an_invalid_registration_is_refused(sandbox: WorkerSandbox, wrong: dict[str, Any], code: str) -> None:
    # R199
    body = {"worker": "w", "kinds": ["draw"], **wrong}
    assert expect_json(sandbox.live_server.client("worker").post("/v1/worker/register", json=body), 422)["code"] == code


def test_the_outputs_of_earlier_stages_are_paginated(sandbox: WorkerSandbox) -> None:
    kind = sandbox.kind
    stages = [StageSpec(name="draw", kind=kind, tasks=6), StageSpec(name="cut", kind=kind)]
    sandbox.live_server.engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name=kind, stages=stages)))
    sandbox.submit()
    http_worker = sandbox.http_worker()
    for _ in range(6):
        (task,) = http_worker.claim()
        expect_json(http_worker.post_lease("complete", task, output="x" * 1_000_000))
    (task,) = http_worker.claim()
    pages = [expect_json(http_worker.post_lease("previous-outputs", task))]
    while after := pages[-1]["next"]:
        pages.append(expect_json(http_worker.post_lease("previous-outputs", task, cursor=after)))
    assert [[one["task_no"] for one in page["tasks"]] for page in pages] == [[1, 2, 3, 4], [5, 6]]
    for wrong in (-1, 2**63):
        answer = http_worker.post_lease("previous-outputs", task, cursor={"stage_no": wrong, "task_no": 1})
        assert expect_json(answer, 422)["code"] == "out_of_range"
    expect_json(http_worker.post_lease("complete", task))
