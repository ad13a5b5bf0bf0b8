"""Files in the input of a job: which ones a job may use, and what a reference to another file answers."""

import hashlib
from collections.abc import Callable

import pytest

from callsheet.blobs import object_keys
from callsheet.core.model import commands
from callsheet.core.model.commands import OutputFile
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.http.job_requests import UNKNOWN_ID
from tests.http.upload_requests import (
    OPEN,
    PICTURE,
    code,
    create_upload,
    input_with_files,
    upload_file,
)
from tests.support.databases.database_contents import database_contents
from tests.support.processes.live_server import TENANT, LiveServer


def test_a_job_uses_files_that_its_user_uploaded_or_that_the_users_jobs_made(live_server: LiveServer) -> None:
    # R165
    file = upload_file(live_server)
    live_server.engine.execute(
        commands.PutWorkflow(definition=WorkflowDefinition(name="once", stages=[StageSpec(name="d", kind="once")]))
    )
    live_server.submit(workflow="once", input=input_with_files(file["id"]))
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w", kinds=("once",)))
    lease = leased.lease
    live_server.blobs.put(object_keys.output_key(TENANT, lease.job_id, lease.task_id, lease.attempt, 1), PICTURE)
    made = OutputFile(1, "b.png", "image/png", len(PICTURE), hashlib.sha256(PICTURE).hexdigest())
    live_server.engine.execute(commands.Complete(lease=lease, files=(made,)))
    [output] = live_server.client("client").get(f"/v1/jobs/{lease.job_id}/outputs").json()["outputs"]
    assert (output["files"][0]["job_id"], output["files"][0]["status"]) == (lease.job_id, "ready")
    job = live_server.submit(input=input_with_files(file["id"], output["files"][0]["id"]))
    assert job["status"] == "queued"
    live_server.client("client").post(f"/v1/jobs/{job['id']}/cancel", json={"grace_seconds": 0}).raise_for_status()


def deleted(live_server: LiveServer) -> str:
    file = upload_file(live_server)
    live_server.client("client").delete(file["url"]).raise_for_status()
    return str(file["id"])


MakeFileId = Callable[[LiveServer], str]
UNUSABLE_FILES: dict[str, tuple[MakeFileId, tuple[int, str]]] = {
    "another user's": (lambda live_server: str(upload_file(live_server, user="bob")["id"]), (404, "file_not_found")),
    "another tenant's": (
        lambda live_server: str(upload_file(live_server, role="other client")["id"]),
        (404, "file_not_found"),
    ),
    "unknown": (lambda _: UNKNOWN_ID, (404, "file_not_found")),
    "not an id": (lambda _: "'; DROP TABLE file; --", (404, "file_not_found")),
    "deleted": (deleted, (404, "file_not_found")),
    "unfinished": (lambda live_server: str(create_upload(live_server)["file"]["id"]), (409, "file_not_finished")),
}


@pytest.mark.parametrize("whose", UNUSABLE_FILES)
def test_a_job_cannot_use_files_of_others_or_missing_files(live_server: LiveServer, whose: str) -> None:
    # R169
    make, refusal = UNUSABLE_FILES[whose]
    live_server.engine.execute(commands.PutWorkflow(definition=OPEN))
    client = live_server.client("client")
    name, mine = make(live_server), upload_file(live_server)["id"]
    job = live_server.submit(workflow="open", stages=[{"name": "s", "kind": "never"}])
    before = database_contents(live_server)
    body = {"workflow": "sketch", "user": "ann", "input": input_with_files(mine, name)}
    assert code(client.post("/v1/jobs", json=body)) == refusal
    stage = {"name": "t", "kind": "never", "inputs": [input_with_files(mine), input_with_files(name)]}
    assert code(client.post("/v1/jobs", json={"workflow": "open", "user": "ann", "stages": [stage]})) == refusal
    assert (
        code(
            client.post(
                f"/v1/jobs/{job['id']}/stages/1/tasks",
                json={"inputs": [input_with_files(mine), input_with_files(name)]},
            )
        )
        == refusal
    )
    assert code(client.post(f"/v1/jobs/{job['id']}/stages", json={"stage": stage})) == refusal
    assert database_contents(live_server) == before
    bulk = client.post("/v1/jobs/bulk", json={"jobs": [body, {**body, "input": input_with_files(mine)}]}).json()[
        "results"
    ]
    assert [one["status"] for one in bulk] == [refusal[0], 201]
    assert bulk[0]["problem"]["code"] == refusal[1]
    for ended in (job["id"], bulk[1]["job_id"]):
        client.post(f"/v1/jobs/{ended}/cancel", json={"grace_seconds": 0}).raise_for_status()
