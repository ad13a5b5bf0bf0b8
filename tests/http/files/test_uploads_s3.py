"""Files in an S3 bucket: the server signs URLs, clients send bytes to the bucket, and unused objects are collected."""

import asyncio
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from callsheet.app import Callsheet
from callsheet.blobs import object_keys
from callsheet.blobs.base import StorageRefusedError
from callsheet.blobs.s3.store import S3Blobs
from callsheet.client import AsyncClient, Client
from callsheet.core.model import commands
from callsheet.core.policy.engine_limits import Limits
from callsheet.dispatch.task_payloads import PREVIEW_BYTES_MAX
from callsheet.engine.loops.orphan_files import OrphanCollector
from callsheet.engine.verify_stored_files import verify_files
from callsheet.settings import BlobSettings, Settings
from tests.http.server_on_each_database import DATABASES, start_server
from tests.http.upload_requests import code, upload_body
from tests.http.worker_sandbox import PNG, WorkerSandbox, output_file_of
from tests.support.doubles.s3_double import ACCESS, BUCKET, REGION, SECRET, S3Double
from tests.support.processes.live_server import TENANT, LiveServer
from tests.support.wait import wait_until

PICTURE = b"\x89PNG\r\n\x1a\n" + random.Random(3).randbytes(600_000)


@pytest.fixture(scope="module")
def double() -> Iterator[S3Double]:
    with S3Double() as made:
        yield made


