"""Deleting files and the files of a deleted job, over HTTP."""

import pytest

from callsheet.blobs import object_keys
from callsheet.blobs.base import DeleteSummary, StorageUnavailableError
from callsheet.blobs.local import LocalBlobs
from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.engine.loops.orphan_files import OrphanCollector
from tests.http.upload_requests import PICTURE, code, create_upload, finish, input_with_files, key_of, upload_file
from tests.support.processes.live_server import TENANT, LiveServer


def test_deleting_a_file_removes_its_bytes(live_server: LiveServer) -> None:
    file = upload_file(live_server)
    client = live_server.client("client")
    assert client.delete(file["url"]).json() == {"files": 1, "bytes": len(PICTURE), "pending": False}
    assert live_server.blobs.stat(key_of(file)) is None
    assert code(client.get(file["url"])) == (410, "file_gone")
    assert client.get(file["url"] + "/info").json()["status"] == "deleted"
    assert code(live_server.client("other client").get(file["url"])) == (404, "file_not_found")
    assert code(client.delete(file["url"])) == code(finish(live_server, file["id"])) == (404, "file_not_found")


def test_a_file_that_an_open_job_needs_is_not_deleted(live_server: LiveServer) -> None:
    file = upload_file(live_server)
    job = live_server.submit(input=input_with_files(file["id"]))
    client = live_server.client("client")
    assert code(client.delete(file["url"])) == (409, "file_in_use")
    client.post(f"/v1/jobs/{job['id']}/cancel", json={"grace_seconds": 0}).raise_for_status()
    assert client.delete(file["url"]).json()["files"] == 1


def test_deleting_a_file_without_bytes_frees_nothing(live_server: LiveServer) -> None:
    file = create_upload(live_server)["file"]
    assert live_server.client("client").delete(file["url"]).json() == {"files": 0, "bytes": 0, "pending": False}


def claim_job_with_files(live_server: LiveServer) -> commands.Lease:
    live_server.engine.execute(
        commands.PutWorkflow(
            definition=WorkflowDefinition(name="deleted", stages=[StageSpec(name="d", kind="deleted")])
        )
    )
    live_server.submit(workflow="deleted")
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w", kinds=("deleted",)))
    lease: commands.Lease = leased.lease
    for no in (1, 2):
        live_server.blobs.put(object_keys.output_key(TENANT, lease.job_id, lease.task_id, lease.attempt, no), PICTURE)
    live_server.blobs.put(object_keys.preview_key(TENANT, lease.job_id, lease.task_id, lease.attempt), b"small")
    return lease


def test_deleting_a_job_returns_what_it_freed_and_a_late_upload_is_collected(live_server: LiveServer) -> None:
    # H27, R365
    lease, client = claim_job_with_files(live_server), live_server.client("client")
    other_file = upload_file(live_server)
    freed = client.delete(f"/v1/jobs/{lease.job_id}")
    assert (freed.status_code, freed.json()) == (200, {"files": 3, "bytes": 2 * len(PICTURE) + 5, "pending": False})
    assert client.delete(f"/v1/jobs/{lease.job_id}").json() == {"files": 0, "bytes": 0, "pending": False}
    prefix = object_keys.job_prefix(TENANT, lease.job_id)
    late = object_keys.output_key(TENANT, lease.job_id, lease.task_id, lease.attempt, 1)
    live_server.blobs.put(late, PICTURE)
    assert [one.key for one in live_server.blobs.list(prefix, "", 9)] == [late]
    orphans = OrphanCollector(live_server.engine.reads, live_server.blobs, 0)
    while orphans.run_once(live_server.engine.reads.now() + 1_000_000):
        pass
    assert live_server.blobs.list(prefix, "", 9) == []
    assert client.get(other_file["url"]).content == PICTURE


class FailingBlobs(LocalBlobs):
    """A blob store that cannot delete."""

    def delete_prefix(self, prefix: str) -> DeleteSummary:
        raise StorageUnavailableError(f"Not now: {len(prefix)}.")


def test_a_job_is_deleted_although_the_storage_is_unavailable(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R364, R366
    faults: list[Exception] = []
    lease, state = claim_job_with_files(live_server), live_server.callsheet.state
    monkeypatch.setattr(state, "report_error", lambda _id, error: faults.append(error))
    with monkeypatch.context() as unavailable:
        unavailable.setattr(state.file_deletion, "_blobs", FailingBlobs(live_server.blobs.path("t").parent))
        answer = live_server.client("client").delete(f"/v1/jobs/{lease.job_id}")
    assert (answer.status_code, answer.json()) == (200, {"files": 0, "bytes": 0, "pending": True})
    assert [type(fault) for fault in faults] == [StorageUnavailableError]
    assert live_server.client("client").get(f"/v1/jobs/{lease.job_id}").status_code == 404
    assert live_server.client("client").delete(f"/v1/jobs/{lease.job_id}").json()["files"] == 3
