"""The ComfyUI handler on a self-hosted server: outputs, progress, files, stop and resume."""

import hashlib
import uuid
from pathlib import Path

import pytest

from callsheet.core.model.comfyui_graph import FileSlot
from callsheet.core.model.commands import PreviousSubmission
from callsheet.worker import NonRetryableError, RetryableError, TaskCanceled, TaskLeaseLost, TaskStopped, WorkerShutdown
from callsheet.worker.comfyui import AssetCache, ComfyHandler, SelfHosted, Timeouts
from tests.support.comfyui import sample_files
from tests.support.comfyui.asgi_server import as_json, as_text
from tests.support.comfyui.server import ComfyServer
from tests.support.wait import wait_until
from tests.worker.comfyui import graphs
from tests.worker.comfyui.conftest import QUICK
from tests.worker.comfyui.recording_context import HandlerThread, RecordingContext, task

EMPTY_QUEUE: dict[str, list[str]] = {"running": [], "pending": []}


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    path.write_bytes(sample_files.png(4, 4, 7))
    return path


OUTPUTS = [
    (graphs.basic(1), [("9", "image/png")]),
    (graphs.video(), [("9", "video/mp4")]),
    (graphs.animation(), [("8", "image/webp"), ("9", "video/webm")]),
    (graphs.audio(), [("8", "audio/flac"), ("9", "audio/mpeg")]),
    (graphs.third_party(), [("8", "video/mp4"), ("9", "audio/wav")]),
]


def test_media_types_are_detected_from_the_content_of_every_output(comfy: ComfyServer, handler: ComfyHandler) -> None:
    for graph, expected in OUTPUTS:
        ctx = task(graph)
        outputs = handler(ctx)["outputs"]
        assert [(one["node"], one["media_type"]) for one in outputs] == expected
        assert [one["name"] for one in outputs] == [name for name, _, _ in ctx.uploads]
        assert [one["bytes"] for one in outputs] == [len(body) for _, _, body in ctx.uploads]
    assert comfy.history == {}


def test_a_text_is_an_output_without_a_file(handler: ComfyHandler) -> None:
    ctx = task(graphs.text())
    assert handler(ctx) == {"outputs": [{"node": "9", "text": "a red fox in the snow"}]}
    assert ctx.uploads == []
    long = task(graphs.text("x" * 20_000))
    [made] = handler(long)["outputs"]
    assert made["bytes"] == len(long.uploads[0][2]) > 20_000
    assert long.uploads[0][1] == "text/plain"


def test_the_output_does_not_contain_the_prompt_id(handler: ComfyHandler) -> None:
    ctx = task(graphs.basic())
    reported = str((handler(ctx), ctx.progress_reports, ctx.lines))
    [(_, ref)] = ctx.refs
    assert ref not in reported


def test_outputs_come_from_the_configured_node_or_from_all_saved_files(handler: ComfyHandler, picture: Path) -> None:
    """R221."""
    slot = FileSlot("10", "image", "f1")
    chosen = task(graphs.upload(), slot, output_node="13", files={"f1": picture})
    assert [one["node"] for one in handler(chosen)["outputs"]] == ["13"], (
        "a temporary file counts if it is of the output node"
    )
    saved = task(graphs.upload(), slot, files={"f1": picture})
    assert [one["node"] for one in handler(saved)["outputs"]] == ["9"], "temporary files are left out"
    nothing = task(graphs.upload(), slot, output_node="11", files={"f1": picture})
    with pytest.raises(NonRetryableError) as raised:
        handler(nothing)
    assert raised.value.code == "no_output"


def test_progress_rises_per_node_and_step_and_names_the_running_node(handler: ComfyHandler) -> None:
    ctx = task(graphs.slow(seconds=0.3, steps=6))
    handler(ctx)
    assert ctx.percents == sorted(ctx.percents)
    assert len(set(ctx.percents)) > 4
    assert ctx.percents[-1] == 99
    assert {"CallsheetTestSleep", "SaveImage"} <= set(ctx.messages)


@pytest.mark.parametrize(
    ("graph", "last", "pictures"),
    [(graphs.slow(), "9", [sample_files.JPEG[:4]] * 10), (graphs.streamed_and_saved(3), "90", [b"\x89PNG"] * 3)],
    ids=["jpeg", "png"],
)
def test_previews_are_forwarded(
    comfy: ComfyServer, handler: ComfyHandler, graph: graphs.Graph, last: str, pictures: list[bytes]
) -> None:
    """Previews count only while the graph runs, so its last node is blocked until they have arrived."""
    hold = comfy.hold(last)
    running = HandlerThread(handler, task(graph))
    wait_until(lambda: len(running.ctx.previews) == len(pictures))
    hold.set()
    assert running.result()["outputs"]
    assert [picture[:4] for picture in running.ctx.previews] == pictures


