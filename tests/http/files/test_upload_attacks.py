"""Attacks on the file storage over a real socket: hoarded announcements, parallel and late uploads."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callsheet.core.policy.engine_limits import Limits
from callsheet.settings import Settings
from tests.http.server_on_each_database import DATABASES, start_server
from tests.http.upload_requests import PICTURE, code, create_upload, finish, key_of, put, upload_body, upload_file
from tests.http.worker_sandbox import PNG, WorkerSandbox, expect_json, output_file_of
from tests.support.processes.live_server import TENANT, LiveServer
from tests.support.wait import wait_until

GIGABYTE = 1024**3
MEGABYTE = 1024**2
LIMITS = Limits(uploads_pending_max=10_000, pending_bytes_max=20 * GIGABYTE, storage_bytes_max=30 * GIGABYTE)


@pytest.fixture(scope="module", params=DATABASES)
def live_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with small quotas and no limit on the number of uploads."""
    with start_server(request, tmp_path_factory.mktemp("attacked"), settings=Settings(limits=LIMITS)) as server:
        yield server


def incoming_bytes(live_server: LiveServer) -> int:
    """Return the size of the uploads that are being written."""
    folder: Path = live_server.blobs.path("x").parent / ".incoming"
    return sum(path.stat().st_size for path in folder.iterdir()) if folder.exists() else 0


