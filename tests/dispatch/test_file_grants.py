"""The addresses that a worker downloads for files: how long they are good, made when, and for which try."""

from typing import Any

import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.http.upload_requests import upload_file
from tests.http.worker_sandbox import PNG, WorkerSandbox, expect_json, output_file_of
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until


@pytest.fixture
def sandbox(live_server: LiveServer) -> WorkerSandbox:
    return WorkerSandbox(live_server)


def set_lease_seconds(sandbox: WorkerSandbox, expires_in_seconds: int) -> None:
    stages = [StageSpec(name="draw", kind=sandbox.kind)]
    sandbox.live_server.engine.execute(
        commands.PutWorkflow(
            definition=WorkflowDefinition(name=sandbox.kind, lease_seconds=expires_in_seconds, stages=stages)
        )
    )


@pytest.mark.parametrize(("lease", "good"), [(300, 300), (900, 900), (5, 60)])
def test_an_address_is_good_for_as_long_as_the_lease_and_never_too_short_to_use(
    sandbox: WorkerSandbox, lease: int, good: int
) -> None:
    """R233, C14: to read and to put, with the task, on request and with a heartbeat."""
    set_lease_seconds(sandbox, lease)
    brought = upload_file(sandbox.live_server)
    sandbox.submit(input={"picture": {"$file": brought["id"]}})
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    wanted: dict[str, Any] = {"downloads": [brought["id"]], "uploads": [output_file_of(PNG)]}
    asked = expect_json(http_worker.post_lease("files", task, **wanted, preview=True))
    beaten = http_worker.heartbeat(task, **wanted)["results"][0]["grants"]
    grants = [task["files"][0]["download"], asked["preview"]]
    grants += [given["download"] for told in (asked, beaten) for given in told["downloads"]]
    grants += [granted["upload"] for told in (asked, beaten) for granted in told["uploads"]]
    assert [grant["expires_in_seconds"] for grant in grants] == [good] * 6


def test_an_address_is_made_when_it_is_given_and_kept_nowhere(sandbox: WorkerSandbox) -> None:
    """R238: it is no part of the job, and a moment later another is given for the same file."""
    brought = upload_file(sandbox.live_server)
    job = sandbox.submit(input={"picture": {"$file": brought["id"]}})
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    first = task["files"][0]["download"]["url"]

    def fresh() -> str:
        (given,) = expect_json(http_worker.post_lease("files", task, downloads=[brought["id"]]))["downloads"]
        return str(given["download"]["url"])

    wait_until(lambda: fresh() != first)
    expect_json(http_worker.post_lease("requeue", task, reason="spot"))
    (again,) = http_worker.claim()
    signed = [url.rpartition("/")[2] for url in (first, again["files"][0]["download"]["url"])]
    assert len({*signed}) == 2
    client = sandbox.live_server.client("client")
    for path in ("", "/input", "/events", "/tasks", f"/tasks/{task['lease']['task_id']}/attempts"):
        assert not any(address in client.get(f"/v1/jobs/{job['id']}{path}").text for address in signed)


def test_an_upload_of_a_stale_worker_does_not_touch_the_result_of_the_next_attempt(sandbox: WorkerSandbox) -> None:
    """R236: its address is of its own try, even before the other one has put anything."""
    job = sandbox.submit()
    http_worker = sandbox.http_worker()
    (stale,) = http_worker.claim()
    late = PNG + b"and too late"
    granted = expect_json(http_worker.post_lease("files", stale, uploads=[output_file_of(late)]))["uploads"][0][
        "upload"
    ]
    expect_json(http_worker.post_lease("requeue", stale, reason="spot"))
    (fresh,) = http_worker.claim()
    http_worker.http.request(granted["method"], granted["url"], content=late, headers=granted["headers"])
    made = http_worker.put(fresh, PNG)
    http_worker.http.request(granted["method"], granted["url"], content=late, headers=granted["headers"])
    expect_json(http_worker.post_lease("complete", fresh, files=[made]))
    client = sandbox.live_server.client("client")
    (output,) = expect_json(client.get(f"/v1/jobs/{job['id']}/outputs"))["outputs"]
    (file,) = output["files"]
    assert client.get(file["url"]).content == PNG