def test_a_lost_websocket_is_opened_again(comfy: ComfyServer, handler: ComfyHandler) -> None:
    hold = comfy.hold("1")
    running = HandlerThread(handler, task(graphs.slow(seconds=0.05, steps=2)))
    wait_until(lambda: "1" in comfy.reached)
    comfy.cut_sockets()
    wait_until(lambda: comfy.listeners == 0)
    wait_until(lambda: comfy.listeners == 1)
    last = comfy.hold("9")
    hold.set()
    wait_until(lambda: running.ctx.previews)
    last.set()
    assert running.result()["outputs"]
    assert len(comfy.runs) == 1


def test_a_prompt_completes_without_a_websocket(comfy: ComfyServer, adapter: SelfHosted) -> None:
    class SilentAdapter(SelfHosted):
        def listen(self, prompt_id: str):
            live = super().listen(prompt_id)
            live.close()
            live._reconnect_at = float("inf")  # type: ignore[attr-defined]  # noqa: SLF001 - never reconnects
            return live

    silent_adapter = SilentAdapter(comfy.url)
    ctx = task(graphs.basic())
    assert ComfyHandler(silent_adapter, QUICK)(ctx)["outputs"]
    assert ctx.percents == [99]
    silent_adapter.close()
    assert adapter.endpoint == silent_adapter.endpoint


# -- files


def test_an_unchanged_asset_is_uploaded_once_per_server(
    comfy: ComfyServer, adapter: SelfHosted, picture: Path, tmp_path: Path
) -> None:
    """R218: the cache is keyed by endpoint and content."""
    assets = AssetCache()
    handler = ComfyHandler(adapter, QUICK, assets)
    digest = hashlib.sha256(picture.read_bytes()).hexdigest()
    for digest_or_none in (None, digest):
        ctx = task(graphs.upload(), FileSlot("10", "image", "f1", digest_or_none), files={"f1": picture})
        handler(ctx)
        assert ctx.downloads == ([] if digest_or_none else ["f1"]), "a known digest also saves the download"
    assert len(comfy.requests_to("/upload/image")) == 1
    changed = tmp_path / "changed.png"
    changed.write_bytes(sample_files.png(4, 4, 8))
    handler(task(graphs.upload(), FileSlot("10", "image", "f2"), files={"f2": changed}))
    assert len(comfy.requests_to("/upload/image")) == 2
    with ComfyServer(tmp_path / "other", comfy.version) as other:
        second = SelfHosted(other.url)
        ComfyHandler(second, QUICK, assets)(task(graphs.upload(), FileSlot("10", "image", "f1"), files={"f1": picture}))
        assert len(other.requests_to("/upload/image")) == 1
        second.close()


def test_an_asset_that_the_server_lost_is_uploaded_again(
    comfy: ComfyServer, handler: ComfyHandler, picture: Path
) -> None:
    slot = FileSlot("10", "image", "f1", hashlib.sha256(picture.read_bytes()).hexdigest())
    handler(task(graphs.upload(), slot, files={"f1": picture}))
    for file in (comfy.disk.root / "input").iterdir():
        file.unlink()
    assert handler(task(graphs.upload(), slot, files={"f1": picture}))["outputs"]
    assert len(comfy.requests_to("/upload/image")) == 2


def test_an_upload_is_retried_while_the_server_is_unavailable(
    comfy: ComfyServer, handler: ComfyHandler, picture: Path
) -> None:
    comfy.answers["/upload/image"] = [as_json({}, 503)] * 2
    ctx = task(graphs.upload(), FileSlot("10", "image", "f1"), files={"f1": picture})
    assert handler(ctx)["outputs"]
    assert len(comfy.requests_to("/upload/image")) == 3


def test_the_graph_contains_the_name_that_the_upload_returned(
    comfy: ComfyServer, handler: ComfyHandler, picture: Path
) -> None:
    """R219."""
    name = f"callsheet-{hashlib.sha256(picture.read_bytes()).hexdigest()[:32]}"
    (comfy.disk.root / "input" / f"{name}.png").write_bytes(b"something else of this name")
    ctx = task(graphs.upload(), FileSlot("10", "image", "f1"), files={"f1": picture})
    assert handler(ctx)["outputs"]
    sent = comfy.requests_to("/prompt")[0].json()["prompt"]["10"]["inputs"]["image"]
    assert sent == f"{name} (1).png"
    assert ctx.comfyui is not None
    assert ctx.comfyui.graph["10"]["inputs"]["image"] == "", "the graph of the task is not changed"