class SlowUpload:
    """An upload that sends its bytes only when it is called."""

    def __init__(self, live_server: LiveServer, upload: dict[str, Any], size: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", int(live_server.url.rpartition(":")[2])), timeout=30)
        head = (
            f"PUT {upload['url']} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {upload['headers']['content-type']}\r\n"
            f"Content-Length: {size}\r\n\r\n"
        )
        self.send(head.encode())

    def send(self, body: bytes) -> None:
        self._socket.sendall(body)

    def receive(self) -> bytes:
        """Return the response and close the connection."""
        with self._socket:
            return self._socket.recv(65_536)


def test_announced_bytes_of_a_tenant_are_limited(live_server: LiveServer) -> None:
    client = live_server.client("other client")
    body = {**upload_body(), "bytes": 4 * GIGABYTE, "user": "hoarder"}
    answers = [client.post("/v1/files", json=body) for _ in range(200)]
    assert [answer.status_code for answer in answers] == [201] * 5 + [429] * 195
    refused = answers[-1]
    assert (refused.json()["code"], refused.headers["retry-after"]) == ("too_many_pending_bytes", "5")
    details = {"limit": "pending_bytes_max", "used": 20 * GIGABYTE, "requested": 4 * GIGABYTE, "max": 20 * GIGABYTE}
    assert details.items() <= refused.json().items()
    operator = live_server.client("operator")
    storage = expect_json(operator.get("/v1/admin/tenants/other"))["storage"]
    assert storage == {
        "stored_bytes": 0, "pending_bytes": 20 * GIGABYTE, "storage_bytes_max": 30 * GIGABYTE,
        "pending_bytes_max": 20 * GIGABYTE,
    }  # fmt: skip
    assert client.delete(f"/v1/files/{answers[0].json()['file']['id']}").status_code == 200
    assert client.post("/v1/files", json=body).status_code == 201
    assert live_server.client("client").post("/v1/files", json=upload_body()).status_code == 201, "another tenant"
    missing = operator.get("/v1/admin/tenants/missing")
    assert code(missing) == (404, "tenant_not_found")


def test_one_of_many_parallel_uploads_to_a_url_is_written_and_the_others_are_refused(live_server: LiveServer) -> None:
    body = b"\x89PNG\r\n\x1a\n" + b"x" * (2 * MEGABYTE)
    new = create_upload(live_server, body)
    first = SlowUpload(live_server, new["upload"], len(body))
    first.send(body[:MEGABYTE])
    wait_until(lambda: incoming_bytes(live_server) > 0)
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(put(live_server, new["upload"], body))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {code(answer) for answer in answers} == {(429, "upload_in_progress")}
    assert {answer.headers["retry-after"] for answer in answers} == {"1"}
    assert incoming_bytes(live_server) <= len(body)
    first.send(body[MEGABYTE:])
    assert first.receive().startswith(b"HTTP/1.1 204")
    assert finish(live_server, new["file"]["id"]).status_code == 200
    assert incoming_bytes(live_server) == 0


def test_the_url_of_a_deleted_file_accepts_no_bytes(live_server: LiveServer) -> None:
    new = create_upload(live_server)
    live_server.client("client").delete(f"/v1/files/{new['file']['id']}").raise_for_status()
    assert code(put(live_server, new["upload"])) == (410, "file_gone")
    assert not live_server.blobs.exists(key_of(new["file"]))
    stored = upload_file(live_server)
    live_server.client("client").delete(f"/v1/files/{stored['id']}").raise_for_status()
    assert not live_server.blobs.exists(key_of(stored))


def test_a_file_that_is_deleted_during_its_upload_leaves_no_bytes(live_server: LiveServer) -> None:
    new = create_upload(live_server)
    upload = SlowUpload(live_server, new["upload"], len(PICTURE))
    upload.send(PICTURE[:-1])
    wait_until(lambda: any((live_server.blobs.path("x").parent / ".incoming").iterdir()))
    live_server.client("client").delete(f"/v1/files/{new['file']['id']}").raise_for_status()
    upload.send(PICTURE[-1:])
    assert upload.receive().startswith(b"HTTP/1.1 410")
    assert not live_server.blobs.exists(key_of(new["file"]))
    assert incoming_bytes(live_server) == 0


def test_a_worker_cannot_upload_after_its_attempt_has_ended(live_server: LiveServer) -> None:
    sandbox = WorkerSandbox(live_server)
    job, worker = sandbox.submit(), sandbox.http_worker()
    (task,) = worker.claim()
    grants = expect_json(worker.post_lease("files", task, uploads=[output_file_of(PNG)], preview=True))
    worker.put(task, PNG, no=2)
    running = SlowUpload(live_server, grants["uploads"][0]["upload"], len(PNG))
    running.send(PNG[:-1])
    prefix = f"{TENANT}/jobs/{job['id']}/"
    assert len(live_server.blobs.list(prefix, "", 10)) == 1
    live_server.client("client").post(f"/v1/jobs/{job['id']}/cancel", json={"grace_seconds": 0}).raise_for_status()
    wait_until(lambda: live_server.blobs.list(prefix, "", 10) == [], 20)
    running.send(PNG[-1:])
    assert running.receive().startswith(b"HTTP/1.1 410")
    preview = worker.http.put(grants["preview"]["url"], content=PNG, headers=grants["preview"]["headers"])
    assert code(preview) == (410, "file_gone")
    assert live_server.blobs.list(prefix, "", 10) == []


def test_deleting_a_running_job_frees_its_bytes_and_says_how_many(live_server: LiveServer) -> None:
    sandbox = WorkerSandbox(live_server)
    job, worker = sandbox.submit(), sandbox.http_worker()
    (task,) = worker.claim()
    worker.put(task, PNG)
    assert expect_json(live_server.client("client").delete(f"/v1/jobs/{job['id']}")) == {
        "files": 1, "bytes": len(PNG), "pending": False,
    }  # fmt: skip
    assert live_server.blobs.list(f"{TENANT}/jobs/{job['id']}/", "", 10) == []


def test_a_worker_gets_no_url_for_bytes_over_the_quota(live_server: LiveServer) -> None:
    sandbox = WorkerSandbox(live_server)
    sandbox.submit()
    worker = sandbox.http_worker()
    (task,) = worker.claim()
    live_server.client("operator").put(f"/v1/admin/tenants/{TENANT}", json={"storage_bytes_max": 0}).raise_for_status()
    try:
        refused = worker.post_lease("files", task, uploads=[output_file_of(PNG)])
        assert (code(refused), refused.json()["limit"]) == ((409, "storage_quota_exceeded"), "storage_bytes_max")
        answer = worker.heartbeat(task, uploads=[output_file_of(PNG)])["results"][0]
        assert (answer["lease_seconds"] > 0, answer["grants_error"]["code"]) == (True, "storage_quota_exceeded")
    finally:
        live_server.client("operator").put(f"/v1/admin/tenants/{TENANT}", json={"storage_bytes_max": None})
    assert worker.post_lease("files", task, uploads=[output_file_of(PNG)]).status_code == 200
