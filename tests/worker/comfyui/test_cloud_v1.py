"""The adapter for the first API of Comfy Cloud."""

import threading
import uuid
from pathlib import Path

import pytest

from callsheet.core.model.comfyui_graph import FileSlot
from callsheet.core.model.commands import PreviousSubmission
from callsheet.worker import NonRetryableError, TaskCanceled, TaskLeaseLost, TaskStopped, WorkerShutdown
from callsheet.worker.comfyui import CloudV1, ComfyAccessDeniedError, ComfyHandler, ComfyRejectedError, Timeouts
from callsheet.worker.comfyui.adapters.base import PromptResult
from callsheet.worker.comfyui.adapters.cloud_v1 import URL
from tests.support.comfyui import sample_files
from tests.support.comfyui.asgi_server import as_json
from tests.support.comfyui.cloud_v1 import KEY, CloudV1Server
from tests.support.wait import wait_until
from tests.worker.comfyui import graphs
from tests.worker.comfyui.conftest import QUICK
from tests.worker.comfyui.recording_context import HandlerThread, task

SHORT_TIMEOUTS = Timeouts(
    poll_seconds=0.02,
    retry_seconds=0.02,
    outage_timeout_seconds=0.2,
    prompt_timeout_seconds=30,
    cancel_timeout_seconds=0.1,
)


@pytest.fixture
def handler(adapter_v1: CloudV1) -> ComfyHandler:
    return ComfyHandler(adapter_v1, QUICK)


def queue_after_another(
    cloud: CloudV1Server, handler: ComfyHandler, graph: graphs.Graph
) -> tuple[threading.Event, HandlerThread, HandlerThread]:
    """Queue a prompt after another one that is blocked, and wait until its id is recorded."""
    hold = cloud.hold("2")
    other = HandlerThread(handler, task(graphs.slow(seconds=0.05)))
    wait_until(lambda: "2" in cloud.reached)
    waiting = HandlerThread(handler, task(graph))
    wait_until(lambda: len(waiting.ctx.refs) == 2)
    return hold, other, waiting


def test_a_graph_runs_and_its_outputs_are_downloaded_without_the_key(
    cloud_v1: CloudV1Server, handler: ComfyHandler, tmp_path: Path
) -> None:
    """R223, R225: the key is sent to the cloud only."""
    picture = tmp_path / "in.png"
    picture.write_bytes(sample_files.png(4, 4, 7))
    ctx = task(graphs.upload(), FileSlot("10", "image", "f1"), output_node="9", files={"f1": picture})
    [made] = handler(ctx)["outputs"]
    assert (made["media_type"], made["bytes"]) == ("image/png", len(ctx.uploads[0][2]))
    assert handler(task(graphs.upload(), FileSlot("10", "image", "f1"), output_node="9", files={"f1": picture}))[
        "outputs"
    ]
    assert len(cloud_v1.requests_to("/api/upload/image")) == 1, "the same file is uploaded once"
    assert cloud_v1.storage.requests
    assert not any(KEY in str(request) for request in cloud_v1.storage.requests)
    assert all(request.headers["x-api-key"] == KEY for request in cloud_v1.requests)
    sent = cloud_v1.requests_to("/api/prompt")[0].json()
    mark = sent["extra_data"]["extra_pnginfo"]["workflow"]["id"]
    expected_refs = [("comfy-cloud", f"mark:{mark}"), ("comfy-cloud", cloud_v1.runs[0])]
    assert ctx.refs == expected_refs, "a marker before the submission, then the id that the cloud returned"
    assert "prompt_id" not in sent
    name = sent["prompt"]["10"]["inputs"]["image"]
    assert (name.startswith("callsheet-"), "/" in name, URL) == (True, False, "https://cloud.comfy.org")


def test_unencrypted_storage_on_another_host_is_not_used(cloud_v1: CloudV1Server, adapter_v1: CloudV1) -> None:
    cloud_v1.storage.url = cloud_v1.storage.url.replace("127.0.0.1", "localhost")
    with pytest.raises(NonRetryableError) as raised:
        ComfyHandler(adapter_v1, SHORT_TIMEOUTS)(task(graphs.basic()))
    assert raised.value.code == "output_unreachable"
    assert raised.value.message.endswith("The graph ran and is not run again automatically.")
    assert cloud_v1.storage.requests == []
    assert len(cloud_v1.runs) == 1


