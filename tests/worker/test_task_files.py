"""Files, logs and recorded submissions of a task, and what is left of it on the machine."""

import asyncio
import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.blobs import object_keys
from callsheet.core.model import commands
from callsheet.core.model.rows import File
from callsheet.core.model.workflow_definition import RetryPolicy
from callsheet.worker import Cache, Context, NonRetryableError, RetryableError, Worker
from callsheet.worker.runtime.active_task import LOG_LINES_MAX, LOG_LINES_PER_HEARTBEAT_MAX
from tests.support.doubles.fault_proxy import CallFault, FaultProxy
from tests.support.wait import wait_until
from tests.worker.test_worker_run import Handler
from tests.worker.worker_harness import TENANT, USER, WorkerHarness


def upload_file(harness: WorkerHarness, body: bytes, name: str = "cat.png") -> File:
    """Upload a file as the user ada."""
    digest = hashlib.sha256(body).hexdigest()
    upload = commands.CreateUpload(
        tenant=TENANT, user=USER, name=name, media_type="image/png", bytes=len(body), sha256=digest
    )
    file: File = harness.engine.execute(upload)
    harness.blobs.put(object_keys.file_key(file), body)
    finished: File = harness.engine.execute(commands.FinishUpload(tenant=TENANT, file_id=file.id))
    return finished


def logged_lines(harness: WorkerHarness, job_id: str) -> list[str]:
    """Return the lines in the log of a task."""
    events = harness.engine.reads.events(job_id)
    return [line for event in events if event.type == "task.logged" for line in json.loads(event.data or "")["lines"]]


# -- download


def test_input_files_are_downloaded_by_id_or_file_value(harness: WorkerHarness, worker: Worker) -> None:
    file, seen = upload_file(harness, b"a cat" * 100_000), list[Any]()

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        paths = [ctx.download(ctx.input["picture"]), ctx.download(ctx.input["picture"]["$file"])]
        seen.extend([paths[0] == paths[1], paths[0].suffix, paths[0].is_relative_to(ctx.folder), paths[0].read_bytes()])

    harness.start(worker)
    job_id = harness.submit(input={"picture": {"$file": file.id}, "n": 1})
    assert harness.wait_for_end(job_id).status == "completed"
    assert seen == [True, ".png", True, b"a cat" * 100_000]


def test_file_names_cannot_escape_the_folder(harness: WorkerHarness, worker: Worker) -> None:
    names = ["../../evil.sh", "x" * 300, "..", ".hidden", "a.b.T%r", "no ending", "a/../..", "x.tar.GZ", "a\x00.b", ""]
    file, made = upload_file(harness, b"x"), list[str]()

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        input_file = ctx._find_input_file(file.id)  # noqa: SLF001 - our server never sends such names
        for name in names:
            path = ctx.download(replace(input_file, name=name))
            assert path.parent == ctx.folder
            made.append(path.name.removeprefix(file.id))
        with pytest.raises(ValueError, match="letters"):
            ctx.download(replace(input_file, id="../x"))

    harness.start(worker)
    assert harness.wait_for_end(harness.submit(input={"$file": file.id})).status == "completed"
    assert made == [".sh", "", "", ".hidden", "", "", "", ".gz", ".b", ""]


def test_files_of_other_tasks_are_not_found_and_invalid_references_are_rejected(
    harness: WorkerHarness, worker: Worker
) -> None:
    file = upload_file(harness, b"x")

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        for wrong in ({"file": "x"}, 7):
            with pytest.raises((TypeError, AttributeError)):
                ctx.download(wrong)  # type: ignore[arg-type]
        ctx.download(file.id)

    harness.start(worker)
    job = harness.wait_for_end(harness.submit(retry=RetryPolicy(on="never")))
    assert (job.status, job.error_code) == ("failed", "file_not_found")


def test_an_interrupted_download_is_resumed(http_harness: WorkerHarness, worker: Worker) -> None:
    body = os.urandom(300_000)
    file = upload_file(http_harness, body)

    @worker.task("draw")
    def draw(ctx: Context) -> bool:
        return ctx.download(file.id).read_bytes() == body

    with FaultProxy(http_harness.live_server.url) as proxy:
        cut = {"content-length": "300000", "etag": f'"{file.sha256}"'}
        proxy.faults["/v1/blobs/"].append(CallFault(status=200, headers=cut, body=body[:100_000]))
        http_harness.start(worker, http_harness.link(url=proxy.url))
        job_id = http_harness.submit(input={"$file": file.id})
        http_harness.wait_for_end(job_id)
        assert http_harness.outputs(job_id) == ["true"]
        assert [call.headers.get("range") for call in proxy.calls("/v1/blobs/")] == [None, "bytes=100000-"]


