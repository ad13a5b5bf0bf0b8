"""Signed URLs for workers: their lifetime, when they are signed, and the attempt they belong to."""

from typing import Any

import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.http.upload_requests import upload_file
from tests.http.worker_sandbox import PNG, WorkerSandbox, expect_json, output_file_of
from tests.support.wait import wait_until


def set_lease_seconds(sandbox: WorkerSandbox, lease_seconds: int) -> None:
    stages = [StageSpec(name="draw", kind=sandbox.kind)]
    sandbox.live_server.engine.execute(
        commands.PutWorkflow(
            definition=WorkflowDefinition(name=sandbox.kind, lease_seconds=lease_seconds, stages=stages)
        )
    )


@pytest.mark.parametrize(("lease_seconds", "valid_seconds"), [(300, 300), (900, 900), (5, 60)])
def test_a_signed_url_is_valid_as_long_as_the_lease_and_at_least_a_minute(
    sandbox: WorkerSandbox, lease_seconds: int, valid_seconds: int
) -> None:
    """R233, C14: for downloads and uploads, with the task, on request and with a heartbeat."""
    set_lease_seconds(sandbox, lease_seconds)
    uploaded = upload_file(sandbox.live_server)
    sandbox.submit(input={"picture": {"$file": uploaded["id"]}})
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    wanted: dict[str, Any] = {"downloads": [uploaded["id"]], "uploads": [output_file_of(PNG)]}
    requested = expect_json(http_worker.post_lease("files", task, **wanted, preview=True))
    renewed = http_worker.heartbeat(task, **wanted)["results"][0]["grants"]
    grants = [task["files"][0]["download"], requested["preview"]]
    grants += [grant["download"] for answer in (requested, renewed) for grant in answer["downloads"]]
    grants += [grant["upload"] for answer in (requested, renewed) for grant in answer["uploads"]]
    assert [grant["expires_in_seconds"] for grant in grants] == [valid_seconds] * 6


def test_a_download_url_is_signed_at_each_request_and_never_stored(sandbox: WorkerSandbox) -> None:
    """R238."""
    uploaded = upload_file(sandbox.live_server)
    job = sandbox.submit(input={"picture": {"$file": uploaded["id"]}})
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    first = task["files"][0]["download"]["url"]

    def request_url() -> str:
        (grant,) = expect_json(http_worker.post_lease("files", task, downloads=[uploaded["id"]]))["downloads"]
        return str(grant["download"]["url"])

    wait_until(lambda: request_url() != first)
    expect_json(http_worker.post_lease("requeue", task, reason="spot"))
    (next_task,) = http_worker.claim()
    signed = [url.rpartition("/")[2] for url in (first, next_task["files"][0]["download"]["url"])]
    assert len({*signed}) == 2
    client = sandbox.live_server.client("client")
    for path in ("", "/input", "/events", "/tasks", f"/tasks/{task['lease']['task_id']}/attempts"):
        assert not any(url in client.get(f"/v1/jobs/{job['id']}{path}").text for url in signed)


def test_an_upload_of_a_stale_worker_does_not_touch_the_result_of_the_next_attempt(sandbox: WorkerSandbox) -> None:
    """R236: its upload URL belongs to its own attempt."""
    job = sandbox.submit()
    http_worker = sandbox.http_worker()
    (stale,) = http_worker.claim()
    late = PNG + b"too late"
    granted = expect_json(http_worker.post_lease("files", stale, uploads=[output_file_of(late)]))["uploads"][0][
        "upload"
    ]
    expect_json(http_worker.post_lease("requeue", stale, reason="spot"))
    (current,) = http_worker.claim()
    http_worker.http.request(granted["method"], granted["url"], content=late, headers=granted["headers"])
    uploaded = http_worker.put(current, PNG)
    http_worker.http.request(granted["method"], granted["url"], content=late, headers=granted["headers"])
    expect_json(http_worker.post_lease("complete", current, files=[uploaded]))
    client = sandbox.live_server.client("client")
    (output,) = expect_json(client.get(f"/v1/jobs/{job['id']}/outputs"))["outputs"]
    (file,) = output["files"]
    assert client.get(file["url"]).content == PNG