def test_a_long_cloud_outage_does_not_cause_a_second_submission(cloud_v1: CloudV1Server, adapter_v1: CloudV1) -> None:
    """A prompt that is already paid for is polled until its own timeout."""
    hold = cloud_v1.hold("9")
    running = HandlerThread(ComfyHandler(adapter_v1, SHORT_TIMEOUTS), task(graphs.basic()))
    wait_until(lambda: "9" in cloud_v1.reached)
    path = f"/job/{cloud_v1.runs[0]}/status"
    cloud_v1.answers[path] = [as_json({}, 500)] * 20
    wait_until(lambda: not cloud_v1.answers[path])
    hold.set()
    assert running.result()["outputs"]
    assert len(cloud_v1.runs) == 1


def test_progress_and_previews_are_of_this_prompt_alone(cloud_v1: CloudV1Server, handler: ComfyHandler) -> None:
    ctx = task(graphs.slow())
    handler(ctx)
    assert ctx.previews
    assert "CallsheetTestSleep" in ctx.messages
    assert cloud_v1.listeners == 0


@pytest.mark.parametrize(
    ("word", "mapped"),
    [
        *((word, "waiting") for word in ("submitted", "queued_limited", "queued_waiting", "allocated", "preparing")),
        *((word, "running") for word in ("executing", "executed", "erroring", "cancel_requested", "a new status")),
        ("lost", "lost"), ("success", "succeeded"), ("error", "failed"), ("non_retryable_error", "failed"),
        ("cancelled", "canceled"),
    ],
)  # fmt: skip
def test_each_cloud_status_is_mapped(cloud_v1: CloudV1Server, adapter_v1: CloudV1, word: str, mapped: str) -> None:
    cloud_v1.hold("9")
    ref = adapter_v1.submit(str(uuid.uuid4()), graphs.basic())
    wait_until(lambda: "9" in cloud_v1.reached)
    cloud_v1.raw_statuses[ref] = word
    found = adapter_v1.get_status(ref)
    assert (found.outcome if isinstance(found, PromptResult) else found) == mapped
    if isinstance(found, PromptResult) and mapped == "failed":
        assert found.retryable is (word == "error")


def test_an_unknown_status_is_resolved_by_the_job_record(cloud_v1: CloudV1Server, adapter_v1: CloudV1) -> None:
    ref = adapter_v1.submit(str(uuid.uuid4()), graphs.basic())
    wait_until(lambda: ref in cloud_v1.history)
    cloud_v1.raw_statuses[ref] = "completed"
    found = adapter_v1.get_status(ref)
    assert isinstance(found, PromptResult)
    assert found.outcome == "succeeded"
    assert len(found.outputs) == 1


def test_the_legacy_history_is_read_only_without_a_job_record(cloud_v1: CloudV1Server, handler: ComfyHandler) -> None:
    handler(task(graphs.basic()))
    assert not any("history_v2" in request.path for request in cloud_v1.requests)
    cloud_v1.no_jobs = True
    assert handler(task(graphs.basic()))["outputs"]
    assert any("history_v2" in request.path for request in cloud_v1.requests)


def test_a_lost_prompt_is_submitted_again(cloud_v1: CloudV1Server, handler: ComfyHandler) -> None:
    hold = cloud_v1.hold("9")
    running = HandlerThread(handler, task(graphs.basic()))
    wait_until(lambda: len(running.ctx.refs) == 2)
    cloud_v1.raw_statuses[running.ctx.refs[1][1]] = "lost"
    wait_until(lambda: len(running.ctx.refs) == 4)
    hold.set()
    assert running.result()["outputs"]


def test_a_cancel_targets_one_prompt_and_never_interrupts_the_account(
    cloud_v1: CloudV1Server, handler: ComfyHandler
) -> None:
    hold, other, waiting = queue_after_another(cloud_v1, handler, graphs.basic())
    waiting.ctx.stop = TaskCanceled
    with pytest.raises(TaskCanceled):
        waiting.result()
    hold.set()
    assert other.result()["outputs"]
    assert cloud_v1.requests_to("/api/interrupt") == []
    assert len(cloud_v1.runs) == 1