def test_an_expired_url_is_requested_again(http_harness: WorkerHarness, worker: Worker) -> None:
    file = upload_file(http_harness, b"still here")

    @worker.task("draw")
    def draw(ctx: Context) -> str:
        return ctx.download(file.id).read_text()

    with FaultProxy(http_harness.live_server.url) as proxy:
        proxy.faults["/v1/blobs/"].append(CallFault(status=403))
        http_harness.start(worker, http_harness.link(url=proxy.url))
        job_id = http_harness.submit(input={"$file": file.id})
        http_harness.wait_for_end(job_id)
        assert http_harness.outputs(job_id) == ['"still here"']
        assert len(proxy.calls("/v1/blobs/")) == 2
        assert len(proxy.calls("/v1/worker/files")) == 1


def test_a_storage_that_rejects_a_new_url_fails_the_attempt(http_harness: WorkerHarness, worker: Worker) -> None:
    @worker.task("draw")
    def draw(ctx: Context) -> None:
        ctx.upload("a.txt", b"hello", "text/plain")

    with FaultProxy(http_harness.live_server.url) as proxy:
        proxy.faults["/v1/blobs/"].append(CallFault(status=403))
        http_harness.start(worker, http_harness.link(url=proxy.url))
        job = http_harness.wait_for_end(http_harness.submit(retry=RetryPolicy(on="never")))
    assert (job.status, job.error_code) == ("failed", "file_refused")
    assert "http" not in str(job.error_message)  # a signed URL is a secret


# -- upload


def test_a_file_on_disk_is_uploaded_without_being_read_into_memory(harness: WorkerHarness, worker: Worker) -> None:
    size = 3 * 1024 * 1024 + 1

    @worker.task("draw")
    def draw(ctx: Context) -> str:
        path = ctx.folder / "large.bin"
        path.write_bytes(b"\x07" * size)
        return ctx.upload("large.bin", path).sha256

    harness.start(worker)
    job_id = harness.submit()
    assert harness.wait_for_end(job_id).status == "completed"
    (file,) = harness.files(job_id)
    assert (file.bytes, file.media_type) == (size, "application/octet-stream")
    assert harness.bytes_of(file) == b"\x07" * size


def test_files_may_be_uploaded_from_several_threads(harness: WorkerHarness, worker: Worker) -> None:
    @worker.task("draw")
    async def draw(ctx: Context) -> None:
        await asyncio.gather(*(asyncio.to_thread(ctx.upload, f"{n}.txt", b"%d" % n, "text/plain") for n in range(8)))

    harness.start(worker)
    job_id = harness.submit()
    assert harness.wait_for_end(job_id).status == "completed"
    files = harness.files(job_id)
    assert sorted(file.no for file in files) == list(range(1, 9))
    assert {file.name: harness.bytes_of(file) for file in files} == {f"{n}.txt": b"%d" % n for n in range(8)}


def test_a_file_that_changed_during_its_upload_is_rejected(harness: WorkerHarness, worker: Worker) -> None:
    """A file with a wrong digest is rejected by the storage or on completion."""

    link = harness.link()
    link.tamper_with_files = True

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        path = ctx.folder / "a.txt"
        path.write_bytes(b"first")
        ctx.upload("a.txt", path, "text/plain")

    harness.start(worker, link)
    job = harness.wait_for_end(harness.submit(retry=RetryPolicy(on="never")))
    assert job.status == "failed"
    assert harness.files(job.id) == []


# -- logs and submissions


def test_all_log_lines_are_stored_in_order_when_the_task_ends(harness: WorkerHarness, worker: Worker) -> None:
    many = LOG_LINES_PER_HEARTBEAT_MAX * 3 + 7

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        for number in range(many):
            ctx.log(f"line {number}\n\n")
        raise NonRetryableError("that was all")

    harness.start(worker)
    job_id = harness.submit()
    harness.wait_for_end(job_id)
    assert logged_lines(harness, job_id) == [f"line {number}" for number in range(many)]


