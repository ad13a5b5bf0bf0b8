"""The adapter for the Comfy API v2."""

import uuid
from pathlib import Path

import pytest

from callsheet.core.model.comfyui_graph import FileSlot
from callsheet.core.model.commands import PreviousSubmission
from callsheet.worker import NonRetryableError, TaskCanceled
from callsheet.worker.comfyui import CloudV2, ComfyHandler
from tests.support.comfyui import sample_files
from tests.support.comfyui.asgi_server import as_json
from tests.support.comfyui.cloud_v1 import StorageServer
from tests.support.comfyui.cloud_v2 import KEY, CloudV2Server, refusal
from tests.support.wait import wait_until
from tests.worker.comfyui import graphs
from tests.worker.comfyui.conftest import QUICK
from tests.worker.comfyui.recording_context import HandlerThread, task


@pytest.fixture
def handler(adapter_v2: CloudV2) -> ComfyHandler:
    return ComfyHandler(adapter_v2, QUICK)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "in.png"
    path.write_bytes(sample_files.png(4, 4, 7))
    return path


def test_a_graph_runs_with_its_assets_and_media_types_are_detected_from_the_content(
    cloud_v2: CloudV2Server, handler: ComfyHandler, picture: Path
) -> None:
    ctx = task(graphs.upload(), FileSlot("10", "image", "f1"), output_node="9", files={"f1": picture})
    assert [one["media_type"] for one in handler(ctx)["outputs"]] == ["image/png"]
    sent = cloud_v2.requests_to("/api/v2/jobs")[0]
    assert sent.headers["idempotency-key"]
    assert sent.json()["workflow"]["10"]["inputs"]["image"]["__type"] == "core/ASSET"
    video = task(graphs.video())
    assert [one["media_type"] for one in handler(video)["outputs"]] == ["video/mp4"], (
        "although the server reports image"
    )
    assert ctx.refs == [("comfy-v2", cloud_v2.runs[0])]


def test_progress_and_previews_come_from_the_stream(cloud_v2: CloudV2Server, handler: ComfyHandler) -> None:
    ctx = task(graphs.slow(seconds=0.5))
    handler(ctx)
    assert ctx.percents == sorted(ctx.percents)
    assert len(ctx.percents) > 1
    assert ctx.previews
    assert set(ctx.previews) == {sample_files.JPEG}
    assert cloud_v2.streams == 1


def test_a_lost_response_is_requested_again_with_the_same_idempotency_key(
    cloud_v2: CloudV2Server, handler: ComfyHandler
) -> None:
    cloud_v2.lost_answers["/v2/jobs"] = 1
    with pytest.raises(NonRetryableError) as raised:
        handler(task(graphs.basic()))
    assert raised.value.code == "submission_unknown"
    assert "billed twice" in raised.value.message
    keys = {request.headers["idempotency-key"] for request in cloud_v2.requests_to("/api/v2/jobs")}
    assert len(keys) == 1
    assert len(cloud_v2.runs) == 1


def test_a_full_server_is_retried_with_a_new_idempotency_key(cloud_v2: CloudV2Server, handler: ComfyHandler) -> None:
    full = refusal("queue_full", 429)
    cloud_v2.answers["/v2/jobs"] = [full._replace(headers=(*full.headers, ("retry-after", "0.1")))] * 2
    assert handler(task(graphs.basic()))["outputs"]
    keys = [request.headers["idempotency-key"] for request in cloud_v2.requests_to("/api/v2/jobs")]
    assert len(set(keys)) == len(keys) == 3


@pytest.mark.parametrize(
    ("code", "status", "expected_code"),
    [
        ("insufficient_credits", 402, "comfyui_denied"), ("unauthorized", 401, "comfyui_denied"),
        ("deployment_stopped", 422, "comfyui_denied"), ("invalid_workflow", 422, "invalid_graph"),
        ("workflow_format_ui", 422, "invalid_graph"), ("missing_asset", 422, "missing_asset"),
    ],
)  # fmt: skip
def test_a_refusal_is_distinguished_by_its_code(
    cloud_v2: CloudV2Server, handler: ComfyHandler, code: str, status: int, expected_code: str
) -> None:
    cloud_v2.answers["/v2/jobs"] = [refusal(code, status, f"see https://internal/{KEY}")] * 3
    with pytest.raises(NonRetryableError) as raised:
        handler(task(graphs.basic()))
    assert raised.value.code == expected_code
    assert KEY not in raised.value.message
    assert cloud_v2.runs == []


def test_validation_errors_are_sentences_per_node_in_either_form(
    cloud_v2: CloudV2Server, handler: ComfyHandler
) -> None:
    graph = graphs.basic()
    graph["2"]["inputs"]["upscale_method"] = "magic"
    with pytest.raises(NonRetryableError) as raised:
        handler(task(graph))
    words = "Node 2 (ImageScale): upscale_method: 'magic' is not one of the values that the server offers."
    assert raised.value.message == words
    listed = {"12": [{"field": "model", "reason": "missing_input"}]}
    cloud_v2.answers["/v2/jobs"] = [refusal("invalid_workflow", 422, node_errors=listed)]
    with pytest.raises(NonRetryableError) as raised:
        handler(task(graphs.basic()))
    assert raised.value.message == "Node 12: model: missing_input."