def test_a_cancel_during_the_submission_leaves_no_prompt_in_the_queue(
    cloud_v1: CloudV1Server, handler: ComfyHandler
) -> None:
    """The cloud chooses the id, so the worker knows it a moment before it can be recorded."""
    hold = cloud_v1.hold("2")
    other = HandlerThread(handler, task(graphs.slow(seconds=0.05)))
    wait_until(lambda: "2" in cloud_v1.reached)
    with pytest.raises(TaskCanceled):
        handler(task(graphs.basic(), stop_before_submit=TaskCanceled, refs_before_stop=1))
    assert len(cloud_v1.requests_to("/api/prompt")) == 2
    assert cloud_v1.queue["pending"] == []
    hold.set()
    assert other.result()["outputs"]
    assert len(cloud_v1.runs) == 1


@pytest.mark.parametrize(("status", "words"), [(401, "key"), (402, "credits"), (429, "subscription")])
def test_account_errors_are_not_retryable(
    cloud_v1: CloudV1Server, handler: ComfyHandler, status: int, words: str
) -> None:
    """Here 429 means an inactive subscription and not a rate limit."""
    cloud_v1.answers["/prompt"] = [as_json({"message": KEY}, status)]
    with pytest.raises(NonRetryableError) as raised:
        handler(task(graphs.basic()))
    assert raised.value.code == "comfyui_denied"
    assert words in raised.value.message
    assert KEY not in raised.value.message
    assert cloud_v1.runs == []


def test_node_errors_in_a_success_response_are_a_rejection(cloud_v1: CloudV1Server, handler: ComfyHandler) -> None:
    hold: threading.Event = cloud_v1.hold("9")
    running = HandlerThread(handler, task(graphs.half_valid()))
    wait_until(lambda: cloud_v1.requests_to("/api/queue"))
    hold.set()
    with pytest.raises(NonRetryableError) as raised:
        running.result()
    assert raised.value.message == "Node 8 (SaveImage): images is missing."


def test_a_file_above_fifty_megabytes_is_not_sent(cloud_v1: CloudV1Server, adapter_v1: CloudV1, tmp_path: Path) -> None:
    large = tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(50_000_001)
    with pytest.raises(ComfyRejectedError):
        adapter_v1.upload("large.png", large)
    assert cloud_v1.requests == []


def test_a_wrong_key_is_denied(cloud_v1: CloudV1Server) -> None:
    adapter = CloudV1("wrong", cloud_v1.url)
    with pytest.raises(ComfyAccessDeniedError):
        adapter.get_status(str(uuid.uuid4()))
    adapter.close()


def test_a_prompt_of_an_earlier_attempt_is_collected(
    cloud_v1: CloudV1Server, adapter_v1: CloudV1, handler: ComfyHandler
) -> None:
    graph = graphs.basic()
    ref = adapter_v1.submit(str(uuid.uuid4()), graph)
    ctx = task(graph, resumed=PreviousSubmission("comfy-cloud", ref))
    assert handler(ctx)["outputs"]
    assert cloud_v1.runs == [ref]


@pytest.mark.parametrize("stop", [WorkerShutdown, TaskLeaseLost])
def test_a_prompt_survives_a_worker_shutdown_and_the_next_attempt_collects_it(
    cloud_v1: CloudV1Server, handler: ComfyHandler, stop: type[TaskStopped]
) -> None:
    hold, other, waiting = queue_after_another(cloud_v1, handler, graphs.basic())
    waiting.ctx.stop = stop
    with pytest.raises(stop):
        waiting.result()
    assert len(cloud_v1.queue["pending"]) == 1
    hold.set()
    provider, ref = waiting.ctx.refs[-1]
    assert handler(task(graphs.basic(), resumed=PreviousSubmission(provider, ref)))["outputs"]
    assert other.result()["outputs"]
    assert cloud_v1.runs == [other.ctx.refs[-1][1], ref], "it is billed once"


def test_a_prompt_whose_images_only_this_worker_receives_is_canceled(
    cloud_v1: CloudV1Server, handler: ComfyHandler
) -> None:
    hold, other, waiting = queue_after_another(cloud_v1, handler, graphs.websocket_images())
    waiting.ctx.stop = WorkerShutdown
    with pytest.raises(WorkerShutdown):
        waiting.result()
    assert cloud_v1.queue["pending"] == []
    hold.set()
    assert other.result()["outputs"]


# -- lost responses


