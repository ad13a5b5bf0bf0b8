"""What an operator does with workers, and what they notice of it."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from callsheet.config import HttpSettings
from callsheet.core import commands
from tests.http.yard import PNG, Yard, said
from tests.support.served import Served
from tests.support.waiting import wait_until


@pytest.fixture
def yard(served: Served) -> Yard:
    return Yard(served)


# -- who calls whom, and what is whose


def test_the_house_never_calls_a_worker(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """R155: whatever there is to say is the answer to a call of the worker's, and it has no address to call."""
    callers: set[str] = set()
    connect = socket.socket.connect

    def noticed(self: socket.socket, address: Any) -> None:
        callers.add(threading.current_thread().name)
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", noticed)
    body = {"worker": yard.name("w1"), "kinds": [yard.kind], "url": "http://127.0.0.1:9/"}
    assert said(yard.served.client("worker").post("/v1/worker/register", json=body), 422)["code"] == "invalid_body"
    job, _ = yard.submit(), yard.submit()
    machine = yard.machine(concurrency=2)
    tasks = machine.claim(count=2)
    yard.served.client("client").post(f"/v1/jobs/{job['id']}/cancel", json={"grace_seconds": 60}).raise_for_status()
    yard.worker("w1", draining=True)
    beaten = machine.beat(*tasks)
    assert (sorted(beat["cancel"] for beat in beaten["beats"]), beaten["drain"]) == ([False, True], True)
    said(yard.served.client("operator").post(f"/v1/admin/workers/{yard.name('w1')}/revoke"))
    assert said(machine.say("complete", tasks[0]), 401)["code"] == "invalid_key"
    assert callers == {threading.current_thread().name}


def test_files_of_one_name_stay_those_of_their_own_job_and_try(yard: Yard) -> None:
    """R152: what a lost try put is nobody's result, and no other job's either."""
    jobs = [yard.submit() for _ in range(2)]
    machine = yard.machine(concurrency=2)
    tasks = machine.claim(count=2)
    for task in tasks:
        machine.put(task, PNG + b"of a try that is given back")
        said(machine.say("requeue", task, reason="spot"))
    bodies = {task["lease"]["job_id"]: PNG + task["lease"]["task_id"].encode() for task in tasks}
    for task in machine.claim(count=2):
        said(machine.say("complete", task, files=[machine.put(task, bodies[task["lease"]["job_id"]])]))
    client = yard.served.client("client")
    for job in jobs:
        (output,) = said(client.get(f"/v1/jobs/{job['id']}/outputs"))["outputs"]
        (file,) = output["files"]
        assert (file["name"], client.get(file["url"]).content) == ("picture.png", bodies[job["id"]])


# -- what an operator does


def test_a_new_worker_waits_for_approval_where_the_house_wants_it(place: Any, tmp_path: Any) -> None:
    """R195, R209."""
    with Served(place, tmp_path, HttpSettings(worker_approval=True)) as served:
        yard = Yard(served)
        yard.submit()
        machine = yard.machine()
        assert machine.told["approved"] is False
        assert said(machine.http.post("/v1/worker/claim", json={}), 403)["code"] == "worker_not_approved"
        assert yard.worker("w1", approved=True)["status"] == "approved"
        assert len(machine.claim()) == 1


def test_a_revoked_worker_is_out_at_once_and_its_work_is_anothers(yard: Yard) -> None:
    """R210, weak point 17 of the original."""
    yard.submit()
    machine = yard.machine()
    (task,) = machine.claim()
    operator = yard.served.client("operator")
    assert said(operator.post(f"/v1/admin/workers/{yard.name('w1')}/revoke"))["status"] == "revoked"
    assert said(machine.say("complete", task), 401)["code"] == "invalid_key"
    body = {"worker": yard.name("w1"), "kinds": [yard.kind]}
    assert said(yard.served.client("worker").post("/v1/worker/register", json=body), 403)["code"] == "worker_revoked"
    assert len(yard.machine("w2").claim()) == 1
    yard.worker("w1", approved=True)
    yard.machine("w1")


def test_a_draining_worker_finishes_what_it_holds_and_gets_no_more(yard: Yard) -> None:
    """R195."""
    yard.submit()
    yard.submit()
    machine = yard.machine(concurrency=2)
    (task,) = machine.claim()
    yard.worker("w1", draining=True)
    assert said(machine.http.post("/v1/worker/claim", json={"wait_seconds": 30})) == {"tasks": [], "drain": True}
    assert machine.beat(task)["drain"] is True
    assert said(machine.say("complete", task))["job_status"] == "completed"


def test_a_rotated_token_replaces_the_old_one_and_the_leases_stay(yard: Yard) -> None:
    """R210."""
    yard.submit()
    machine = yard.machine()
    (task,) = machine.claim()
    told = said(yard.served.client("operator").post(f"/v1/admin/workers/{yard.name('w1')}/rotate"))
    assert said(machine.say("complete", task), 401)["code"] == "invalid_key"
    machine.http.headers["authorization"] = f"Bearer {told['token']}"
    assert said(machine.say("complete", task))["job_status"] == "completed"


