"""Thirteen quirks of real ComfyUI servers, each with at least one test, on every version that has them."""

import json
import threading
import time
import uuid
from pathlib import Path

import httpx
import pytest

from callsheet.comfyui.node_info import combo_choices
from callsheet.core.model.comfyui_graph import FileSlot
from callsheet.worker import NonRetryableError, RetryableError, TaskCanceled
from callsheet.worker.comfyui import ComfyHandler, ComfyRejectedError, SelfHosted, Timeouts
from callsheet.worker.comfyui.adapters.base import NOT_FOUND, PromptResult
from tests.support.comfyui.asgi_server import as_json
from tests.support.comfyui.nodes import object_info
from tests.support.comfyui.server import ComfyServer
from tests.support.comfyui.server_state import NEW, OLD
from tests.support.wait import wait_until
from tests.worker.comfyui import graphs
from tests.worker.comfyui.conftest import QUICK
from tests.worker.comfyui.recording_context import HandlerThread, task


def test_quirk_1_a_prompt_that_a_restart_lost_is_submitted_again(comfy: ComfyServer, handler: ComfyHandler) -> None:
    hold = comfy.hold("2")
    running = HandlerThread(handler, task(graphs.slow()))
    wait_until(lambda: "2" in comfy.reached)
    comfy.down()
    hold.set()
    del comfy.held["2"]
    comfy.up()
    assert [file["node"] for file in running.result()["outputs"]] == ["9"]
    first, second = (ref for _, ref in running.ctx.refs)
    assert first != second
    assert comfy.runs == [first, second]
    assert running.ctx.lines == ["The ComfyUI server lost the prompt. Submitting it again."]
    assert running.ctx.percents == sorted(running.ctx.percents)


def test_quirk_1_the_queue_is_read_before_the_history(comfy: ComfyServer, adapter: SelfHosted) -> None:
    """In the other order, a prompt that ends between the two reads would look lost."""
    ref = adapter.submit(str(uuid.uuid4()), graphs.basic())
    wait_until(lambda: isinstance(adapter.get_status(ref), PromptResult))
    comfy.requests.clear()
    adapter.get_status(ref)
    assert [request.path for request in comfy.requests] == ["/queue", f"/history/{ref}"]


def test_quirk_1_a_prompt_is_not_lost_after_one_failed_lookup(comfy: ComfyServer, handler: ComfyHandler) -> None:
    comfy.answers["/queue"] = [as_json({"queue_running": [], "queue_pending": []})]
    hold = comfy.hold("9")
    running = HandlerThread(handler, task(graphs.basic()))
    wait_until(lambda: len(comfy.requests_to("/queue")) > 3)
    hold.set()
    assert running.result()["outputs"]
    assert len(running.ctx.refs) == len(comfy.runs) == 1


def test_quirk_2_the_prompt_id_is_a_canonical_uuid_and_recorded_before_the_submission(
    comfy: ComfyServer, handler: ComfyHandler
) -> None:
    ctx = task(graphs.basic(), stop_at_submit=None)
    handler(ctx)
    sent = comfy.requests_to("/prompt")[0].json()["prompt_id"]
    assert ctx.refs == [("comfyui", sent)]
    assert str(uuid.UUID(sent)) == sent
    refused = task(graphs.basic(), stop=TaskCanceled)
    with pytest.raises(TaskCanceled):
        handler(refused)
    assert len(comfy.requests_to("/prompt")) == 1, "a prompt whose id could not be recorded is not sent"


def test_quirk_2_a_lost_response_does_not_run_the_prompt_twice(comfy: ComfyServer, handler: ComfyHandler) -> None:
    comfy.lost_answers["/prompt"] = 1
    ctx = task(graphs.basic())
    assert handler(ctx)["outputs"]
    assert comfy.runs == [ref for _, ref in ctx.refs]
    assert len(comfy.requests_to("/prompt")) == 1


def test_quirk_2_a_failed_request_is_sent_again_with_the_same_id(comfy: ComfyServer, handler: ComfyHandler) -> None:
    comfy.answers["/prompt"] = [as_json({}, 503)]
    ctx = task(graphs.basic())
    assert handler(ctx)["outputs"]
    sent = [request.json()["prompt_id"] for request in comfy.requests_to("/prompt")]
    assert len(sent) == 2
    assert set(sent) == {ref for _, ref in ctx.refs} == set(comfy.runs)