def test_a_prompt_with_a_lost_response_is_found_by_its_marker_and_billed_once(
    cloud_v1: CloudV1Server, adapter_v1: CloudV1, handler: ComfyHandler
) -> None:
    """The job list may be outdated and may ignore the filter."""
    mark = str(uuid.uuid4())
    other = adapter_v1.submit(mark, graphs.basic())
    cloud_v1.answers["/api/jobs"] = [as_json({"jobs": [{"id": other, "workflow_id": mark}]})] * 2
    cloud_v1.lost_answers["/prompt"] = 1
    ctx = task(graphs.basic())
    assert handler(ctx)["outputs"]
    assert cloud_v1.runs == [other, ctx.refs[-1][1]]
    assert len(cloud_v1.requests_to("/api/prompt")) == 2


def test_a_prompt_that_is_not_found_ends_as_submission_unknown(cloud_v1: CloudV1Server, handler: ComfyHandler) -> None:
    cloud_v1.hide_workflow_ids = True
    cloud_v1.lost_answers["/prompt"] = 1
    with pytest.raises(NonRetryableError) as raised:
        handler(task(graphs.basic()))
    assert raised.value.code == "submission_unknown"
    assert "may have accepted the graph" in raised.value.message
    assert "billed twice" in raised.value.message
    assert len(cloud_v1.runs) == len(cloud_v1.requests_to("/api/prompt")) == 1


def test_an_outage_after_the_submission_ends_as_submission_unknown(
    cloud_v1: CloudV1Server, adapter_v1: CloudV1
) -> None:
    cloud_v1.answers["/prompt"] = [as_json({}, 500)]
    cloud_v1.answers["/api/jobs"] = [as_json({}, 500)] * 1_000
    with pytest.raises(NonRetryableError) as raised:
        ComfyHandler(adapter_v1, SHORT_TIMEOUTS)(task(graphs.basic()))
    assert raised.value.code == "submission_unknown"
    assert len(cloud_v1.requests_to("/api/prompt")) == 1


def test_a_request_that_was_not_sent_is_repeated(cloud_v1: CloudV1Server, handler: ComfyHandler) -> None:
    """A refused connection or a 503 response is not a lost response."""
    cloud_v1.down()
    running = HandlerThread(handler, task(graphs.basic()))
    wait_until(lambda: running.ctx.refs)
    full = as_json({"message": "later"}, 503)
    cloud_v1.answers["/prompt"] = [full._replace(headers=(*full.headers, ("retry-after", "0.01")))]
    cloud_v1.up()
    assert running.result()["outputs"]
    assert len(cloud_v1.runs) == 1
    assert len(cloud_v1.requests_to("/api/prompt")) == 2


def test_the_marker_of_a_dead_worker_is_resolved_by_the_next_attempt(
    cloud_v1: CloudV1Server, adapter_v1: CloudV1, handler: ComfyHandler
) -> None:
    graph, mark = graphs.basic(), str(uuid.uuid4())
    ref = adapter_v1.submit(mark, graph)
    ctx = task(graph, resumed=PreviousSubmission("comfy-cloud", f"mark:{mark}"))
    assert handler(ctx)["outputs"]
    assert cloud_v1.runs == [ref]
    assert ctx.lines == []
    unseen = task(graph, resumed=PreviousSubmission("comfy-cloud", f"mark:{uuid.uuid4()}"))
    assert handler(unseen)["outputs"]
    assert unseen.lines == ["The prompt of an earlier attempt was not found. It runs again and may be billed twice."]
    assert len(cloud_v1.runs) == 2


def test_a_stop_during_the_lookup_cancels_the_found_prompt(cloud_v1: CloudV1Server, handler: ComfyHandler) -> None:
    hold = cloud_v1.hold("2")
    other = HandlerThread(handler, task(graphs.slow(seconds=0.05)))
    wait_until(lambda: "2" in cloud_v1.reached)
    cloud_v1.lost_answers["/prompt"] = 1
    cloud_v1.answers["/api/jobs"] = [as_json({}, 500)] * 5
    lost = HandlerThread(handler, task(graphs.basic()))
    wait_until(lambda: cloud_v1.requests_to("/api/jobs"))
    lost.ctx.stop = TaskCanceled
    with pytest.raises(TaskCanceled):
        lost.result()
    assert cloud_v1.queue["pending"] == []
    hold.set()
    assert other.result()["outputs"]
    assert len(cloud_v1.runs) == 1
