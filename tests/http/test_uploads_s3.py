"""Files in a bucket, end to end: the house signs, the bytes go past it, and what nobody needs is collected."""

import asyncio
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from callsheet.app import Callsheet
from callsheet.blobs import keys
from callsheet.blobs.base import StorageRefused
from callsheet.blobs.s3 import S3Blobs
from callsheet.client import AsyncClient, Client
from callsheet.config import BlobSettings, Settings
from callsheet.core import commands
from callsheet.core.limits import Limits
from callsheet.engine.filekeeping import Orphans, check_files
from callsheet.http.handing import PREVIEW_BYTES_MAX
from tests.http.test_uploads import announced, code
from tests.http.yard import PNG, Yard, made_of
from tests.support.places import Places
from tests.support.s3double import ACCESS, BUCKET, REGION, SECRET, Double
from tests.support.served import TENANT, Served

PICTURE = b"\x89PNG\r\n\x1a\n" + random.Random(3).randbytes(600_000)


@pytest.fixture(scope="module")
def double() -> Iterator[Double]:
    with Double() as made:
        yield made


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def served(
    request: pytest.FixtureRequest, double: Double, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A server that keeps files in the double; its keys are in the environment, as they would be."""
    data: Path = tmp_path_factory.mktemp("bucket")
    blobs = BlobSettings(url=f"s3://{BUCKET}/house", endpoint=double.endpoint, region=REGION)
    places: Places | None = request.getfixturevalue("places") if request.param == "postgresql" else None
    place = places.lend() if places else str(data / "callsheet.db")
    with pytest.MonkeyPatch.context() as env:
        env.setenv("AWS_ACCESS_KEY_ID", ACCESS)
        env.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        env.delenv("AWS_SESSION_TOKEN", raising=False)
        with Served(place, data, settings=Settings(blobs=blobs)) as made:
            assert isinstance(made.callsheet.house.blobs, S3Blobs)
            yield made
    if places:
        places.give_back(place)


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with Client(served.url, served.keys["client"]) as made:
        yield made


def there(double: Double, key: str) -> bytes | None:
    stored = double.objects.get(f"house/{key}")
    return stored and stored.body


def test_a_file_goes_to_the_bucket_and_comes_from_it(
    served: Served, double: Double, client: Client, tmp_path: Path
) -> None:
    # R163
    path = tmp_path / "sketch.png"
    path.write_bytes(PICTURE)
    file = client.upload(path, user="ann")
    assert there(double, keys.uploaded(TENANT, file.id)) == PICTURE
    assert client.read(file) == client.read(file.id) == PICTURE
    assert client.download(file, tmp_path / "copy.png").read_bytes() == PICTURE
    assert client.delete_file(file).bytes == len(PICTURE)
    assert there(double, keys.uploaded(TENANT, file.id)) is None
    assert code(served.client("client").get(file.url)) == (410, "file_gone")


async def _both_ways(url: str, key: str) -> tuple[bytes, str]:
    async with AsyncClient(url, key) as client:
        file = await client.upload(PICTURE, user="ann", name="a.png")
        return await client.read(file), file.status


def test_the_other_client_does_the_same(served: Served) -> None:
    assert asyncio.run(_both_ways(served.url, served.keys["client"])) == (PICTURE, "ready")


def test_the_house_shows_the_way_and_keeps_the_secret(served: Served, double: Double, client: Client) -> None:
    file = client.upload(PICTURE, user="ann", name="a.png")
    page = served.client("client")
    shown = page.get(file.url)
    assert (shown.status_code, shown.content, shown.headers["cache-control"]) == (307, b"", "no-store")
    assert shown.headers["location"].startswith(f"{double.endpoint}/{BUCKET}/house/")
    assert SECRET not in shown.headers["location"]
    got = served.client(None).get(shown.headers["location"], headers={"range": "bytes=1-3"})
    assert (got.status_code, got.content, got.headers["content-type"]) == (206, b"PNG", "image/png")
    assert got.headers["content-disposition"] == 'inline; filename="a.png"'
    tag = f'"{hashlib.sha256(PICTURE).hexdigest()}"'
    assert page.get(file.url, headers={"if-none-match": tag}).status_code == 304
    head = page.head(file.url)
    assert (head.status_code, head.headers["content-length"], head.headers["etag"]) == (200, str(len(PICTURE)), tag)
    user = served.client(None).get(file.url, params={"token": served.keys["user"]})
    assert user.status_code == 307
    assert code(served.client("other client").get(file.url)) == (404, "file_not_found")


def test_a_worker_reads_and_puts_by_addresses_alone_which_end_with_its_lease(served: Served, client: Client) -> None:
    # R233, R239: it is told no secret of the storage, and needs none
    brought = client.upload(PICTURE, user="ann", name="a.png")
    yard = Yard(served)
    yard.submit(input={"picture": {"$file": brought.id}})
    machine = yard.machine()
    (task,) = machine.claim()
    asked = machine.say("files", task, puts=[made_of(PNG)])
    get, put = task["files"][0]["get"], asked.json()["puts"][0]["put"]
    assert all("X-Amz-Expires=900&" in address["url"] for address in (get, put))
    assert not [told for told in (str(task), asked.text, str(machine.told)) if SECRET in told]
    anybody = served.client(None)
    assert anybody.request(get["method"], get["url"], headers=get["headers"]).content == PICTURE
    assert anybody.request(put["method"], put["url"], headers=put["headers"], content=PNG).is_success
    assert machine.say("complete", task, files=[made_of(PNG)]).json()["status"] == "completed"


def test_what_the_bucket_was_not_promised_it_does_not_take(served: Served) -> None:
    new = served.client("client").post("/v1/files", json=announced(PICTURE)).json()
    upload, outside = new["upload"], served.client(None)
    for wrong in (PICTURE + b"!", PICTURE[:-1] + b"!"):
        headers = upload["headers"] | {"content-length": str(len(wrong))}
        assert outside.put(upload["url"], headers=headers, content=wrong).status_code >= 400
    finish = f"/v1/files/{new['file']['id']}/finish"
    assert code(served.client("client").post(finish)) == (422, "file_not_put")
    assert outside.put(upload["url"], headers=upload["headers"], content=PICTURE).status_code == 200
    assert outside.put(upload["url"], headers=upload["headers"], content=PICTURE).status_code == 412
    assert served.client("client").post(finish).json()["status"] == "ready"


def test_a_bucket_that_knows_no_digests_is_read_to_make_sure(served: Served, double: Double) -> None:
    for wrong, said in ((PICTURE[:-1] + b"!", (422, "digest_mismatch")), (b"", (422, "size_mismatch")), (None, None)):
        new = served.client("client").post("/v1/files", json=announced(PICTURE)).json()
        served.client(None).put(new["upload"]["url"], headers=new["upload"]["headers"], content=PICTURE)
        name = f"house/{keys.uploaded(TENANT, new['file']['id'])}"
        stored = double.objects[name]
        double.objects[name] = stored._replace(sha256=None, body=stored.body if wrong is None else wrong)
        done = served.client("client").post(f"/v1/files/{new['file']['id']}/finish")
        if said is None:
            assert done.json()["status"] == "ready"
        else:
            assert (code(done), name in double.objects) == (said, False)


def test_a_bucket_that_is_away_is_said_in_a_sentence(served: Served, double: Double) -> None:
    new = served.client("client").post("/v1/files", json=announced(PICTURE)).json()
    double.fail("AccessDenied", 1, "HEAD")
    answer = served.client("client").post(f"/v1/files/{new['file']['id']}/finish")
    assert code(answer) == (503, "storage_unavailable")
    assert not {ACCESS, SECRET, BUCKET, double.endpoint} & set(answer.text.split())


def test_a_preview_that_is_too_large_is_not_shown(served: Served) -> None:
    """The bucket takes it, for no signed PUT has a limit; nobody gets it from us."""
    job = served.submit()
    token = served.register("painter")["token"]
    worker = served.client(None, {"authorization": f"Bearer {token}"})
    (task,) = worker.post("/v1/worker/claim", json={}).json()["tasks"]
    grant = worker.post("/v1/worker/files", json={"lease": task["lease"], "preview": True}).json()["preview"]
    shown = f"/v1/jobs/{job['id']}/tasks/{task['lease']['task_id']}/preview"
    for size, status in ((PREVIEW_BYTES_MAX + 1, 404), (PREVIEW_BYTES_MAX, 200)):
        put = served.client(None).put(grant["url"], headers=grant["headers"], content=b"x" * size)
        assert (put.status_code, served.client("client").get(shown).status_code) == (200, status)
    assert served.client("client").delete(f"/v1/jobs/{job['id']}").json()["bytes"] == PREVIEW_BYTES_MAX


def test_a_house_whose_files_the_bucket_could_not_take_does_not_open(double: Double, tmp_path: Path) -> None:
    blobs = BlobSettings(url=f"s3://{BUCKET}/house", endpoint=double.endpoint, region=REGION)
    settings = Settings(blobs=blobs, limits=Limits(file_bytes_max=6 * 1024**3))
    with pytest.raises(StorageRefused, match=r"limits.file_bytes_max is 6442450944.*5 GiB"):
        Callsheet(tmp_path / "callsheet.db", tmp_path, settings)


def test_a_deleted_job_frees_its_part_of_the_bucket_and_a_late_put_is_collected(served: Served, double: Double) -> None:
    # H27, O5
    served.submit()
    (leased,) = served.engine.execute(commands.Claim(worker_id="w", kinds=("draw",)))
    lease, blobs = leased.lease, served.callsheet.house.blobs
    key = keys.made(TENANT, lease.job_id, lease.task_id, lease.attempt, 1)
    late = blobs.grant_put(key, size=3, sha256=hashlib.sha256(b"abc").hexdigest(), media_type="text/plain", seconds=60)
    blobs.put(key, b"abc")
    freed = served.client("client").delete(f"/v1/jobs/{lease.job_id}").json()
    assert (freed, there(double, key)) == ({"files": 1, "bytes": 3, "pending": False}, None)
    assert served.client(None).put(late.url, headers=late.headers, content=b"abc").status_code == 200
    orphans, before = Orphans(served.engine.read, blobs, 0, page=2), set(double.objects)
    while orphans.run_once(served.engine.read.now() + 2_000_000):
        pass
    assert before - set(double.objects) == {f"house/{key}"}
    assert check_files(served.engine.read, blobs) == []