def test_quirk_3_a_cached_run_has_its_outputs_because_the_client_id_is_always_sent(
    comfy: ComfyServer, handler: ComfyHandler
) -> None:
    graph = graphs.basic()
    first, second = handler(task(graph)), handler(task(graph))
    assert first == second
    assert all(request.json()["client_id"] for request in comfy.requests_to("/prompt"))
    # The quirk itself: without a client id, 0.7.0 reports no outputs.
    with httpx.Client(base_url=comfy.url) as bare:
        prompt_id = bare.post("/prompt", json={"prompt": graph}).json()["prompt_id"]
        wait_until(lambda: prompt_id in comfy.history)
    assert bool(comfy.history[prompt_id]["outputs"]) is (comfy.version != OLD)
    assert comfy.history[prompt_id]["status"]["status_str"] == "success"


def test_quirk_4_a_deleted_cached_output_is_created_again(comfy: ComfyServer, handler: ComfyHandler) -> None:
    graph = graphs.basic()
    handler(task(graph))
    for file in (comfy.disk.root / "output" / "callsheet").iterdir():
        file.unlink()
    ctx = task(graph)
    [made] = handler(ctx)["outputs"]
    assert made["bytes"] == len(ctx.uploads[0][2]) > 0
    assert len(ctx.refs) == 2, "the second run is another prompt"
    assert "callsheet_nonce" not in json.dumps(graph), "the graph of the task is not changed"


def test_quirk_4_a_missing_output_is_not_a_success(comfy: ComfyServer, handler: ComfyHandler) -> None:
    comfy.answers["/view"] = [as_json(None, 404)] * 10
    ctx = task(graphs.basic())
    with pytest.raises(RetryableError) as raised:
        handler(ctx)
    assert raised.value.code == "prompt_lost"
    assert ctx.uploads == []
    assert len(comfy.runs) == QUICK.submissions_max


def test_quirk_5_node_errors_in_a_success_response_are_a_rejection_and_cancel_the_prompt(
    comfy: ComfyServer, handler: ComfyHandler
) -> None:
    comfy.hold("9")
    running = HandlerThread(handler, task(graphs.half_valid()))
    wait_until(lambda: comfy.requests_to("/prompt"))
    wait_until(lambda: any(r.path.endswith(("/cancel", "/interrupt")) for r in comfy.requests))
    comfy.held["9"].set()
    with pytest.raises(NonRetryableError) as raised:
        running.result()
    assert raised.value.code == "invalid_graph"
    assert raised.value.message == "Node 8 (SaveImage): images is missing."
    assert comfy.queue == {"running": [], "pending": []}


def test_quirk_6_a_literal_instead_of_a_link_fails_with_its_node(comfy: ComfyServer, handler: ComfyHandler) -> None:
    graph = graphs.basic()
    graph["2"]["inputs"]["image"] = "notalink"
    with pytest.raises(NonRetryableError) as raised:
        handler(task(graph))
    assert raised.value.code == "comfyui_failed"
    assert raised.value.message.startswith("Node 2 (ImageScale) failed: AttributeError")
    assert len(comfy.runs) == 1


def test_quirk_7_a_prompt_without_outputs_fails_at_once(comfy: ComfyServer, handler: ComfyHandler) -> None:
    ctx = task(graphs.websocket_images(), output_node="1")
    with pytest.raises(NonRetryableError) as raised:
        handler(ctx)
    assert raised.value.code == "no_output"
    assert raised.value.message == "The graph ran, but its output node 1 produced no file and no text."
    assert len(comfy.runs) == 1
    assert comfy.history == {}


def test_quirk_7_a_failed_prompt_with_outputs_is_failed_and_its_outputs_are_uploaded(
    comfy: ComfyServer, handler: ComfyHandler
) -> None:
    ctx = task(graphs.failing())
    with pytest.raises(NonRetryableError) as raised:
        handler(ctx)
    assert raised.value.message == "Node 8 (CallsheetTestFail) failed: RuntimeError: [input]"
    assert [(name, kind) for name, kind, _ in ctx.uploads] == [("partial_ok_00001_.png", "image/png")]
    assert ctx.lines == ["Produced before the failure: partial_ok_00001_.png of node 7."]
    assert comfy.history == {}


