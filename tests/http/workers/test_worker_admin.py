"""Administration of workers over HTTP: approve, drain, revoke, rotate, verify and list them."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from callsheet.core.model import commands
from callsheet.settings import HttpSettings
from tests.http.worker_sandbox import PNG, WorkerSandbox, expect_json
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

# -- connections and files


def test_the_server_never_calls_a_worker(sandbox: WorkerSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """R155: cancel and drain requests reach the worker in responses, and a registration has no URL."""
    callers: set[str] = set()
    connect = socket.socket.connect

    def recording_connect(self: socket.socket, address: Any) -> None:
        callers.add(threading.current_thread().name)
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", recording_connect)
    body = {"worker": sandbox.name("w1"), "kinds": [sandbox.kind], "url": "http://127.0.0.1:9/"}
    assert (
        expect_json(sandbox.live_server.client("worker").post("/v1/worker/register", json=body), 422)["code"]
        == "invalid_body"
    )
    job, _ = sandbox.submit(), sandbox.submit()
    http_worker = sandbox.http_worker(concurrency=2)
    tasks = http_worker.claim(count=2)
    sandbox.live_server.client("client").post(
        f"/v1/jobs/{job['id']}/cancel", json={"grace_seconds": 60}
    ).raise_for_status()
    sandbox.update_worker("w1", draining=True)
    results = http_worker.heartbeat(*tasks)
    assert (sorted(one["cancel"] for one in results["results"]), results["drain"]) == ([False, True], True)
    expect_json(sandbox.live_server.client("operator").post(f"/v1/admin/workers/{sandbox.name('w1')}/revoke"))
    assert expect_json(http_worker.post_lease("complete", tasks[0]), 401)["code"] == "invalid_worker_token"
    assert callers == {threading.current_thread().name}


def test_files_of_the_same_name_belong_to_their_own_job_and_attempt(sandbox: WorkerSandbox) -> None:
    """R152: files of a requeued attempt are not in the result of any job."""
    jobs = [sandbox.submit() for _ in range(2)]
    http_worker = sandbox.http_worker(concurrency=2)
    tasks = http_worker.claim(count=2)
    for task in tasks:
        http_worker.put(task, PNG + b"of a requeued attempt")
        expect_json(http_worker.post_lease("requeue", task, reason="spot"))
    bodies = {task["lease"]["job_id"]: PNG + task["lease"]["task_id"].encode() for task in tasks}
    for task in http_worker.claim(count=2):
        expect_json(
            http_worker.post_lease("complete", task, files=[http_worker.put(task, bodies[task["lease"]["job_id"]])])
        )
    client = sandbox.live_server.client("client")
    for job in jobs:
        (output,) = expect_json(client.get(f"/v1/jobs/{job['id']}/outputs"))["outputs"]
        (file,) = output["files"]
        assert (file["name"], client.get(file["url"]).content) == ("picture.png", bodies[job["id"]])


# -- operators


def test_a_new_worker_waits_for_approval_where_the_server_requires_it(database_url: Any, tmp_path: Any) -> None:
    """R209."""
    with LiveServer(database_url, tmp_path, HttpSettings(require_worker_approval=True)) as live_server:
        sandbox = WorkerSandbox(live_server)
        sandbox.submit()
        http_worker = sandbox.http_worker()
        assert http_worker.registration["approved"] is False
        assert expect_json(http_worker.http.post("/v1/worker/claim", json={}), 403)["code"] == "worker_not_approved"
        assert sandbox.update_worker("w1", approved=True)["status"] == "approved"
        assert len(http_worker.claim()) == 1


def test_a_revoked_worker_is_refused_at_once_and_its_task_is_reassigned(sandbox: WorkerSandbox) -> None:
    """R195, R209, R210."""
    sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    operator = sandbox.live_server.client("operator")
    assert expect_json(operator.post(f"/v1/admin/workers/{sandbox.name('w1')}/revoke"))["status"] == "revoked"
    assert expect_json(http_worker.post_lease("complete", task), 401)["code"] == "invalid_worker_token"
    body = {"worker": sandbox.name("w1"), "kinds": [sandbox.kind]}
    assert (
        expect_json(sandbox.live_server.client("worker").post("/v1/worker/register", json=body), 403)["code"]
        == "worker_revoked"
    )
    assert len(sandbox.http_worker("w2").claim()) == 1
    sandbox.update_worker("w1", approved=True)
    sandbox.http_worker("w1")


def test_a_draining_worker_finishes_its_tasks_and_gets_no_more(sandbox: WorkerSandbox) -> None:
    """R195, R209."""
    sandbox.submit()
    sandbox.submit()
    http_worker = sandbox.http_worker(concurrency=2)
    (task,) = http_worker.claim()
    sandbox.update_worker("w1", draining=True)
    assert expect_json(http_worker.http.post("/v1/worker/claim", json={"wait_seconds": 30})) == {
        "tasks": [],
        "drain": True,
    }
    assert http_worker.heartbeat(task)["drain"] is True
    assert expect_json(http_worker.post_lease("complete", task))["job_status"] == "completed"


def test_a_rotated_token_replaces_the_old_one_and_the_leases_stay(sandbox: WorkerSandbox) -> None:
    """R209, R210."""
    sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    registration = expect_json(
        sandbox.live_server.client("operator").post(f"/v1/admin/workers/{sandbox.name('w1')}/rotate")
    )
    assert expect_json(http_worker.post_lease("complete", task), 401)["code"] == "invalid_worker_token"
    http_worker.http.headers["authorization"] = f"Bearer {registration['token']}"
    assert expect_json(http_worker.post_lease("complete", task))["job_status"] == "completed"


def test_an_operator_sees_workers_their_leases_and_their_audit_log(sandbox: WorkerSandbox) -> None:
    """R199, R208, R276, R277."""
    job = sandbox.submit()
    http_worker = sandbox.http_worker(labels={"zone": "a"}, capabilities={"gpu": "24 GB"}, concurrency=2)
    http_worker.claim()
    sandbox.submit()
    sandbox.live_server.engine.execute(commands.Claim(worker_id=sandbox.name("inside"), kinds=(sandbox.kind,)))
    operator = sandbox.live_server.client("operator")
    found = {worker["worker"]: worker for worker in expect_json(operator.get("/v1/admin/workers"))["workers"]}
    assert (found[sandbox.name("inside")]["status"], found["m1"]["status"]) == ("embedded", "approved")
    mine = found[sandbox.name("w1")]
    assert [lease["job_id"] for lease in mine["leases"]] == [job["id"]]
    assert (mine["labels"], mine["capabilities"], mine["start_count"]) == ({"zone": "a"}, {"gpu": "24 GB"}, 1)
    assert mine["last_seen_at"] is not None
    assert (mine["status"], mine["kinds"], mine["draining"]) == ("approved", [sandbox.kind], False)
    assert sandbox.update_worker("w1", draining=True)["draining"] is True
    entries = expect_json(operator.get("/v1/admin/audit", params={"subject": sandbox.name("w1")}))["entries"]
    assert [entry["action"] for entry in entries] == ["worker.update", "worker.register"]
    assert http_worker.registration["token"] not in operator.get("/v1/admin/workers").text


def test_a_list_of_workers_has_a_limited_number_of_leases(sandbox: WorkerSandbox) -> None:
    """It has the true count and the first leases; the route of one worker has all of them."""
    jobs = [sandbox.submit()["id"] for _ in range(23)]
    http_worker = sandbox.http_worker(concurrency=12)
    mine = [task["lease"]["task_id"] for task in http_worker.claim(count=12)]
    inside = sandbox.name("inside")
    sandbox.live_server.engine.execute(commands.Claim(worker_id=inside, kinds=(sandbox.kind,), count=11))
    operator = sandbox.live_server.client("operator")
    found = {worker["worker"]: worker for worker in expect_json(operator.get("/v1/admin/workers"))["workers"]}
    for name, total in ((sandbox.name("w1"), 12), (inside, 11)):
        assert (found[name]["leases_total"], len(found[name]["leases"])) == (total, 10)
    assert found[inside]["kinds"] == [sandbox.kind]
    whole = expect_json(operator.get(f"/v1/admin/workers/{sandbox.name('w1')}"))
    assert (whole["leases_total"], whole["concurrency"]) == (12, 12)
    assert sorted(lease["task_id"] for lease in whole["leases"]) == sorted(mine)
    assert whole["leases"][:10] == found[sandbox.name("w1")]["leases"]
    assert {lease["job_id"] for lease in whole["leases"]} < set(jobs)


# -- verification


def test_a_setting_decides_whether_a_worker_registers_while_verification_is_unavailable(
    database_url: Any, tmp_path: Any
) -> None:
    """R204."""
    unreachable = "http://127.0.0.1:9/verify"
    body = {"worker": "i-0abc", "kinds": ["draw"]}
    for fail_open, status in ((False, 503), (True, 201)):
        settings = HttpSettings(worker_verify_url=unreachable, worker_verify_fail_open=fail_open)
        with LiveServer(database_url, tmp_path, settings, register_worker=False) as live_server:
            answer = live_server.client("worker").post("/v1/worker/register", json=body)
            assert answer.status_code == status, answer.text


@pytest.mark.parametrize(("decision", "status", "drain"), [("drain", 200, True), ("revoke", 401, None)])
def test_a_waiting_claim_returns_at_once_when_its_worker_is_drained_or_revoked(
    sandbox: WorkerSandbox, decision: str, status: int, drain: bool | None
) -> None:
    http_worker = sandbox.http_worker()
    waiting_claims = sandbox.live_server.callsheet.state.fleet.waiting_claims
    before = waiting_claims.count
    answers: list[httpx.Response] = []

    def wait() -> None:
        answers.append(http_worker.http.post("/v1/worker/claim", json={"wait_seconds": 60}))

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: waiting_claims.count == before + 1)
    if decision == "drain":
        sandbox.update_worker("w1", draining=True)
    else:
        expect_json(sandbox.live_server.client("operator").post(f"/v1/admin/workers/{sandbox.name('w1')}/revoke"))
    waiting.join(20)
    assert [(answer.status_code, answer.json().get("drain")) for answer in answers] == [(status, drain)]


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        ((200, b'{"allowed": true}'), 201, None),
        ((200, b'{"allowed": false}'), 403, "worker_rejected"),
        ((200, b'{"allowed": "perhaps"}'), 503, "worker_verification_unavailable"),
        ((200, b"not JSON"), 503, "worker_verification_unavailable"),
        ((500, b'{"allowed": true}'), 503, "worker_verification_unavailable"),
    ],
)
def test_the_verification_url_decides_whether_a_worker_registers(
    answer: tuple[int, bytes], status: int, code: str | None, tmp_path: Path
) -> None:
    """R204."""
    requests: list[Any] = []

    class RecordingHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(answer[0])
            self.end_headers()
            self.wfile.write(answer[1])

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), RecordingHandler) as verifier:
        threading.Thread(target=verifier.serve_forever, daemon=True).start()
        settings = HttpSettings(worker_verify_url=f"http://127.0.0.1:{verifier.server_port}/")
        with LiveServer(tmp_path / "callsheet.db", tmp_path, settings, register_worker=False) as live_server:
            body = {"worker": "i-0abc", "kinds": ["draw"], "labels": {"zone": "a"}}
            registration = live_server.client("worker").post("/v1/worker/register", json=body)
        verifier.shutdown()
    assert (registration.status_code, registration.json().get("code")) == (status, code)
    assert requests == [{"worker": "i-0abc", "labels": {"zone": "a"}, "capabilities": None, "address": "127.0.0.1"}]
