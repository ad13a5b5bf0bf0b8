"""Images that a node sends over the WebSocket only: each becomes an output, or the attempt fails."""

import threading
import uuid
from pathlib import Path

import pytest

from callsheet.core.model.commands import PreviousSubmission
from callsheet.worker import NonRetryableError, RetryableError, TaskCanceled
from callsheet.worker.comfyui import CloudV1, ComfyHandler, SelfHosted, Timeouts
from callsheet.worker.comfyui.adapters.base import NodeProgress, PicturesLostError, Preview
from callsheet.worker.comfyui.websocket_images import ReceivedPictures
from tests.support.comfyui import sample_files
from tests.support.comfyui.cloud_v1 import CloudV1Server
from tests.support.comfyui.server import ComfyServer
from tests.support.wait import wait_until
from tests.worker.comfyui import graphs
from tests.worker.comfyui.recording_context import HandlerThread, task

SHORT_TIMEOUTS = Timeouts(
    poll_seconds=0.03, retry_seconds=0.02, outage_timeout_seconds=0.3, picture_timeout_seconds=0.3
)
FAIL = {"image": ["1", 0], "message": "boom", "kind": "runtime"}
SAVE = {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "callsheet/never"}}
PNG = sample_files.png(64, 48, 3_368_601)
NAMES = [f"websocket_0000{no}_.png" for no in range(1, 6)]


@pytest.mark.parametrize("ignore_feature_flags", [False, True], ids=["with metadata", "old form"])
def test_every_image_of_a_batch_becomes_a_file_of_its_node(
    comfy: ComfyServer, handler: ComfyHandler, *, ignore_feature_flags: bool
) -> None:
    """Both captured forms: with the node in each image, or after a message that the node runs."""
    comfy.ignore_feature_flags = ignore_feature_flags
    ctx = task(graphs.websocket_images(5))
    made = handler(ctx)["outputs"]
    assert made == [{"node": "9", "name": name, "media_type": "image/png", "bytes": len(PNG)} for name in NAMES]
    assert ctx.uploads == [(name, "image/png", PNG) for name in NAMES]
    assert len(ctx.previews) == 5
    assert comfy.history == {}


def test_images_that_are_encoded_after_the_end_are_awaited(comfy: ComfyServer, handler: ComfyHandler) -> None:
    """The server may write the history entry before it has encoded the images."""
    comfy.encoding_gate = gate = threading.Event()
    running = HandlerThread(handler, task(graphs.websocket_images(5)))
    wait_until(lambda: any(request.path.startswith("/history/") for request in comfy.requests))
    wait_until(lambda: comfy.history)
    assert not running.has_ended
    gate.set()
    assert [one["name"] for one in running.result()["outputs"]] == NAMES


@pytest.mark.parametrize("sent", [2, 0])
def test_a_connection_lost_between_images_fails_the_attempt(comfy: ComfyServer, adapter: SelfHosted, sent: int) -> None:
    comfy.frames_max = sent
    ctx = task(graphs.websocket_images(5))
    with pytest.raises(RetryableError) as raised:
        ComfyHandler(adapter, SHORT_TIMEOUTS)(ctx)
    assert raised.value.code == "pictures_lost"
    assert raised.value.message == (
        "The connection to ComfyUI was lost while it sent the images of node 9 (SaveImageWebsocket): "
        f"{sent} of 5 arrived."
    )
    assert ctx.uploads == []
    assert comfy.history == {}, "a prompt that cannot be collected is not resumed"


def test_a_silent_connection_before_the_final_message_is_a_retryable_failure(
    comfy: ComfyServer, adapter: SelfHosted
) -> None:
    comfy.encoding_gate = threading.Event()
    with pytest.raises(RetryableError) as raised:
        ComfyHandler(adapter, SHORT_TIMEOUTS)(task(graphs.websocket_images(2)))
    assert raised.value.code == "pictures_lost"


def test_a_connection_lost_before_the_images_loses_none(comfy: ComfyServer, handler: ComfyHandler) -> None:
    hold = comfy.hold("9")
    running = HandlerThread(handler, task(graphs.websocket_images(3)))
    wait_until(lambda: "9" in comfy.reached)
    comfy.cut_sockets()
    wait_until(lambda: comfy.listeners == 0)
    wait_until(lambda: comfy.listeners == 1)
    hold.set()
    assert [one["name"] for one in running.result()["outputs"]] == NAMES[:3]