def test_an_operator_sees_who_is_here_what_they_hold_and_what_was_done_to_them(yard: Yard) -> None:
    """R208, R276, R277."""
    job = yard.submit()
    machine = yard.machine(labels={"zone": "a"}, capabilities={"gpu": "24 GB"}, concurrency=2)
    machine.claim()
    yard.submit()
    yard.served.engine.execute(commands.Claim(worker_id=yard.name("inside"), kinds=(yard.kind,)))
    operator = yard.served.client("operator")
    found = {worker["worker"]: worker for worker in said(operator.get("/v1/admin/workers"))["workers"]}
    assert (found[yard.name("inside")]["status"], found["m1"]["status"]) == ("embedded", "approved")
    mine = found[yard.name("w1")]
    assert [lease["job_id"] for lease in mine["leases"]] == [job["id"]]
    assert (mine["labels"], mine["capabilities"], mine["starts"]) == ({"zone": "a"}, {"gpu": "24 GB"}, 1)
    assert mine["seen_at"] is not None
    assert (mine["status"], mine["kinds"], mine["draining"]) == ("approved", [yard.kind], False)
    assert yard.worker("w1", draining=True)["draining"] is True
    lines = said(operator.get("/v1/admin/audit", params={"subject": yard.name("w1")}))["lines"]
    assert [line["action"] for line in lines] == ["worker.set", "worker.register"]
    assert machine.told["token"] not in operator.get("/v1/admin/workers").text


def test_a_list_of_workers_is_bounded_however_much_they_hold(yard: Yard) -> None:
    """The count is true, the first leases are there, and the worker's own address has them all."""
    jobs = [yard.submit()["id"] for _ in range(23)]
    machine = yard.machine(concurrency=12)
    mine = [task["lease"]["task_id"] for task in machine.claim(count=12)]
    inside = yard.name("inside")
    yard.served.engine.execute(commands.Claim(worker_id=inside, kinds=(yard.kind,), count=11))
    operator = yard.served.client("operator")
    found = {worker["worker"]: worker for worker in said(operator.get("/v1/admin/workers"))["workers"]}
    for name, held in ((yard.name("w1"), 12), (inside, 11)):
        assert (found[name]["held"], len(found[name]["leases"])) == (held, 10)
    assert found[inside]["kinds"] == [yard.kind]
    whole = said(operator.get(f"/v1/admin/workers/{yard.name('w1')}"))
    assert (whole["held"], whole["concurrency"]) == (12, 12)
    assert sorted(lease["task_id"] for lease in whole["leases"]) == sorted(mine)
    assert whole["leases"][:10] == found[yard.name("w1")]["leases"]
    assert {lease["job_id"] for lease in whole["leases"]} < set(jobs)


# -- is it one of ours


def test_a_machine_that_is_not_ours_is_refused_and_an_answer_that_does_not_come_is_a_setting(
    place: Any, tmp_path: Any
) -> None:
    """R204."""
    dead = "http://127.0.0.1:9/verify"
    body = {"worker": "i-0abc", "kinds": ["draw"]}
    for opened, status in ((False, 503), (True, 201)):
        settings = HttpSettings(worker_verify_url=dead, worker_verify_open=opened)
        with Served(place, tmp_path, settings, machine=False) as served:
            answer = served.client("worker").post("/v1/worker/register", json=body)
            assert answer.status_code == status, answer.text


@pytest.mark.parametrize(("decision", "status", "drain"), [("drain", 200, True), ("revoke", 401, None)])
def test_a_worker_that_waits_hears_at_once_what_was_decided_about_it(
    yard: Yard, decision: str, status: int, drain: bool | None
) -> None:
    machine = yard.machine()
    room = yard.served.callsheet.house.fleet.room
    before = room.count
    got: list[httpx.Response] = []

    def wait() -> None:
        got.append(machine.http.post("/v1/worker/claim", json={"wait_seconds": 60}))

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: room.count == before + 1)
    if decision == "drain":
        yard.worker("w1", draining=True)
    else:
        said(yard.served.client("operator").post(f"/v1/admin/workers/{yard.name('w1')}/revoke"))
    waiting.join(20)
    assert [(answer.status_code, answer.json().get("drain")) for answer in got] == [(status, drain)]


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        ((200, b'{"allowed": true}'), 201, None),
        ((200, b'{"allowed": false}'), 403, "worker_not_ours"),
        ((200, b'{"allowed": "perhaps"}'), 503, "worker_not_verified"),
        ((200, b"not JSON"), 503, "worker_not_verified"),
        ((500, b'{"allowed": true}'), 503, "worker_not_verified"),
    ],
)
def test_the_address_that_knows_our_machines_is_asked_and_believed(
    answer: tuple[int, bytes], status: int, code: str | None, tmp_path: Path
) -> None:
    """R204."""
    asked: list[Any] = []

    class Knows(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(answer[0])
            self.end_headers()
            self.wfile.write(answer[1])

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Knows) as knows:
        threading.Thread(target=knows.serve_forever, daemon=True).start()
        settings = HttpSettings(worker_verify_url=f"http://127.0.0.1:{knows.server_port}/")
        with Served(tmp_path / "callsheet.db", tmp_path, settings, machine=False) as served:
            body = {"worker": "i-0abc", "kinds": ["draw"], "labels": {"zone": "a"}}
            told = served.client("worker").post("/v1/worker/register", json=body)
        knows.shutdown()
    assert (told.status_code, told.json().get("code")) == (status, code)
    assert asked == [{"worker": "i-0abc", "labels": {"zone": "a"}, "capabilities": None, "address": "127.0.0.1"}]
