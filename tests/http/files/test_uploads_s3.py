"""Files in a bucket, end to end: the house signs, the bytes go past it, and what nobody needs is collected."""

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
from callsheet.config import BlobSettings, Settings
from callsheet.core.model import commands
from callsheet.core.policy.engine_limits import Limits
from callsheet.dispatch.task_payloads import PREVIEW_BYTES_MAX
from callsheet.engine.loops.orphan_files import OrphanCollector
from callsheet.engine.stored_files_check import verify_files
from tests.http.upload_requests import code, upload_body
from tests.http.worker_sandbox import PNG, WorkerSandbox, output_file_of
from tests.support.databases.database_pool import DatabasePool
from tests.support.doubles.s3_double import ACCESS, BUCKET, REGION, SECRET, S3Double
from tests.support.processes.live_server import TENANT, LiveServer

PICTURE = b"\x89PNG\r\n\x1a\n" + random.Random(3).randbytes(600_000)


@pytest.fixture(scope="module")
def double() -> Iterator[S3Double]:
    with S3Double() as made:
        yield made


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def live_server(
    request: pytest.FixtureRequest, double: S3Double, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """A server that keeps files in the double; its keys are in the environment, as they would be."""
    data: Path = tmp_path_factory.mktemp("bucket")
    blobs = BlobSettings(url=f"s3://{BUCKET}/house", endpoint=double.endpoint, region=REGION)
    database_pool: DatabasePool | None = (
        request.getfixturevalue("database_pool") if request.param == "postgresql" else None
    )
    database_url = database_pool.acquire() if database_pool else str(data / "callsheet.db")
    with pytest.MonkeyPatch.context() as env:
        env.setenv("AWS_ACCESS_KEY_ID", ACCESS)
        env.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        env.delenv("AWS_SESSION_TOKEN", raising=False)
        with LiveServer(database_url, data, settings=Settings(blobs=blobs)) as made:
            assert isinstance(made.callsheet.state.blobs, S3Blobs)
            yield made
    if database_pool:
        database_pool.release(database_url)


@pytest.fixture
def client(live_server: LiveServer) -> Iterator[Client]:
    with Client(live_server.url, live_server.keys["client"]) as made:
        yield made


def stored_body(double: S3Double, key: str) -> bytes | None:
    stored = double.objects.get(f"house/{key}")
    return stored and stored.body


def test_a_file_goes_to_the_bucket_and_comes_from_it(
    live_server: LiveServer, double: S3Double, client: Client, tmp_path: Path
) -> None:
    # R163
    path = tmp_path / "sketch.png"
    path.write_bytes(PICTURE)
    file = client.files.upload(path, user="ann")
    assert stored_body(double, object_keys.upload_key(TENANT, file.id)) == PICTURE
    assert client.files.read(file) == client.files.read(file.id) == PICTURE
    assert client.files.download(file, tmp_path / "copy.png").read_bytes() == PICTURE
    assert client.files.delete(file).bytes == len(PICTURE)
    assert stored_body(double, object_keys.upload_key(TENANT, file.id)) is None
    assert code(live_server.client("client").get(file.url)) == (410, "file_gone")


async def _both_ways(url: str, key: str) -> tuple[bytes, str]:
    async with AsyncClient(url, key) as client:
        file = await client.files.upload(PICTURE, user="ann", name="a.png")
        return await client.files.read(file), file.status


def test_the_other_client_does_the_same(live_server: LiveServer) -> None:
    assert asyncio.run(_both_ways(live_server.url, live_server.keys["client"])) == (PICTURE, "ready")


def test_the_server_returns_the_url_and_keeps_the_secret(
    live_server: LiveServer, double: S3Double, client: Client
) -> None:
    file = client.files.upload(PICTURE, user="ann", name="a.png")
    page = live_server.client("client")
    shown = page.get(file.url)
    assert (shown.status_code, shown.content, shown.headers["cache-control"]) == (307, b"", "no-store")
    assert shown.headers["location"].startswith(f"{double.endpoint}/{BUCKET}/house/")
    assert SECRET not in shown.headers["location"]
    got = live_server.client(None).get(shown.headers["location"], headers={"range": "bytes=1-3"})
    assert (got.status_code, got.content, got.headers["content-type"]) == (206, b"PNG", "image/png")
    assert got.headers["content-disposition"] == 'inline; filename="a.png"'
    tag = f'"{hashlib.sha256(PICTURE).hexdigest()}"'
    assert page.get(file.url, headers={"if-none-match": tag}).status_code == 304
    head = page.head(file.url)
    assert (head.status_code, head.headers["content-length"], head.headers["etag"]) == (200, str(len(PICTURE)), tag)
    user = live_server.client(None).get(file.url, params={"token": live_server.keys["user"]})
    assert user.status_code == 307
    assert code(live_server.client("other client").get(file.url)) == (404, "file_not_found")


def test_a_worker_reads_and_puts_by_addresses_alone_which_end_with_its_lease(
    live_server: LiveServer, client: Client
) -> None:
    # R233, R239: it is told no secret of the storage, and needs none
    brought = client.files.upload(PICTURE, user="ann", name="a.png")
    sandbox = WorkerSandbox(live_server)
    sandbox.submit(input={"picture": {"$file": brought.id}})
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    asked = http_worker.post_lease("files", task, uploads=[output_file_of(PNG)])
    get, put = task["files"][0]["download"], asked.json()["uploads"][0]["upload"]
    assert all("X-Amz-Expires=900&" in address["url"] for address in (get, put))
    assert not [
        registration
        for registration in (str(task), asked.text, str(http_worker.registration))
        if SECRET in registration
    ]
    anybody = live_server.client(None)
    assert anybody.request(get["method"], get["url"], headers=get["headers"]).content == PICTURE
    assert anybody.request(put["method"], put["url"], headers=put["headers"], content=PNG).is_success
    assert http_worker.post_lease("complete", task, files=[output_file_of(PNG)]).json()["status"] == "completed"


def test_what_the_bucket_was_not_promised_it_does_not_take(live_server: LiveServer) -> None:
    new = live_server.client("client").post("/v1/files", json=upload_body(PICTURE)).json()
    upload, outside = new["upload"], live_server.client(None)
    for wrong in (PICTURE + b"!", PICTURE[:-1] + b"!"):
        headers = upload["headers"] | {"content-length": str(len(wrong))}
        assert outside.put(upload["url"], headers=headers, content=wrong).status_code >= 400
    finish = f"/v1/files/{new['file']['id']}/finish"
    assert code(live_server.client("client").post(finish)) == (422, "file_not_uploaded")
    assert outside.put(upload["url"], headers=upload["headers"], content=PICTURE).status_code == 200
    assert outside.put(upload["url"], headers=upload["headers"], content=PICTURE).status_code == 412
    assert live_server.client("client").post(finish).json()["status"] == "ready"


def test_a_bucket_that_knows_no_digests_is_read_to_make_sure(live_server: LiveServer, double: S3Double) -> None:
    for wrong, expect_json in (
        (PICTURE[:-1] + b"!", (422, "digest_mismatch")),
        (b"", (422, "size_mismatch")),
        (None, None),
    ):
        new = live_server.client("client").post("/v1/files", json=upload_body(PICTURE)).json()
        live_server.client(None).put(new["upload"]["url"], headers=new["upload"]["headers"], content=PICTURE)
        name = f"house/{object_keys.upload_key(TENANT, new['file']['id'])}"
        stored = double.objects[name]
        double.objects[name] = stored._replace(sha256=None, body=stored.body if wrong is None else wrong)
        done = live_server.client("client").post(f"/v1/files/{new['file']['id']}/finish")
        if expect_json is None:
            assert done.json()["status"] == "ready"
        else:
            assert (code(done), name in double.objects) == (expect_json, False)


def test_a_bucket_that_is_away_is_said_in_a_sentence(live_server: LiveServer, double: S3Double) -> None:
    new = live_server.client("client").post("/v1/files", json=upload_body(PICTURE)).json()
    double.fail("AccessDenied", 1, "HEAD")
    answer = live_server.client("client").post(f"/v1/files/{new['file']['id']}/finish")
    assert code(answer) == (503, "storage_unavailable")
    assert not {ACCESS, SECRET, BUCKET, double.endpoint} & set(answer.text.split())


def test_a_preview_that_is_too_large_is_not_shown(live_server: LiveServer) -> None:
    """The bucket takes it, for no signed PUT has a limit; nobody downloads it from us."""
    job = live_server.submit()
    token = live_server.register("painter")["token"]
    worker = live_server.client(None, {"authorization": f"Bearer {token}"})
    (task,) = worker.post("/v1/worker/claim", json={}).json()["tasks"]
    grant = worker.post("/v1/worker/files", json={"lease": task["lease"], "preview": True}).json()["preview"]
    shown = f"/v1/jobs/{job['id']}/tasks/{task['lease']['task_id']}/preview"
    for size, status in ((PREVIEW_BYTES_MAX + 1, 404), (PREVIEW_BYTES_MAX, 200)):
        put = live_server.client(None).put(grant["url"], headers=grant["headers"], content=b"x" * size)
        assert (put.status_code, live_server.client("client").get(shown).status_code) == (200, status)
    assert live_server.client("client").delete(f"/v1/jobs/{job['id']}").json()["bytes"] == PREVIEW_BYTES_MAX


def test_a_server_whose_files_the_bucket_could_not_take_does_not_open(double: S3Double, tmp_path: Path) -> None:
    blobs = BlobSettings(url=f"s3://{BUCKET}/house", endpoint=double.endpoint, region=REGION)
    settings = Settings(blobs=blobs, limits=Limits(file_bytes_max=6 * 1024**3))
    with pytest.raises(StorageRefusedError, match=r"limits.file_bytes_max is 6442450944.*5 GiB"):
        Callsheet(tmp_path / "callsheet.db", tmp_path, settings)


def test_a_deleted_job_frees_its_part_of_the_bucket_and_a_late_put_is_collected(
    live_server: LiveServer, double: S3Double
) -> None:
    # H27, O5
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
    assert before - set(double.objects) == {f"house/{key}"}
    assert verify_files(live_server.engine.reads, blobs) == []