def test_a_file_above_the_upload_limit_is_rejected(comfy: ComfyServer, handler: ComfyHandler, picture: Path) -> None:
    ctx = task(graphs.upload(), FileSlot("10", "image", "f1"), files={"f1": picture})
    comfy.answers["/upload/image"] = [as_text("Maximum request body size 104857600 exceeded.", 413)]
    with pytest.raises(NonRetryableError) as raised:
        handler(ctx)
    assert raised.value.code == "file_too_large"
    comfy.answers["/features"] = [as_json({"max_upload_size": 10})]
    with pytest.raises(NonRetryableError) as raised:
        handler(ctx)
    assert raised.value.code == "file_too_large"
    assert len(comfy.requests_to("/upload/image")) == 1, "a file that is known to be too large is not sent"


def test_an_output_above_the_limit_is_not_uploaded(comfy: ComfyServer) -> None:
    adapter = SelfHosted(comfy.url, bytes_max=20)
    ctx = task(graphs.basic())
    with pytest.raises(NonRetryableError) as raised:
        ComfyHandler(adapter, QUICK)(ctx)
    assert raised.value.code == "file_too_large"
    assert ctx.uploads == []
    adapter.close()


def test_a_failed_download_does_not_run_the_prompt_again(comfy: ComfyServer, handler: ComfyHandler) -> None:
    comfy.answers["/view"] = [as_json({}, 503)] * 3
    assert handler(task(graphs.basic()))["outputs"]
    assert len(comfy.runs) == 1


def test_temporary_files_are_only_in_the_folder_of_the_task(handler: ComfyHandler, temporary: Path) -> None:
    done, failing, stopped = (task(graphs.animation()), task(graphs.failing()), task(graphs.animation()))
    stopped.stop_at_upload = TaskCanceled
    handler(done)
    with pytest.raises(NonRetryableError):
        handler(failing)
    with pytest.raises(TaskCanceled):
        handler(stopped)
    assert {*temporary.iterdir()} == {done.folder, failing.folder, stopped.folder}
    assert [path for path in stopped.folder.rglob("*") if path.is_file()] != []


# -- stop


@pytest.mark.parametrize("stop", [TaskCanceled, TaskLeaseLost, WorkerShutdown])
def test_a_stop_cancels_the_running_prompt(comfy: ComfyServer, handler: ComfyHandler, stop: type[TaskStopped]) -> None:
    running = HandlerThread(handler, task(graphs.slow(seconds=20, steps=200)))
    wait_until(lambda: "2" in comfy.reached)
    running.ctx.stop = stop
    with pytest.raises(stop):
        running.result()
    assert comfy.queue == EMPTY_QUEUE
    assert comfy.history == {}


def test_a_stop_removes_the_waiting_prompt_from_the_queue(comfy: ComfyServer, handler: ComfyHandler) -> None:
    hold = comfy.hold("2")
    first = HandlerThread(handler, task(graphs.slow(seconds=0.05)))
    wait_until(lambda: "2" in comfy.reached)
    second = HandlerThread(handler, task(graphs.basic()))
    wait_until(lambda: comfy.queue["pending"])
    second.ctx.stop = TaskCanceled
    with pytest.raises(TaskCanceled):
        second.result()
    assert comfy.queue["pending"] == []
    hold.set()
    assert first.result()["outputs"], "the other one continues"
    assert len(comfy.runs) == 1


def test_a_stop_during_the_submission_cancels_the_prompt(comfy: ComfyServer, handler: ComfyHandler) -> None:
    ctx = task(graphs.slow(seconds=20, steps=200), stop_at_submit=TaskCanceled)
    with pytest.raises(TaskCanceled):
        handler(ctx)
    assert comfy.queue == EMPTY_QUEUE


def test_a_stop_before_the_submission_sends_nothing(comfy: ComfyServer, handler: ComfyHandler) -> None:
    with pytest.raises(TaskCanceled):
        handler(task(graphs.basic(), stop=TaskCanceled))
    assert comfy.requests_to("/prompt") == []


def test_a_stop_waits_for_the_end_of_a_node_that_cannot_be_interrupted(
    comfy: ComfyServer, handler: ComfyHandler
) -> None:
    hold = comfy.hold("1")
    running = HandlerThread(handler, task(graphs.slow(seconds=20, steps=200)))
    wait_until(lambda: "1" in comfy.reached)
    running.ctx.stop = TaskCanceled
    wait_until(lambda: len([r for r in comfy.requests if r.path.endswith(("/cancel", "/interrupt"))]) > 1)
    assert not running.has_ended
    hold.set()
    with pytest.raises(TaskCanceled):
        running.result()
    assert comfy.queue == EMPTY_QUEUE


