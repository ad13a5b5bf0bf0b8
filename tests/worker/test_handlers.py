"""Handlers and the outcome of their tasks: return values, files, errors, progress and earlier outputs."""

import asyncio
import hashlib
import json
import threading
from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.blobs import object_keys
from callsheet.core.model.errors import Refusal
from callsheet.core.model.workflow_definition import RetryPolicy, StageSpec
from callsheet.worker import Context, NonRetryableError, PreviousOutput, RetryableError, Worker
from tests.support.wait import wait_until
from tests.worker.worker_harness import NO_BACKOFF, WorkerHarness

PNG = b"\x89PNG\r\n\x1a\nand so on"


def test_a_handler_that_returns_completes_its_task_with_what_it_returned(
    harness: WorkerHarness, worker: Worker
) -> None:
    """R416."""

    @worker.task("draw")
    def draw(ctx: Context) -> Any:
        return {"echo": ctx.input, "where": [ctx.workflow, ctx.stage, ctx.stage_no, ctx.task_no, ctx.attempt]}

    harness.start(worker)
    job_id = harness.submit(input={"prompt": "ünïcode"})
    assert harness.wait_for_end(job_id).status == "completed"
    assert [json.loads(body) for body in harness.outputs(job_id)] == [
        {"echo": {"prompt": "ünïcode"}, "where": ["work", "draw", 1, 1, 1]}
    ]
    assert harness.outcomes(job_id) == ["completed"]


def test_an_async_handler_is_awaited(harness: WorkerHarness, worker: Worker) -> None:
    @worker.task("draw")
    async def draw(ctx: Context) -> int:
        await asyncio.sleep(0)
        ctx.progress(50, "half")
        ctx.upload("half.txt", b"half", "text/plain")
        return 7

    harness.start(worker)
    job_id = harness.submit()
    assert harness.wait_for_end(job_id).status == "completed"
    assert harness.outputs(job_id) == ["7"]


def test_files_arrive_with_their_digest_and_size(harness: WorkerHarness, worker: Worker) -> None:
    bodies = {"one.bin": b"\x00\x01" * 5_000, "zwei.txt": b""}

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        for name, body in bodies.items():
            ctx.upload(name, body, "text/plain")

    harness.start(worker)
    job_id = harness.submit()
    assert harness.wait_for_end(job_id).status == "completed"
    files = harness.files(job_id)
    assert [(file.name, file.bytes, file.sha256) for file in files] == [
        (name, len(body), hashlib.sha256(body).hexdigest()) for name, body in bodies.items()
    ]
    assert [harness.bytes_of(file) for file in files] == list(bodies.values())


def test_a_handler_that_raises_fails_its_job_with_a_clean_message(harness: WorkerHarness, worker: Worker) -> None:
    """R263, R416."""

    @worker.task("draw")
    def draw(_ctx: Context) -> None:
        raise ValueError("no such model at https://models.example/x?sig=abc with token=verysecret")

    harness.start(worker)
    job = harness.wait_for_end(harness.submit())
    assert (job.status, job.error_code) == ("failed", "task_failed")
    assert job.error_message == "ValueError: no such model at [url] with [secret]"
    assert harness.outcomes(job.id) == ["failed"]
    assert [fault.partition(":")[0] for fault in harness.faults] == ["draw failed"]


