"""Files in an S3 bucket: workers transfer them directly, and faults of the bucket are retried."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from callsheet.core.model.workflow_definition import StageSpec
from callsheet.settings import BlobSettings
from callsheet.worker import Context, Worker
from tests.support.doubles.s3_double import ACCESS, BUCKET, REGION, SECRET, S3Double
from tests.worker.worker_harness import WorkerHarness

BODY = b"frames" * 50_000


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Double]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    with S3Double() as made:
        yield made


@pytest.fixture(params=["over http", "embedded"])
def bucket(
    request: pytest.FixtureRequest, double: S3Double, database_url: str, tmp_path: Path
) -> Iterator[WorkerHarness]:
    """A server that stores files in a bucket."""
    blobs = BlobSettings(url=f"s3://{BUCKET}/callsheet", endpoint=double.endpoint, region=REGION)
    with WorkerHarness(database_url, tmp_path, embedded=request.param == "embedded", blobs=blobs) as made:
        yield made


@pytest.mark.parametrize(
    "faults",
    [[], [("cut_after", "PUT"), ("SlowDown", "PUT"), ("cut_before", "PUT"), ("truncated", "GET"), ("SlowDown", "GET")]],
    ids=["no faults", "faults"],
)
def test_a_file_is_uploaded_to_the_bucket_and_downloaded_again(
    bucket: WorkerHarness, double: S3Double, worker: Worker, faults: list[tuple[str, str]]
) -> None:
    """F22: a lost response, slow down, a lost connection and a truncated download."""

    @worker.task("film")
    def film(ctx: Context) -> None:
        path = ctx.folder / "film.bin"
        path.write_bytes(BODY)
        ctx.upload("film.bin", path)
        ctx.preview(b"\x89PNG\r\n\x1a\nand so on")

    @worker.task("cut")
    def cut(ctx: Context) -> bool:
        (film,) = ctx.previous_outputs()
        return [ctx.download(file).read_bytes() for file in film.files] == [BODY]

    for kind, method in faults:
        double.fail(kind, method=method)
    bucket.start(worker)
    job_id = bucket.submit(StageSpec(name="film", kind="film"), StageSpec(name="cut", kind="cut"))
    assert bucket.wait_for_end(job_id).status == "completed"
    assert sorted(bucket.outputs(job_id)) == ["null", "true"]
    assert [stored.body for name, stored in double.objects.items() if name.endswith("/1")] == [BODY]