@pytest.fixture(scope="module", params=DATABASES)
def live_server(
    request: pytest.FixtureRequest, double: S3Double, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """A server that stores files in the S3 double, with its credentials in the environment."""
    double.objects.clear()  # a bucket belongs to one database
    blobs = BlobSettings(url=f"s3://{BUCKET}/prefix", endpoint=double.endpoint, region=REGION)
    with pytest.MonkeyPatch.context() as env:
        env.setenv("AWS_ACCESS_KEY_ID", ACCESS)
        env.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        env.delenv("AWS_SESSION_TOKEN", raising=False)
        with start_server(request, tmp_path_factory.mktemp("bucket"), settings=Settings(blobs=blobs)) as server:
            assert isinstance(server.callsheet.state.blobs, S3Blobs)
            yield server


@pytest.fixture
def client(live_server: LiveServer) -> Iterator[Client]:
    with Client(live_server.url, live_server.keys["client"]) as made:
        yield made


def stored_body(double: S3Double, key: str) -> bytes | None:
    stored = double.objects.get(f"prefix/{key}")
    return stored and stored.body


def test_a_file_is_stored_in_the_bucket_and_read_from_it(
    live_server: LiveServer, double: S3Double, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "sketch.png"
    path.write_bytes(PICTURE)
    file = client.files.upload(path, user="ann")
    assert stored_body(double, object_keys.upload_key(TENANT, file.id)) == PICTURE
    assert client.files.read(file) == client.files.read(file.id) == PICTURE
    assert client.files.download(file, tmp_path / "copy.png").read_bytes() == PICTURE
    assert client.files.delete(file).bytes == len(PICTURE)
    assert stored_body(double, object_keys.upload_key(TENANT, file.id)) is None
    assert code(live_server.client("client").get(file.url)) == (410, "file_gone")


async def _upload_and_read(url: str, key: str) -> tuple[bytes, str]:
    async with AsyncClient(url, key) as client:
        file = await client.files.upload(PICTURE, user="ann", name="a.png")
        return await client.files.read(file), file.status


def test_the_async_client_stores_and_reads_a_file_too(live_server: LiveServer) -> None:
    assert asyncio.run(_upload_and_read(live_server.url, live_server.keys["client"])) == (PICTURE, "ready")


def test_a_download_is_redirected_to_a_signed_url_without_the_secret(
    live_server: LiveServer, double: S3Double, client: Client
) -> None:
    file = client.files.upload(PICTURE, user="ann", name="a.png")
    page = live_server.client("client")
    redirect = page.get(file.url)
    assert (redirect.status_code, redirect.content, redirect.headers["cache-control"]) == (307, b"", "no-store")
    assert redirect.headers["location"].startswith(f"{double.endpoint}/{BUCKET}/prefix/")
    assert SECRET not in redirect.headers["location"]
    got = live_server.client(None).get(redirect.headers["location"], headers={"range": "bytes=1-3"})
    assert (got.status_code, got.content, got.headers["content-type"]) == (206, b"PNG", "image/png")
    assert got.headers["content-disposition"] == 'inline; filename="a.png"'
    tag = f'"{hashlib.sha256(PICTURE).hexdigest()}"'
    assert page.get(file.url, headers={"if-none-match": tag}).status_code == 304
    head = page.head(file.url)
    assert (head.status_code, head.headers["content-length"], head.headers["etag"]) == (200, str(len(PICTURE)), tag)
    user = live_server.client(None).get(file.url, params={"token": live_server.keys["user"]})
    assert user.status_code == 307
    assert code(live_server.client("other client").get(file.url)) == (404, "file_not_found")


def test_a_worker_transfers_files_by_signed_urls_that_expire_with_its_lease(
    live_server: LiveServer, client: Client
) -> None:
    # R214, R233, R239
    uploaded = client.files.upload(PICTURE, user="ann", name="a.png")
    sandbox = WorkerSandbox(live_server)
    sandbox.submit(input={"picture": {"$file": uploaded.id}})
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    grants = http_worker.post_lease("files", task, uploads=[output_file_of(PNG)])
    assert task["input"]["picture"]["$file"] == uploaded.id
    get, put = task["files"][0]["download"], grants.json()["uploads"][0]["upload"]
    assert all(f"X-Amz-Expires={task['lease_seconds']}&" in grant["url"] for grant in (get, put))
    assert not [text for text in (str(task), grants.text, str(http_worker.registration)) if SECRET in text]
    anonymous = live_server.client(None)
    assert anonymous.request(get["method"], get["url"], headers=get["headers"]).content == PICTURE
    assert anonymous.request(put["method"], put["url"], headers=put["headers"], content=PNG).is_success
    assert http_worker.post_lease("complete", task, files=[output_file_of(PNG)]).json()["status"] == "completed"


def test_the_bucket_accepts_only_the_bytes_of_the_signed_url(live_server: LiveServer, double: S3Double) -> None:
    # R163
    new = live_server.client("client").post("/v1/files", json=upload_body(PICTURE)).json()
    upload, outside = new["upload"], live_server.client(None)
    assert upload["url"].startswith(f"{double.endpoint}/{BUCKET}/prefix/")
    for wrong in (PICTURE + b"!", PICTURE[:-1] + b"!"):
        headers = upload["headers"] | {"content-length": str(len(wrong))}
        assert outside.put(upload["url"], headers=headers, content=wrong).status_code >= 400
    finish = f"/v1/files/{new['file']['id']}/finish"
    assert code(live_server.client("client").post(finish)) == (422, "file_not_uploaded")
    assert outside.put(upload["url"], headers=upload["headers"], content=PICTURE).status_code == 200
    assert outside.put(upload["url"], headers=upload["headers"], content=PICTURE).status_code == 412
    assert live_server.client("client").post(finish).json()["status"] == "ready"


def test_bytes_without_a_stored_digest_are_read_to_verify_them(live_server: LiveServer, double: S3Double) -> None:
    for wrong, error in (
        (PICTURE[:-1] + b"!", (422, "digest_mismatch")),
        (b"", (422, "size_mismatch")),
        (None, None),
    ):
        new = live_server.client("client").post("/v1/files", json=upload_body(PICTURE)).json()
        live_server.client(None).put(new["upload"]["url"], headers=new["upload"]["headers"], content=PICTURE)
        name = f"prefix/{object_keys.upload_key(TENANT, new['file']['id'])}"
        stored = double.objects[name]
        double.objects[name] = stored._replace(sha256=None, body=stored.body if wrong is None else wrong)
        done = live_server.client("client").post(f"/v1/files/{new['file']['id']}/finish")
        if error is None:
            assert done.json()["status"] == "ready"
        else:
            assert (code(done), name in double.objects) == (error, False)


def test_an_unavailable_bucket_is_reported_without_secrets(live_server: LiveServer, double: S3Double) -> None:
    new = live_server.client("client").post("/v1/files", json=upload_body(PICTURE)).json()
    double.fail("AccessDenied", 1, "HEAD")
    answer = live_server.client("client").post(f"/v1/files/{new['file']['id']}/finish")
    assert code(answer) == (503, "storage_unavailable")
    assert not {ACCESS, SECRET, BUCKET, double.endpoint} & set(answer.text.split())


def test_a_preview_that_is_too_large_is_not_served(live_server: LiveServer) -> None:
    """A signed S3 PUT cannot limit the size, so the bucket accepts it; the server does not serve it."""
    job = live_server.submit()
    token = live_server.register("painter")["token"]
    worker = live_server.client(None, {"authorization": f"Bearer {token}"})
    (task,) = worker.post("/v1/worker/claim", json={}).json()["tasks"]
    grant = worker.post("/v1/worker/files", json={"lease": task["lease"], "preview": True}).json()["preview"]
    path = f"/v1/jobs/{job['id']}/tasks/{task['lease']['task_id']}/preview"
    for size, status in ((PREVIEW_BYTES_MAX + 1, 404), (PREVIEW_BYTES_MAX, 200)):
        put = live_server.client(None).put(grant["url"], headers=grant["headers"], content=b"x" * size)
        assert (put.status_code, live_server.client("client").get(path).status_code) == (200, status)
    assert live_server.client("client").delete(f"/v1/jobs/{job['id']}").json()["bytes"] == PREVIEW_BYTES_MAX


def test_a_file_limit_above_the_limit_of_s3_is_refused_at_the_start(double: S3Double, tmp_path: Path) -> None:
    blobs = BlobSettings(url=f"s3://{BUCKET}/prefix", endpoint=double.endpoint, region=REGION)
    settings = Settings(blobs=blobs, limits=Limits(file_bytes_max=6 * 1024**3))
    with pytest.raises(StorageRefusedError, match=r"limits.file_bytes_max is 6442450944.*5 GiB"):
        Callsheet(tmp_path / "callsheet.db", tmp_path, settings)


def test_deleting_a_job_deletes_its_objects_and_a_late_upload_is_collected(
    live_server: LiveServer, double: S3Double
) -> None:
    # H27, O8
    live_server.submit()
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w", kinds=("draw",)))
    lease, blobs = leased.lease, live_server.callsheet.state.blobs
    key = object_keys.output_key(TENANT, lease.job_id, lease.task_id, lease.attempt, 1)
    late = blobs.grant_upload(
        key, size=3, sha256=hashlib.sha256(b"abc").hexdigest(), media_type="text/plain", expires_in_seconds=60
    )
    blobs.put(key, b"abc")
    freed = live_server.client("client").delete(f"/v1/jobs/{lease.job_id}").json()
    assert (freed, stored_body(double, key)) == ({"files": 1, "bytes": 3, "pending": False}, None)
    assert live_server.client(None).put(late.url, headers=late.headers, content=b"abc").status_code == 200
    orphans, before = OrphanCollector(live_server.engine.reads, blobs, 0, page=2), set(double.objects)
    while orphans.run_once(live_server.engine.reads.now() + 2_000_000):
        pass
    assert before - set(double.objects) == {f"prefix/{key}"}
    assert verify_files(live_server.engine.reads, blobs) == []


def test_a_canceled_attempt_frees_its_objects(live_server: LiveServer, double: S3Double) -> None:
    # H27
    sandbox = WorkerSandbox(live_server)
    job, worker = sandbox.submit(), sandbox.http_worker()
    (task,) = worker.claim()
    grant = worker.post_lease("files", task, uploads=[output_file_of(PNG)]).json()["uploads"][0]["upload"]
    live_server.client(None).put(grant["url"], headers=grant["headers"], content=PNG).raise_for_status()
    lease = task["lease"]
    key = object_keys.output_key(TENANT, job["id"], lease["task_id"], lease["attempt"], 1)
    assert stored_body(double, key) == PNG
    live_server.client("client").post(f"/v1/jobs/{job['id']}/cancel", json={"grace_seconds": 0}).raise_for_status()
    wait_until(lambda: stored_body(double, key) is None, 20)