def test_a_missing_asset_is_uploaded_again(cloud_v2: CloudV2Server, handler: ComfyHandler, picture: Path) -> None:
    slot = FileSlot("10", "image", "f1")
    handler(task(graphs.upload(), slot, files={"f1": picture}))
    cloud_v2.assets.clear()
    assert handler(task(graphs.upload(), slot, files={"f1": picture}))["outputs"]
    assert len(cloud_v2.requests_to("/api/v2/assets")) == 2


def test_a_failed_job_is_logged_without_its_prompt(handler: ComfyHandler) -> None:
    ctx = task(graphs.failing("a secret garden at /srv/models/x"))
    with pytest.raises(NonRetryableError) as raised:
        handler(ctx)
    assert raised.value.message.startswith("Node 8 (CallsheetTestFail) failed")
    assert "garden" not in raised.value.message
    assert [kind for _, kind, _ in ctx.uploads] == ["image/png"], "outputs from before the failure are uploaded"


def test_a_stop_cancels_a_waiting_and_a_running_job(cloud_v2: CloudV2Server, handler: ComfyHandler) -> None:
    first = HandlerThread(handler, task(graphs.slow(seconds=20, steps=200)))
    wait_until(lambda: "2" in cloud_v2.reached)
    second = HandlerThread(handler, task(graphs.basic()))
    wait_until(lambda: cloud_v2.queue["pending"])
    for running in (second, first):
        running.ctx.stop = TaskCanceled
        with pytest.raises(TaskCanceled):
            running.result()
    assert cloud_v2.queue == {"running": [], "pending": []}
    assert len(cloud_v2.runs) == 1


def test_redirected_downloads_are_requested_without_the_token(cloud_v2: CloudV2Server, handler: ComfyHandler) -> None:
    storage = StorageServer(cloud_v2.disk.root)
    storage.up()
    cloud_v2.storage_url = storage.url
    assert handler(task(graphs.basic()))["outputs"]
    storage.down()
    assert storage.requests
    assert not any(KEY in str(request) for request in storage.requests)


def test_a_job_of_an_earlier_attempt_is_collected_and_one_that_is_unknown_is_run(
    cloud_v2: CloudV2Server, adapter_v2: CloudV2, handler: ComfyHandler
) -> None:
    graph = graphs.basic()
    ref = adapter_v2.submit(str(uuid.uuid4()), graph)
    assert handler(task(graph, resumed=PreviousSubmission("comfy-v2", ref)))["outputs"]
    assert cloud_v2.runs == [ref]
    assert handler(task(graph, resumed=PreviousSubmission("comfy-v2", str(uuid.uuid4()))))["outputs"]
    assert len(cloud_v2.runs) == 2


def test_a_response_that_is_not_json_counts_as_unreachable(cloud_v2: CloudV2Server, handler: ComfyHandler) -> None:
    cloud_v2.answers["/v2/jobs"] = [as_json({}, 201)._replace(body=b"<html>")]
    with pytest.raises(NonRetryableError) as raised:
        handler(task(graphs.basic()))
    assert raised.value.code == "submission_unknown", "it was accepted under an unknown id"


def test_a_server_error_is_retried_with_the_same_idempotency_key(
    cloud_v2: CloudV2Server, handler: ComfyHandler
) -> None:
    cloud_v2.answers["/v2/jobs"] = [as_json({}, 502)] * 2
    assert handler(task(graphs.basic()))["outputs"]
    keys = [request.headers["idempotency-key"] for request in cloud_v2.requests_to("/api/v2/jobs")]
    assert len(keys) == 3
    assert len(set(keys)) == len(cloud_v2.runs) == 1


def test_a_proxy_without_its_comfyui_server_is_retried(cloud_v2: CloudV2Server, handler: ComfyHandler) -> None:
    unreachable = refusal("upstream_unreachable", 503)
    cloud_v2.answers["/v2/jobs"] = [unreachable._replace(headers=(*unreachable.headers, ("retry-after", "0.01")))] * 2
    assert handler(task(graphs.basic()))["outputs"]
    keys = {request.headers["idempotency-key"] for request in cloud_v2.requests_to("/api/v2/jobs")}
    assert len(keys) == 3, "a key of a request that the proxy could not forward stays used"


def test_a_graph_that_needs_a_websocket_is_rejected(cloud_v2: CloudV2Server, handler: ComfyHandler) -> None:
    with pytest.raises(NonRetryableError) as raised:
        handler(task(graphs.websocket_images()))
    assert raised.value.code == "invalid_graph"
    assert raised.value.message.startswith("Node 9 sends images over a WebSocket")
    assert cloud_v2.requests == []
    assert handler(task(graphs.streamed_and_saved(2), output_node="90"))["outputs"]