def test_a_prompt_is_not_submitted_without_the_websocket_it_needs(comfy: ComfyServer, adapter: SelfHosted) -> None:
    comfy.refuse_websockets = True
    with pytest.raises(RetryableError) as raised:
        ComfyHandler(adapter, SHORT_TIMEOUTS)(task(graphs.websocket_images()))
    assert (raised.value.code, raised.value.message) == (
        "comfyui_unreachable", "Images cannot be received: ComfyUI accepts no WebSocket connection.",
    )  # fmt: skip
    assert comfy.requests_to("/prompt") == []


def test_unused_images_may_be_lost(comfy: ComfyServer, handler: ComfyHandler) -> None:
    comfy.frames_max = 0
    made = handler(task(graphs.streamed_and_saved(3), output_node="90"))["outputs"]
    assert [one["node"] for one in made] == ["90"] * 3
    assert all(one["name"].startswith("shown_") for one in made)


def test_sent_and_saved_images_are_both_outputs(handler: ComfyHandler) -> None:
    made = handler(task(graphs.streamed_and_saved(2)))["outputs"]
    assert [one["node"] for one in made] == ["90", "90", "9", "9"]


def test_images_sent_before_a_failure_are_uploaded(handler: ComfyHandler) -> None:
    ctx = task(graphs.websocket_images(2) | {"8": {"class_type": "CallsheetTestFail", "inputs": FAIL}, "10": SAVE})
    with pytest.raises(NonRetryableError) as raised:
        handler(ctx)
    assert raised.value.code == "comfyui_failed"
    assert ctx.lines == [f"Produced before the failure: {name} of node 9." for name in NAMES[:2]]
    assert [name for name, _, _ in ctx.uploads] == NAMES[:2]


def test_images_of_an_earlier_attempt_are_lost_so_the_prompt_runs_again(
    comfy: ComfyServer, adapter: SelfHosted, handler: ComfyHandler
) -> None:
    graph = graphs.websocket_images(2)
    ref = adapter.submit(str(uuid.uuid4()), graph)
    wait_until(lambda: ref in comfy.history)
    ctx = task(graph, resumed=PreviousSubmission("comfyui", ref))
    assert [one["name"] for one in HandlerThread(handler, ctx).result()["outputs"]] == NAMES[:2]
    assert ctx.lines == ["The images that were sent to an earlier attempt are lost. Submitting it again."]
    assert len(comfy.runs) == 2
    assert comfy.history == {}


def test_a_stop_is_noticed_while_waiting_for_images(comfy: ComfyServer, handler: ComfyHandler) -> None:
    comfy.encoding_gate = threading.Event()
    running = HandlerThread(handler, task(graphs.websocket_images()))
    wait_until(lambda: comfy.history)
    running.ctx.stop = TaskCanceled
    with pytest.raises(TaskCanceled):
        running.result()
    assert running.ctx.uploads == []


def test_cloud_images_are_accepted_if_they_name_their_prompt(cloud_v1: CloudV1Server, adapter_v1: CloudV1) -> None:
    """The connection also receives other prompts of the account."""
    handler = ComfyHandler(adapter_v1, SHORT_TIMEOUTS)
    assert len(handler(task(graphs.websocket_images(2)))["outputs"]) == 2
    cloud_v1.ignore_feature_flags = True
    with pytest.raises(RetryableError) as raised:
        handler(task(graphs.websocket_images(2)))
    assert raised.value.code == "comfyui_unreachable"
    assert len(cloud_v1.runs) == 1, "a prompt whose images would be lost is not submitted"


def test_a_server_that_sends_no_images_fails_without_waiting(comfy: ComfyServer, handler: ComfyHandler) -> None:
    comfy.drop_previews = True
    with pytest.raises(NonRetryableError) as raised:
        HandlerThread(handler, task(graphs.websocket_images(2))).result()
    assert raised.value.code == "no_output"
    assert raised.value.message.endswith(
        "sent none of the images of node 9 (SaveImageWebsocket). Use SaveImage instead."
    )


def test_missing_images_are_retryable_only_if_another_attempt_may_receive_more(tmp_path: Path) -> None:
    pictures = ReceivedPictures(graphs.websocket_images(2), None, tmp_path)
    for steps, sent, disconnected, retryable in (
        (2, 0, False, False),
        (2, 0, True, True),
        (2, 1, False, True),
        (None, 1, True, True),
    ):
        pictures.reset()
        pictures.apply(NodeProgress(steps=(("9", steps),) if steps else ()))
        for _ in range(sent):
            pictures.apply(Preview(PNG, "9"))
        pictures.apply(Preview(PNG, "5"))
        with pytest.raises(PicturesLostError) as raised:
            pictures.check(disconnected=disconnected)
        assert raised.value.retryable is retryable
    pictures.reset()
    pictures.apply(Preview(PNG, "9"))
    pictures.check(disconnected=False)
    assert len(pictures.outputs) == 1, "without a count, the received images are accepted while the connection is open"