def test_a_stop_during_the_upload_of_outputs_leaves_no_prompt(comfy: ComfyServer, handler: ComfyHandler) -> None:
    ctx = task(graphs.animation(), stop_at_upload=TaskLeaseLost)
    with pytest.raises(TaskLeaseLost):
        handler(ctx)
    assert ctx.uploads == []
    assert comfy.queue == EMPTY_QUEUE


def test_a_prompt_above_its_timeout_is_canceled(comfy: ComfyServer, adapter: SelfHosted) -> None:
    """R220."""
    handler = ComfyHandler(adapter, Timeouts(poll_seconds=0.05, prompt_timeout_seconds=0.3))
    with pytest.raises(NonRetryableError) as raised:
        handler(task(graphs.slow(seconds=20, steps=200)))
    assert raised.value.code == "comfyui_timeout"
    assert comfy.queue == EMPTY_QUEUE
    assert (Timeouts().poll_seconds, Timeouts().prompt_timeout_seconds) == (2, 3_600)


# -- resume


def submit_earlier(comfy: ComfyServer, adapter: SelfHosted, graph: graphs.Graph) -> RecordingContext:
    ref = adapter.submit(str(uuid.uuid4()), graph)
    wait_until(lambda: comfy.runs)
    return task(graph, resumed=PreviousSubmission("comfyui", ref))


def test_a_running_prompt_is_resumed(comfy: ComfyServer, adapter: SelfHosted, handler: ComfyHandler) -> None:
    hold = comfy.hold("2")
    ctx = submit_earlier(comfy, adapter, graphs.slow(seconds=0.05))
    running = HandlerThread(handler, ctx)
    wait_until(lambda: len(comfy.requests_to("/queue")) > 1)
    hold.set()
    assert running.result()["outputs"]
    assert len(comfy.runs) == len(comfy.requests_to("/prompt")) == 1
    assert ctx.refs == []


def test_a_prompt_that_has_ended_is_collected(comfy: ComfyServer, adapter: SelfHosted, handler: ComfyHandler) -> None:
    ctx = submit_earlier(comfy, adapter, graphs.basic())
    wait_until(lambda: comfy.history)
    assert handler(ctx)["outputs"]
    assert len(comfy.runs) == 1
    assert comfy.history == {}


def test_a_failed_prompt_of_an_earlier_attempt_is_reported(
    comfy: ComfyServer, adapter: SelfHosted, handler: ComfyHandler
) -> None:
    ctx = submit_earlier(comfy, adapter, graphs.failing())
    with pytest.raises(NonRetryableError):
        handler(ctx)
    assert len(comfy.runs) == 1


def test_a_prompt_that_is_lost_or_of_another_provider_is_submitted_again(
    comfy: ComfyServer, adapter: SelfHosted, handler: ComfyHandler
) -> None:
    lost = task(graphs.basic(), resumed=PreviousSubmission("comfyui", str(uuid.uuid4())))
    assert handler(lost)["outputs"]
    ref = adapter.submit(str(uuid.uuid4()), graphs.basic())
    wait_until(lambda: ref in comfy.history)
    foreign = task(graphs.basic(), resumed=PreviousSubmission("comfy-cloud", ref))
    assert handler(foreign)["outputs"]
    assert len(comfy.runs) == 3


def test_a_prompt_interrupted_on_the_server_is_submitted_again(comfy: ComfyServer, handler: ComfyHandler) -> None:
    hold = comfy.hold("2")
    running = HandlerThread(handler, task(graphs.slow(seconds=0.05)))
    wait_until(lambda: "2" in comfy.reached)
    comfy._interrupt(None)  # noqa: SLF001 - what the editor does to interrupt
    hold.set()
    assert running.result()["outputs"]
    assert len(comfy.runs) == 2


def test_out_of_gpu_memory_is_retryable(handler: ComfyHandler) -> None:
    with pytest.raises(RetryableError) as raised:
        handler(task(graphs.failing("Allocation on device failed", kind="oom")))
    assert raised.value.code == "comfyui_failed"


def test_a_task_without_a_graph_is_refused(handler: ComfyHandler) -> None:
    with pytest.raises(NonRetryableError) as raised:
        handler(RecordingContext(None))
    assert raised.value.code == "no_graph"


def test_the_password_of_a_server_is_sent_to_it_only(comfy: ComfyServer) -> None:
    adapter = SelfHosted(comfy.url.replace("//", "//ada:pass%20word@"))
    ctx = task(graphs.slow())
    assert ComfyHandler(adapter, QUICK)(ctx)["outputs"]
    assert ctx.previews
    assert {request.headers["authorization"] for request in comfy.requests} == {"Basic YWRhOnBhc3Mgd29yZA=="}
    assert adapter.endpoint == comfy.url
    adapter.close()
