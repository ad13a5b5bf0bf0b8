"""Pictures that a node sends over the WebSocket and the server lists nowhere: outputs, or no success."""

import threading
import uuid
from pathlib import Path

import pytest

from callsheet.core.commands import Resumed
from callsheet.worker import Canceled, GiveUp, Retry
from callsheet.worker.comfyui import CloudV1, ComfyHandler, Pace, SelfHosted
from callsheet.worker.comfyui.base import Missed, Nodes, Preview
from callsheet.worker.comfyui.pictures import Pictures
from tests.support.comfy import samples
from tests.support.comfy.cloud import Cloud
from tests.support.comfy.server import Comfy
from tests.support.waiting import wait_until
from tests.worker.comfyui import graphs
from tests.worker.comfyui.recording import Beside, task

HASTY = Pace(poll_seconds=0.03, look_seconds=0.02, away_seconds=0.3, silence_seconds=0.3)
FAIL = {"image": ["1", 0], "message": "boom", "kind": "runtime"}
SAVE = {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "callsheet/never"}}
PNG = samples.png(64, 48, 3_368_601)
NAMES = [f"websocket_0000{no}_.png" for no in range(1, 6)]


@pytest.mark.parametrize("flagless", [False, True], ids=["with metadata", "old form"])
def test_every_picture_of_a_batch_is_a_file_of_its_node(comfy: Comfy, handler: ComfyHandler, *, flagless: bool) -> None:
    """Both forms, as they were captured: with the node in each picture, or after the word that the node runs."""
    comfy.flagless = flagless
    ctx = task(graphs.socketed(5))
    made = handler(ctx)["outputs"]
    assert made == [{"node": "9", "name": name, "media_type": "image/png", "bytes": len(PNG)} for name in NAMES]
    assert ctx.kept == [(name, "image/png", PNG) for name in NAMES]
    assert len(ctx.previews) == 5
    assert comfy.history == {}


def test_pictures_that_are_still_encoded_when_the_record_says_success_are_waited_for(
    comfy: Comfy, handler: ComfyHandler
) -> None:
    """Trap 10: a server encodes in its own time; the record of the end is there before the pictures are."""
    comfy.encoding = gate = threading.Event()
    running = Beside(handler, task(graphs.socketed(5)))
    wait_until(lambda: any(request.path.startswith("/history/") for request in comfy.requests))
    wait_until(lambda: comfy.history)
    assert not running.over
    gate.set()
    assert [one["name"] for one in running.ended()["outputs"]] == NAMES


@pytest.mark.parametrize("sent", [2, 0])
def test_a_connection_that_breaks_between_pictures_fails_the_try_by_name(
    comfy: Comfy, adapter: SelfHosted, sent: int
) -> None:
    comfy.frames_max = sent
    ctx = task(graphs.socketed(5))
    with pytest.raises(Retry) as raised:
        ComfyHandler(adapter, HASTY)(ctx)
    assert raised.value.code == "pictures_lost"
    assert raised.value.message == (
        "The connection to ComfyUI broke while it sent the pictures of node 9 (SaveImageWebsocket): "
        f"{sent} of 5 arrived."
    )
    assert ctx.kept == []
    assert comfy.history == {}, "nobody takes up what cannot be collected"


def test_a_connection_that_falls_silent_before_the_last_word_fails_the_try_and_is_worth_another(
    comfy: Comfy, adapter: SelfHosted
) -> None:
    comfy.encoding = threading.Event()
    with pytest.raises(Retry) as raised:
        ComfyHandler(adapter, HASTY)(task(graphs.socketed(2)))
    assert raised.value.code == "pictures_lost"


def test_a_connection_that_breaks_before_the_pictures_loses_none(comfy: Comfy, handler: ComfyHandler) -> None:
    hold = comfy.hold("9")
    running = Beside(handler, task(graphs.socketed(3)))
    wait_until(lambda: "9" in comfy.reached)
    comfy.cut_sockets()
    wait_until(lambda: comfy.listeners == 0)
    wait_until(lambda: comfy.listeners == 1)
    hold.set()
    assert [one["name"] for one in running.ended()["outputs"]] == NAMES[:3]


def test_what_cannot_be_heard_is_not_begun(comfy: Comfy, adapter: SelfHosted) -> None:
    comfy.deaf = True
    with pytest.raises(Retry) as raised:
        ComfyHandler(adapter, HASTY)(task(graphs.socketed()))
    assert (raised.value.code, raised.value.message) == (
        "comfyui_unreachable", "Pictures cannot be heard: ComfyUI opens no WebSocket.",
    )  # fmt: skip
    assert comfy.asked_for("/prompt") == []


