"""The worker protocol over a real socket, said in plain HTTP: what any program would have to send."""

import threading
import time
from typing import Any

import pytest

from callsheet.config import Settings
from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from tests.http.worker_sandbox import PNG, HttpWorker, WorkerSandbox, expect_json
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until


@pytest.fixture
def sandbox(live_server: LiveServer) -> WorkerSandbox:
    return WorkerSandbox(live_server)


# -- the whole way


def test_a_worker_registers_claims_puts_a_file_and_completes(sandbox: WorkerSandbox) -> None:
    """R198, R199, R200, R214, R222, R233, R240 to R246."""
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


def test_what_a_worker_gets_names_no_tenant_and_no_object_key(sandbox: WorkerSandbox) -> None:
    job = sandbox.submit()
    http_worker = sandbox.http_worker()
    raw = http_worker.http.post("/v1/worker/claim", json={})
    assert job["id"] in raw.text
    assert "default" not in raw.text
    assert "jobs/" not in raw.text


def test_a_claim_waits_for_work_and_gets_it_as_soon_as_it_comes(sandbox: WorkerSandbox) -> None:
    """R216."""
    http_worker = sandbox.http_worker()
    assert http_worker.claim() == []
    waiting_claims = sandbox.live_server.callsheet.state.fleet.waiting_claims
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(http_worker.claim(wait_seconds=30)))
    thread.start()
    wait_until(lambda: waiting_claims.count == 1)
    job = sandbox.submit()
    thread.join()
    assert [task["lease"]["job_id"] for task in got] == [job["id"]]


def test_several_tasks_in_one_claim_and_never_more_than_the_worker_can_do(sandbox: WorkerSandbox) -> None:
    """R156."""
    for _ in range(5):
        sandbox.submit()
    http_worker = sandbox.http_worker(concurrency=3)
    assert len(http_worker.claim(count=2)) == 2
    assert len(http_worker.claim(count=5)) == 1
    assert expect_json(http_worker.http.post("/v1/worker/claim", json={}), 409)["code"] == "worker_full"


def test_only_what_is_assigned_is_leased(sandbox: WorkerSandbox) -> None:
    """R46, R188, R209: a kind is a word that a workflow brings, made while the house is open."""
    song = sandbox.workflow(f"sing-{sandbox.mark}")
    sandbox.submit(workflow=song)
    job = sandbox.submit()
    http_worker = sandbox.http_worker("both", sandbox.kind, song, concurrency=5)
    assert sandbox.worker("both", kinds=[sandbox.kind])["kinds"] == [sandbox.kind]
    assert http_worker.claim(count=5, kinds=[song]) == []
    assert [task["lease"]["job_id"] for task in http_worker.claim(count=5)] == [job["id"]]
    sandbox.worker("both", kinds=[])
    assert [task["kind"] for task in http_worker.claim(count=5)] == [song]


def test_a_worker_that_may_take_nothing_waits_like_the_others(sandbox: WorkerSandbox) -> None:
    """Otherwise it would ask again at once, as fast as it can."""
    sandbox.http_worker("w1", sandbox.kind, "something-else")
    sandbox.worker("w1", kinds=["something-else"])
    http_worker = sandbox.http_worker()  # it comes again, and does that no more
    begun = time.monotonic()
    assert http_worker.claim(wait_seconds=0.5) == []
    assert time.monotonic() - begun >= 0.5


# -- coming and going


def test_the_same_name_again_is_a_restart(sandbox: WorkerSandbox) -> None:
    """R202, R203, R210, R212: a new token, the old one fails, what it held is given back."""
    job = sandbox.submit()
    before = sandbox.http_worker()
    (task,) = before.claim()
    after = sandbox.http_worker()
    assert expect_json(before.http.post("/v1/worker/claim", json={}), 401)["code"] == "invalid_key"
    assert expect_json(after.post_lease("complete", task), 409)["code"] == "lease_lost"
    (again,) = after.claim()
    assert (again["lease"]["job_id"], again["lease"]["attempt"]) == (job["id"], 2)


def test_who_goes_gives_back_what_it_held(sandbox: WorkerSandbox) -> None:
    """R211, R212."""
    sandbox.submit()
    http_worker = sandbox.http_worker()
    http_worker.claim()
    assert expect_json(http_worker.http.post("/v1/worker/deregister", json={"reason": "night"})) == {"requeued": 1}
    assert expect_json(http_worker.http.post("/v1/worker/claim", json={}), 401)["code"] == "invalid_key"
    assert len(sandbox.http_worker("w2").claim()) == 1


def test_a_wrong_secret_is_refused_and_after_twenty_a_minute_gets_a_retry_after(sandbox: WorkerSandbox) -> None:
    """R198; a right one from the same address is let in all the same."""
    wrong = sandbox.live_server.client(headers={"authorization": "Bearer cs_wrong"})
    body = {"worker": "w", "kinds": ["draw"]}
    answers = [wrong.post("/v1/worker/register", json=body) for _ in range(21)]
    assert [answer.status_code for answer in answers] == [401] * 20 + [429]
    assert answers[-1].json()["code"] == "too_many_failed_auth"
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
    assert sandbox.live_server.register(sandbox.name("w"))["worker"] == sandbox.name("w")


def test_the_fleet_has_a_cap_and_those_who_go_make_room(database_url: Any, tmp_path: Any) -> None:
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
def test_a_registration_that_makes_no_sense_is_refused(
    sandbox: WorkerSandbox, wrong: dict[str, Any], code: str
) -> None:
    # R199
    body = {"worker": "w", "kinds": ["draw"], **wrong}
    assert expect_json(sandbox.live_server.client("worker").post("/v1/worker/register", json=body), 422)["code"] == code


def test_what_earlier_stages_made_comes_in_pages(sandbox: WorkerSandbox) -> None:
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