def test_excess_log_lines_are_dropped_and_counted_in_the_log(harness: WorkerHarness, worker: Worker) -> None:
    link, many = harness.link(), LOG_LINES_MAX + 3 * LOG_LINES_PER_HEARTBEAT_MAX

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        link.unreachable = True
        for number in range(many):
            ctx.log(f"line {number}")
        wait_until(lambda: link.lost_heartbeats)
        link.unreachable = False

    harness.start(worker, link)
    job_id = harness.submit()
    harness.wait_for_end(job_id)
    logged = logged_lines(harness, job_id)
    notices = [line for line in logged if line.startswith("(")]
    assert notices != []
    assert logged[-1] == f"line {many - 1}"
    dropped = sum(int(line[1:].split()[0]) for line in notices)
    assert dropped + len(logged) - len(notices) == many


def test_the_next_attempt_knows_a_recorded_submission(harness: WorkerHarness, worker: Worker) -> None:
    began = threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> Any:
        if ctx.attempt > 1:
            return [ctx.resumed.provider, ctx.resumed.ref] if ctx.resumed else None
        ctx.record_submission("comfy", "prompt-1")
        began.set()
        while True:
            ctx.progress(1)
            harness.closing.wait(0.01)

    worker_run = harness.start(worker)
    job_id = harness.submit()
    assert began.wait(20)
    worker_run.stop()
    harness.start(worker, harness.link("w2"))
    harness.wait_for_end(job_id)
    assert harness.outputs(job_id) == ['["comfy","prompt-1"]']


@pytest.mark.parametrize(("resume", "known"), [(True, ["comfy", "prompt-1"]), (False, None)])
def test_a_failed_attempt_can_pass_on_its_submission(
    harness: WorkerHarness, worker: Worker, *, resume: bool, known: list[str] | None
) -> None:
    """The third attempt gets it from the second, which submitted nothing itself."""

    @worker.task("draw")
    def draw(ctx: Context) -> Any:
        if ctx.attempt == 1:
            ctx.record_submission("comfy", "prompt-1")
        if ctx.attempt < 3:
            raise RetryableError("The answer cannot be fetched for now.", resume=resume)
        return [ctx.resumed.provider, ctx.resumed.ref] if ctx.resumed else None

    harness.start(worker)
    job_id = harness.submit()
    assert harness.wait_for_end(job_id).status == "completed"
    assert json.loads(harness.outputs(job_id)[0]) == known


# -- the machine


@pytest.mark.parametrize("ends", ["returns", "raises", "is canceled", "is interrupted"])
def test_the_folder_of_a_task_is_deleted_for_every_outcome(harness: WorkerHarness, worker: Worker, ends: str) -> None:
    """R226: the harness also checks for leftovers when it closes."""
    seen: list[Path] = []
    handler = Handler(harness)

    @worker.task("draw")
    def draw(ctx: Context) -> Any:
        (ctx.folder / "deep" / "er").mkdir(parents=True)
        (ctx.folder / "deep" / "er" / "file").write_bytes(b"x")
        (ctx.folder / "deep").chmod(0o500)
        seen.append(ctx.folder)
        if ends == "raises":
            raise ValueError("broken")
        return None if ends == "returns" else handler(ctx)

    worker_run = harness.start(worker)
    job_id = harness.submit()
    wait_until(lambda: seen)
    if ends == "is canceled":
        harness.cancel(job_id)
    elif ends == "is interrupted":
        worker_run.stop()
    wait_until(lambda: worker_run.active_count == 0)
    assert not seen[0].exists()
    assert harness.scratch.exists()


def test_a_file_is_downloaded_once_for_all_tasks_of_a_machine(
    http_harness: WorkerHarness, worker: Worker, tmp_path: Path
) -> None:
    file = upload_file(http_harness, b"weights" * 1_000)
    http_harness.cache = Cache(tmp_path / "cache", 1_000_000)

    @worker.task("draw")
    def draw(ctx: Context) -> int:
        return len(ctx.download(file.id).read_bytes())

    with FaultProxy(http_harness.live_server.url) as proxy:
        http_harness.start(worker, http_harness.link(url=proxy.url))
        for _ in range(3):
            job_id = http_harness.submit(input={"$file": file.id})
            http_harness.wait_for_end(job_id)
            assert http_harness.outputs(job_id) == ["7000"]
        assert len(proxy.calls("/v1/blobs/")) == 1