def test_pictures_that_the_task_does_not_want_may_be_lost(comfy: Comfy, handler: ComfyHandler) -> None:
    comfy.frames_max = 0
    made = handler(task(graphs.shown_and_saved(3), output_node="90"))["outputs"]
    assert [one["node"] for one in made] == ["90"] * 3
    assert all(one["name"].startswith("shown_") for one in made)


def test_what_was_sent_stands_beside_what_was_saved(handler: ComfyHandler) -> None:
    made = handler(task(graphs.shown_and_saved(2)))["outputs"]
    assert [one["node"] for one in made] == ["90", "90", "9", "9"]


def test_pictures_sent_before_a_failure_are_kept_as_its_evidence(handler: ComfyHandler) -> None:
    ctx = task(graphs.socketed(2) | {"8": {"class_type": "CallsheetTestFail", "inputs": FAIL}, "10": SAVE})
    with pytest.raises(GiveUp) as raised:
        handler(ctx)
    assert raised.value.code == "comfyui_failed"
    assert ctx.lines == [f"Made before it failed: {name} of node 9." for name in NAMES[:2]]
    assert [name for name, _, _ in ctx.kept] == NAMES[:2]


def test_pictures_of_an_earlier_try_are_gone_so_it_is_run_anew(
    comfy: Comfy, adapter: SelfHosted, handler: ComfyHandler
) -> None:
    graph = graphs.socketed(2)
    ref = adapter.submit(str(uuid.uuid4()), graph)
    wait_until(lambda: ref in comfy.history)
    ctx = task(graph, resumed=Resumed("comfyui", ref))
    assert [one["name"] for one in Beside(handler, ctx).ended()["outputs"]] == NAMES[:2]
    assert ctx.lines == ["Pictures that an earlier try was sent are gone. It is submitted again."]
    assert len(comfy.runs) == 2
    assert comfy.history == {}


def test_a_stop_is_heard_while_pictures_are_waited_for(comfy: Comfy, handler: ComfyHandler) -> None:
    comfy.encoding = threading.Event()
    running = Beside(handler, task(graphs.socketed()))
    wait_until(lambda: comfy.history)
    running.ctx.stop = Canceled
    with pytest.raises(Canceled):
        running.ended()
    assert running.ctx.kept == []


def test_the_cloud_s_pictures_are_taken_if_they_say_whose_they_are(cloud_v1: Cloud, adapter_v1: CloudV1) -> None:
    """Another prompt of the account may be heard on the same connection."""
    handler = ComfyHandler(adapter_v1, HASTY)
    assert len(handler(task(graphs.socketed(2)))["outputs"]) == 2
    cloud_v1.flagless = True
    with pytest.raises(Retry) as raised:
        handler(task(graphs.socketed(2)))
    assert raised.value.code == "comfyui_unreachable"
    assert len(cloud_v1.runs) == 1, "what would not be heard is not paid for"


def test_a_server_that_sends_nothing_has_made_nothing_and_is_not_waited_for(
    comfy: Comfy, handler: ComfyHandler
) -> None:
    comfy.wordy = True
    with pytest.raises(GiveUp) as raised:
        Beside(handler, task(graphs.socketed(2))).ended()
    assert raised.value.code == "no_output"
    assert raised.value.message.endswith("sent none of the pictures of node 9 (SaveImageWebsocket): use SaveImage.")


def test_what_is_missing_is_worth_another_try_only_if_that_may_hear_more(tmp_path: Path) -> None:
    pictures = Pictures(graphs.socketed(2), None, tmp_path)
    for steps, sent, cut, passing in (
        (2, 0, False, False),
        (2, 0, True, True),
        (2, 1, False, True),
        (None, 1, True, True),
    ):
        pictures.begin()
        pictures.take(Nodes(steps=(("9", steps),) if steps else ()))
        for _ in range(sent):
            pictures.take(Preview(PNG, "9"))
        pictures.take(Preview(PNG, "5"))
        with pytest.raises(Missed) as raised:
            pictures.check(cut=cut)
        assert raised.value.passing is passing
    pictures.begin()
    pictures.take(Preview(PNG, "9"))
    pictures.check(cut=False)
    assert len(pictures.outputs) == 1, "a server that does not count is believed while the connection holds"