def test_quirk_8_a_lost_interrupt_is_sent_again(comfy: ComfyServer, handler: ComfyHandler) -> None:
    comfy.interrupts_lost = 2
    running = HandlerThread(handler, task(graphs.slow(seconds=20, steps=100)))
    wait_until(lambda: "2" in comfy.reached)
    running.ctx.stop = TaskCanceled
    with pytest.raises(TaskCanceled):
        running.result()
    assert comfy.interrupts_lost == 0
    assert comfy.queue == {"running": [], "pending": []}
    ref = running.ctx.refs[0][1]
    interrupts = [request.json() for request in comfy.requests_to("/interrupt")]
    assert interrupts == ([{"prompt_id": ref}] * 3 if comfy.version == OLD else []), "quirk 9: never without its id"


def test_quirk_8_a_canceled_prompt_may_still_succeed(comfy: ComfyServer, handler: ComfyHandler) -> None:
    comfy.interrupts_lost = 1_000
    hold = comfy.hold("2")
    running = HandlerThread(handler, task(graphs.slow(seconds=0.05)))
    wait_until(lambda: "2" in comfy.reached)
    running.ctx.stop = TaskCanceled
    wait_until(lambda: comfy.interrupts_lost < 999)
    hold.set()
    with pytest.raises(TaskCanceled):
        running.result()
    assert running.ctx.uploads == []
    assert comfy.history == {}


def test_quirk_9_other_prompts_are_never_interrupted(
    comfy: ComfyServer, handler: ComfyHandler, adapter: SelfHosted
) -> None:
    hold = comfy.hold("2")
    other = adapter.submit(str(uuid.uuid4()), graphs.slow(seconds=0.05))
    wait_until(lambda: "2" in comfy.reached)
    waiting = HandlerThread(handler, task(graphs.basic()))
    wait_until(lambda: comfy.queue["pending"])
    waiting.ctx.stop = TaskCanceled
    with pytest.raises(TaskCanceled):
        waiting.result()
    hold.set()
    wait_until(lambda: other in comfy.history)
    assert comfy.history[other]["status"]["status_str"] == "success"
    assert comfy.runs == [other]
    adapter.cancel(other)
    adapter.cancel(str(uuid.uuid4()))
    assert comfy.requests_to("/interrupt") == [], "a prompt that does not run is not interrupted"


def test_quirk_10_a_server_that_stalls_for_a_while_is_waited_for(comfy: ComfyServer, handler: ComfyHandler) -> None:
    hold = comfy.hold("9")
    running = HandlerThread(handler, task(graphs.basic()))
    wait_until(lambda: "9" in comfy.reached)
    gate = comfy.gates["/queue"] = threading.Event()
    requested = len(comfy.requests_to("/queue"))
    wait_until(lambda: len(comfy.requests_to("/queue")) > requested)
    hold.set()
    stalled_until = time.monotonic() + 0.5
    wait_until(lambda: time.monotonic() > stalled_until)
    assert not running.has_ended
    gate.set()
    del comfy.gates["/queue"]
    assert running.result()["outputs"]
    assert len(running.ctx.refs) == 1


def test_quirk_10_failed_polls_are_tolerated_for_a_while(comfy: ComfyServer, handler: ComfyHandler) -> None:
    hold = comfy.hold("9")
    running = HandlerThread(handler, task(graphs.basic()))
    wait_until(lambda: "9" in comfy.reached)
    comfy.lost_answers["/queue"] = 2
    wait_until(lambda: not comfy.lost_answers["/queue"])
    requested = len(comfy.requests_to("/queue"))
    wait_until(lambda: len(comfy.requests_to("/queue")) > requested)
    hold.set()
    assert running.result()["outputs"]
    assert len(running.ctx.refs) == 1


def test_quirk_10_a_client_waits_at_least_thirty_seconds_for_a_response(adapter: SelfHosted) -> None:
    timeout = adapter._http._client.timeout  # noqa: SLF001 - waiting for the timeout would take too long
    assert min(timeout.read or 0, timeout.write or 0) >= 30


SECRET = "a portrait of Ada at /home/ada/private in the secret garden"


def test_quirk_11_an_error_contains_no_path_and_no_prompt(handler: ComfyHandler) -> None:
    leaky = f"cannot open /var/lib/comfyui/models/x.safetensors for '{SECRET}'"
    graph = graphs.failing(leaky) | {"20": {"class_type": "PrimitiveString", "inputs": {"value": SECRET}}}
    ctx = task(graph)
    with pytest.raises(NonRetryableError) as raised:
        handler(ctx)
    reported = json.dumps([raised.value.message, ctx.lines, ctx.progress_reports])
    assert "/var/lib" not in reported
    assert "Ada" not in reported
    assert "garden" not in reported
    assert "raceback" not in reported