def test_the_retry_policy_decides_whether_an_error_is_retried(harness: WorkerHarness, worker: Worker) -> None:
    """R413, R416."""

    @worker.task("draw")
    def draw(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise RuntimeError("out of memory")
        return ctx.attempt

    harness.start(worker)
    job_id = harness.submit(retry=RetryPolicy(on="any", backoff=NO_BACKOFF))
    assert harness.wait_for_end(job_id).status == "completed"
    assert harness.outcomes(job_id) == ["failed", "failed", "completed"]


def test_a_handler_decides_whether_its_error_is_retryable(harness: WorkerHarness, worker: Worker) -> None:
    @worker.task("draw")
    def draw(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise RetryableError("the card is hot", code="too_hot")
        raise NonRetryableError("no face in the picture", code="no_face")

    harness.start(worker)
    job = harness.wait_for_end(harness.submit(retry=RetryPolicy(on="any", attempts_max=9, backoff=NO_BACKOFF)))
    assert (job.status, job.error_code, job.error_message) == ("failed", "no_face", "no face in the picture")
    attempts = harness.engine.reads.attempts(harness.task(job.id).id)
    assert [(attempt.outcome, attempt.error_code) for attempt in attempts] == [
        ("failed", "too_hot"),
        ("failed", "no_face"),
    ]


def test_a_handler_that_calls_exit_fails_its_task(harness: WorkerHarness, worker: Worker) -> None:
    @worker.task("draw")
    def draw(_ctx: Context) -> None:
        raise SystemExit(3)

    harness.start(worker)
    job = harness.wait_for_end(harness.submit())
    assert (job.status, job.error_message) == ("failed", "SystemExit: 3")


@pytest.mark.parametrize("made", [object(), {"n": float("nan")}, "x" * 2_000_000], ids=["object", "nan", "too large"])
def test_an_invalid_output_fails_the_task_without_a_retry(harness: WorkerHarness, worker: Worker, made: Any) -> None:
    @worker.task("draw")
    def draw(_ctx: Context) -> Any:
        return made

    harness.start(worker)
    job = harness.wait_for_end(harness.submit(retry=RetryPolicy(on="any", backoff=NO_BACKOFF)))
    assert job.status == "failed"
    assert harness.outcomes(job.id) == ["failed"]


def test_a_later_stage_reads_the_outputs_of_earlier_stages(harness: WorkerHarness, worker: Worker) -> None:
    seen: list[list[PreviousOutput]] = []

    @worker.task("write")
    def write(ctx: Context) -> dict[str, int]:
        ctx.upload("text.txt", f"scene {ctx.task_no}".encode(), "text/plain")
        return {"scene": ctx.task_no}

    @worker.task("cut")
    def cut(ctx: Context) -> str:
        previous_outputs = ctx.previous_outputs()
        seen.append(previous_outputs)
        return b" | ".join(
            ctx.download(file).read_bytes() for earlier in previous_outputs for file in earlier.files
        ).decode()

    harness.start(worker, concurrency=2)
    stages = [StageSpec(name="script", kind="write", tasks=2), StageSpec(name="end", kind="cut", tasks=2)]
    job_id = harness.submit(*stages)
    assert harness.wait_for_end(job_id).status == "completed"
    for previous_outputs in seen:
        assert [(e.stage, e.stage_no, e.task_no, e.output) for e in previous_outputs] == [
            ("script", 1, 1, {"scene": 1}),
            ("script", 1, 2, {"scene": 2}),
        ]
    assert harness.outputs(job_id).count('"scene 1 | scene 2"') == 2


def test_a_file_of_another_job_and_a_damaged_one_are_not_read(harness: WorkerHarness, worker: Worker) -> None:
    @worker.task("draw")
    def draw(ctx: Context) -> str:
        made = ctx.upload("a.txt", b"mine", "text/plain")
        return made.sha256

    @worker.task("peek")
    def peek(ctx: Context) -> None:
        (previous_outputs,) = ctx.previous_outputs()
        mine = previous_outputs.files[0]
        for other in (ctx.input, replace(mine, id=ctx.input)):
            with pytest.raises(Refusal) as refused:
                ctx.download(other)
            assert refused.value.code == "file_not_found"
        ctx.download(replace(mine, sha256="0" * 64))

    harness.start(worker)
    other = harness.submit()
    harness.wait_for_end(other)
    stages = [StageSpec(name="draw", kind="draw"), StageSpec(name="peek", kind="peek")]
    job = harness.wait_for_end(harness.submit(*stages, input=harness.files(other)[0].id, retry=RetryPolicy(on="never")))
    assert (job.status, job.error_code) == ("failed", "file_damaged")


def test_progress_and_previews_are_seen_while_the_handler_runs(harness: WorkerHarness, worker: Worker) -> None:
    seen = threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        ctx.progress(33.9, "first layer, sk-abcdefghijk")
        ctx.preview(PNG)
        assert seen.wait(20)
        with pytest.raises(ValueError, match="PNG or a JPEG"):
            ctx.preview(b"GIF89a")

    harness.start(worker)
    job_id = harness.submit()

    def previews() -> list[Any]:
        events = [e for e in harness.engine.reads.events(job_id) if e.type == "task.progressed"]
        return [data for data in map(json.loads, (e.data or "" for e in events)) if data.get("preview")]

    wait_until(previews)
    assert previews()[-1] == {"progress": 33, "message": "first layer, [secret]", "preview": 1}
    task = harness.task(job_id)
    key = object_keys.preview_key(task.tenant, job_id, task.id, task.attempts)
    with harness.blobs.open(key) as stored:
        assert stored.read() == PNG
    seen.set()
    assert harness.wait_for_end(job_id).status == "completed"


def test_a_partial_result_is_charged_less(harness: WorkerHarness, worker: Worker) -> None:
    @worker.task("draw")
    def draw(ctx: Context) -> None:
        ctx.delivered = 40

    harness.start(worker)
    job_id = harness.submit()
    harness.wait_for_end(job_id)
    (run,) = harness.engine.reads.runs(job_id)
    assert (run.consumed, run.refunded) == (4, 6)


def test_a_worker_has_one_handler_per_kind_and_at_least_one(worker: Worker, harness: WorkerHarness) -> None:
    with pytest.raises(ValueError, match="no handler"):
        worker.start(harness.link())
    worker.task("draw")(lambda ctx: ctx.input)
    with pytest.raises(ValueError, match="already has a handler"):
        worker.task("draw")
    with pytest.raises(ValueError, match="at least 1"):
        worker.start(harness.link(), 0)
    assert tuple(worker.handlers) == ("draw",)


def test_a_handler_without_a_kind_is_rejected_with_an_example(worker: Worker) -> None:
    with pytest.raises(TypeError, match=r'@worker\.task\("kind"\)'):

        @worker.task  # type: ignore[arg-type]
        def draw(ctx: Context) -> None:
            """Many decorators are used without parentheses."""

    assert not worker.handlers