def test_quirk_11_an_unreadable_file_is_reported_without_its_path(handler: ComfyHandler, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a picture")
    ctx = task(graphs.upload(), FileSlot("10", "image", "f1"), files={"f1": broken})
    with pytest.raises(NonRetryableError) as raised:
        handler(ctx)
    assert raised.value.message.startswith("Node 10 (LoadImage) failed: UnidentifiedImageError: cannot identify")
    assert "comfyui/input" not in raised.value.message


def test_quirk_12_both_encodings_of_a_list_of_choices_are_parsed() -> None:
    old = object_info("ImageScale")["input"]["required"]["upscale_method"]
    new = object_info("SaveAudioMP3")["input"]["required"]["quality"]
    assert combo_choices(old) == ["nearest-exact", "bilinear", "area", "bicubic", "lanczos"]
    assert combo_choices(new) == ["V0", "128k", "320k"]


def test_quirk_13_the_history_entry_is_deleted_after_collection(comfy: ComfyServer, handler: ComfyHandler) -> None:
    ctx = task(graphs.basic())
    handler(ctx)
    assert comfy.history == {}
    assert [request.json() for request in comfy.requests_to("/history")] == [{"delete": [ctx.refs[0][1]]}]


def test_the_adapter_supports_the_differences_between_versions(comfy: ComfyServer, adapter: SelfHosted) -> None:
    ref = str(uuid.uuid4())
    with httpx.Client(base_url=comfy.url) as bare:
        cancel = bare.post(f"/api/jobs/{ref}/cancel")
        bad_id = bare.post("/prompt", json={"prompt": graphs.basic(), "prompt_id": ref.upper()})
        foreign = bare.get("/queue", headers={"Origin": "http://evil.example"})
    assert cancel.status_code == (405 if comfy.version == OLD else 200)
    assert bad_id.status_code == (400 if comfy.version == NEW else 200)
    assert foreign.status_code == 403
    adapter.cancel(ref)
    assert adapter.get_status(ref) == NOT_FOUND
    assert not any("origin" in request.headers for request in comfy.requests if request.path != "/queue")


def test_a_graph_in_the_editor_format_is_refused_and_not_sent(comfy: ComfyServer, handler: ComfyHandler) -> None:
    with pytest.raises(NonRetryableError) as raised:
        handler(task({"nodes": [], "links": [], "version": 0.4}))
    assert raised.value.message == "The graph is in the editor format of ComfyUI. Export it with Export (API)."
    assert comfy.requests_to("/prompt") == []


def test_an_unreachable_server_is_distinguished_from_an_invalid_graph(tmp_path: Path) -> None:
    server = ComfyServer(tmp_path)
    adapter = SelfHosted(server.url)
    handler = ComfyHandler(adapter, Timeouts(poll_seconds=0.05, outage_timeout_seconds=0.5))
    with pytest.raises(RetryableError) as raised:
        handler(task(graphs.basic()))
    assert raised.value.code == "comfyui_unreachable"
    assert str(server.url) not in raised.value.message
    adapter.close()


def test_validation_errors_are_sentences_per_node(comfy: ComfyServer, adapter: SelfHosted) -> None:
    graph = graphs.basic()
    graph["1"]["inputs"]["width"] = 0
    graph["2"]["inputs"] |= {"upscale_method": "magic", "height": "tall"}
    del graph["2"]["inputs"]["crop"]
    with pytest.raises(ComfyRejectedError) as raised:
        adapter.submit(str(uuid.uuid4()), graph)
    assert set(raised.value.nodes) == {"1", "2"}
    assert "Node 1 (EmptyImage): width is 0, the minimum is 1." in str(raised.value)
    assert "upscale_method: 'magic' is not one of the values that the server offers" in str(raised.value)
    assert "height has the wrong type" in str(raised.value)
    assert "crop is missing" in str(raised.value)
    unknown = graphs.basic() | {"4": {"class_type": "NoSuchNode", "inputs": {}}}
    with pytest.raises(ComfyRejectedError) as raised:
        adapter.submit(str(uuid.uuid4()), unknown)
    assert "NoSuchNode" in str(raised.value)
    assert str(raised.value).startswith("Node 4: ")
    assert comfy.runs == []
