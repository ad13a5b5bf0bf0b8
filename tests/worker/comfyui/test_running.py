"""A graph at a server of one's own, from the task to its files: what is made, told, stopped, taken up again."""

import hashlib
import uuid
from pathlib import Path

import pytest

from callsheet.core.comfy import Slot
from callsheet.core.commands import Resumed
from callsheet.worker import Canceled, GiveUp, Leaving, Lost, Retry, Stop
from callsheet.worker.comfyui import Assets, ComfyHandler, Pace, SelfHosted
from tests.support.comfy import samples
from tests.support.comfy.listening import as_json, as_text
from tests.support.comfy.server import Comfy
from tests.support.waiting import wait_until
from tests.worker.comfyui import graphs
from tests.worker.comfyui.conftest import QUICK
from tests.worker.comfyui.recording import Beside, Recorded, task

IDLE: dict[str, list[str]] = {"running": [], "pending": []}


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    path.write_bytes(samples.png(4, 4, 7))
    return path


MADE = [
    (graphs.basic(1), [("9", "image/png")]),
    (graphs.video(), [("9", "video/mp4")]),
    (graphs.moving(), [("8", "image/webp"), ("9", "video/webm")]),
    (graphs.audio(), [("8", "audio/flac"), ("9", "audio/mpeg")]),
    (graphs.third_party(), [("8", "video/mp4"), ("9", "audio/wav")]),
]


def test_media_are_what_their_content_says(comfy: Comfy, handler: ComfyHandler) -> None:
    """R221: looking everywhere, and believing neither the key nor the name."""
    for graph, expected in MADE:
        ctx = task(graph)
        outputs = handler(ctx)["outputs"]
        assert [(one["node"], one["media_type"]) for one in outputs] == expected
        assert [one["name"] for one in outputs] == [name for name, _, _ in ctx.kept]
        assert [one["bytes"] for one in outputs] == [len(body) for _, _, body in ctx.kept]
    assert comfy.history == {}


def test_a_text_is_an_output_without_a_file(handler: ComfyHandler) -> None:
    ctx = task(graphs.text())
    assert handler(ctx) == {"outputs": [{"node": "9", "text": "a red fox in the snow"}]}
    assert ctx.kept == []
    long = task(graphs.text("x" * 20_000))
    [made] = handler(long)["outputs"]
    assert made["bytes"] == len(long.kept[0][2]) > 20_000
    assert long.kept[0][1] == "text/plain"


def test_the_output_names_no_prompt_of_the_server(handler: ComfyHandler) -> None:
    ctx = task(graphs.basic())
    told = str((handler(ctx), ctx.said, ctx.lines))
    [(_, ref)] = ctx.refs
    assert ref not in told


def test_the_recipe_chooses_the_output_node_else_what_was_saved(handler: ComfyHandler, picture: Path) -> None:
    slot = Slot("10", "image", "f1")
    chosen = task(graphs.upload(), slot, output_node="13", files={"f1": picture})
    assert [one["node"] for one in handler(chosen)["outputs"]] == ["13"], "a temporary one, since it is asked for"
    saved = task(graphs.upload(), slot, files={"f1": picture})
    assert [one["node"] for one in handler(saved)["outputs"]] == ["9"], "what is only shown is left out"
    nothing = task(graphs.upload(), slot, output_node="11", files={"f1": picture})
    with pytest.raises(GiveUp) as raised:
        handler(nothing)
    assert raised.value.code == "no_output"


def test_progress_rises_node_by_node_and_step_by_step_with_the_class_that_runs(handler: ComfyHandler) -> None:
    ctx = task(graphs.slow(seconds=0.3, steps=6))
    handler(ctx)
    assert ctx.percents == sorted(ctx.percents)
    assert len(set(ctx.percents)) > 4
    assert ctx.percents[-1] == 99
    assert {"CallsheetTestSleep", "SaveImage"} <= set(ctx.messages)


@pytest.mark.parametrize(
    ("graph", "last", "pictures"),
    [(graphs.slow(), "9", [samples.JPEG[:4]] * 10), (graphs.shown_and_saved(3), "90", [b"\x89PNG"] * 3)],
    ids=["jpeg", "png"],
)
def test_previews_are_handed_on(
    comfy: Comfy, handler: ComfyHandler, graph: graphs.Graph, last: str, pictures: list[bytes]
) -> None:
    """They are news and no result: those that come while the graph runs are seen, so it is held until they are."""
    hold = comfy.hold(last)
    running = Beside(handler, task(graph))
    wait_until(lambda: len(running.ctx.previews) == len(pictures))
    hold.set()
    assert running.ended()["outputs"]
    assert [picture[:4] for picture in running.ctx.previews] == pictures


def test_a_websocket_that_is_cut_loses_nothing_and_is_opened_again(comfy: Comfy, handler: ComfyHandler) -> None:
    hold = comfy.hold("1")
    running = Beside(handler, task(graphs.slow(seconds=0.05, steps=2)))
    wait_until(lambda: "1" in comfy.reached)
    comfy.cut_sockets()
    wait_until(lambda: comfy.listeners == 0)
    wait_until(lambda: comfy.listeners == 1)
    last = comfy.hold("9")
    hold.set()
    wait_until(lambda: running.ctx.previews)
    last.set()
    assert running.ended()["outputs"]
    assert len(comfy.runs) == 1


def test_without_any_websocket_looking_is_enough(comfy: Comfy, adapter: SelfHosted) -> None:
    class Deaf(SelfHosted):
        def listen(self, prompt_id: str):
            live = super().listen(prompt_id)
            live.close()
            live._again_at = float("inf")  # type: ignore[attr-defined]  # noqa: SLF001 - it never comes back
            return live

    deaf = Deaf(comfy.url)
    ctx = task(graphs.basic())
    assert ComfyHandler(deaf, QUICK)(ctx)["outputs"]
    assert ctx.percents == [99]
    deaf.close()
    assert adapter.endpoint == deaf.endpoint


# -- files


def test_an_unchanged_asset_is_uploaded_once_per_server(
    comfy: Comfy, adapter: SelfHosted, picture: Path, tmp_path: Path
) -> None:
    """R218: the cache is keyed by endpoint and content."""
    assets = Assets()
    handler = ComfyHandler(adapter, QUICK, assets)
    digest = hashlib.sha256(picture.read_bytes()).hexdigest()
    for stated in (None, digest):
        ctx = task(graphs.upload(), Slot("10", "image", "f1", stated), files={"f1": picture})
        handler(ctx)
        assert ctx.downloads == ([] if stated else ["f1"]), "a digest that is stated spares the download too"
    assert len(comfy.asked_for("/upload/image")) == 1
    changed = tmp_path / "changed.png"
    changed.write_bytes(samples.png(4, 4, 8))
    handler(task(graphs.upload(), Slot("10", "image", "f2"), files={"f2": changed}))
    assert len(comfy.asked_for("/upload/image")) == 2
    with Comfy(tmp_path / "other", comfy.version) as other:
        second = SelfHosted(other.url)
        ComfyHandler(second, QUICK, assets)(task(graphs.upload(), Slot("10", "image", "f1"), files={"f1": picture}))
        assert len(other.asked_for("/upload/image")) == 1
        second.close()


def test_an_asset_that_the_server_lost_is_uploaded_again(comfy: Comfy, handler: ComfyHandler, picture: Path) -> None:
    slot = Slot("10", "image", "f1", hashlib.sha256(picture.read_bytes()).hexdigest())
    handler(task(graphs.upload(), slot, files={"f1": picture}))
    for file in (comfy.disk.root / "input").iterdir():
        file.unlink()
    assert handler(task(graphs.upload(), slot, files={"f1": picture}))["outputs"]
    assert len(comfy.asked_for("/upload/image")) == 2


def test_an_upload_waits_for_a_server_that_is_away_for_a_moment(
    comfy: Comfy, handler: ComfyHandler, picture: Path
) -> None:
    comfy.answers["/upload/image"] = [as_json({}, 503)] * 2
    ctx = task(graphs.upload(), Slot("10", "image", "f1"), files={"f1": picture})
    assert handler(ctx)["outputs"]
    assert len(comfy.asked_for("/upload/image")) == 3


def test_the_name_that_the_upload_returns_is_the_one_in_the_graph(
    comfy: Comfy, handler: ComfyHandler, picture: Path
) -> None:
    """R219."""
    name = f"callsheet-{hashlib.sha256(picture.read_bytes()).hexdigest()[:32]}"
    (comfy.disk.root / "input" / f"{name}.png").write_bytes(b"something else of this name")
    ctx = task(graphs.upload(), Slot("10", "image", "f1"), files={"f1": picture})
    assert handler(ctx)["outputs"]
    sent = comfy.asked_for("/prompt")[0].json()["prompt"]["10"]["inputs"]["image"]
    assert sent == f"{name} (1).png"
    assert ctx.comfyui is not None
    assert ctx.comfyui.graph["10"]["inputs"]["image"] == "", "the task's own graph is not touched"


def test_a_file_that_is_too_large_is_said_so(comfy: Comfy, handler: ComfyHandler, picture: Path) -> None:
    ctx = task(graphs.upload(), Slot("10", "image", "f1"), files={"f1": picture})
    comfy.answers["/upload/image"] = [as_text("Maximum request body size 104857600 exceeded.", 413)]
    with pytest.raises(GiveUp) as raised:
        handler(ctx)
    assert raised.value.code == "file_too_large"
    comfy.answers["/features"] = [as_json({"max_upload_size": 10})]
    with pytest.raises(GiveUp) as raised:
        handler(ctx)
    assert raised.value.code == "file_too_large"
    assert len(comfy.asked_for("/upload/image")) == 1, "what is known to be too large is not sent"


def test_an_output_beyond_the_limit_is_not_kept(comfy: Comfy) -> None:
    adapter = SelfHosted(comfy.url, bytes_max=20)
    ctx = task(graphs.basic())
    with pytest.raises(GiveUp) as raised:
        ComfyHandler(adapter, QUICK)(ctx)
    assert raised.value.code == "file_too_large"
    assert ctx.kept == []
    adapter.close()


def test_files_that_cannot_be_fetched_for_a_moment_are_not_made_again(comfy: Comfy, handler: ComfyHandler) -> None:
    comfy.answers["/view"] = [as_json({}, 503)] * 3
    assert handler(task(graphs.basic()))["outputs"]
    assert len(comfy.runs) == 1


def test_files_are_only_in_the_tasks_folder_which_goes_with_it_even_after_a_kill(
    handler: ComfyHandler, temporary: Path
) -> None:
    """R226."""
    done, failing, stopped = (task(graphs.moving()), task(graphs.failing()), task(graphs.moving()))
    stopped.stop_at_upload = Canceled
    handler(done)
    with pytest.raises(GiveUp):
        handler(failing)
    with pytest.raises(Canceled):
        handler(stopped)
    assert {*temporary.iterdir()} == {done.folder, failing.folder, stopped.folder}
    assert [path for path in stopped.folder.rglob("*") if path.is_file()] != []


# -- stopping


@pytest.mark.parametrize("stop", [Canceled, Lost, Leaving])
def test_a_stop_while_it_runs_ends_the_prompt_at_the_server(
    comfy: Comfy, handler: ComfyHandler, stop: type[Stop]
) -> None:
    running = Beside(handler, task(graphs.slow(seconds=20, steps=200)))
    wait_until(lambda: "2" in comfy.reached)
    running.ctx.stop = stop
    with pytest.raises(stop):
        running.ended()
    assert comfy.queue == IDLE
    assert comfy.history == {}


def test_a_stop_while_it_waits_takes_it_from_the_queue(comfy: Comfy, handler: ComfyHandler) -> None:
    hold = comfy.hold("2")
    first = Beside(handler, task(graphs.slow(seconds=0.05)))
    wait_until(lambda: "2" in comfy.reached)
    second = Beside(handler, task(graphs.basic()))
    wait_until(lambda: comfy.queue["pending"])
    second.ctx.stop = Canceled
    with pytest.raises(Canceled):
        second.ended()
    assert comfy.queue["pending"] == []
    hold.set()
    assert first.ended()["outputs"], "the other one goes on"
    assert len(comfy.runs) == 1


def test_a_stop_in_the_moment_of_submitting(comfy: Comfy, handler: ComfyHandler) -> None:
    ctx = task(graphs.slow(seconds=20, steps=200), stop_at_submit=Canceled)
    with pytest.raises(Canceled):
        handler(ctx)
    assert comfy.queue == IDLE


def test_a_stop_before_anything_sends_nothing(comfy: Comfy, handler: ComfyHandler) -> None:
    with pytest.raises(Canceled):
        handler(task(graphs.basic(), stop=Canceled))
    assert comfy.asked_for("/prompt") == []


def test_a_stop_during_a_node_that_does_not_listen_waits_for_its_end(comfy: Comfy, handler: ComfyHandler) -> None:
    hold = comfy.hold("1")
    running = Beside(handler, task(graphs.slow(seconds=20, steps=200)))
    wait_until(lambda: "1" in comfy.reached)
    running.ctx.stop = Canceled
    wait_until(lambda: len([r for r in comfy.requests if r.path.endswith(("/cancel", "/interrupt"))]) > 1)
    assert not running.over
    hold.set()
    with pytest.raises(Canceled):
        running.ended()
    assert comfy.queue == IDLE


def test_a_stop_while_files_are_kept(comfy: Comfy, handler: ComfyHandler) -> None:
    ctx = task(graphs.moving(), stop_at_upload=Lost)
    with pytest.raises(Lost):
        handler(ctx)
    assert ctx.kept == []
    assert comfy.queue == IDLE


def test_a_prompt_has_its_time_and_is_then_stopped(comfy: Comfy, adapter: SelfHosted) -> None:
    """R220: a limit, after which the task has failed."""
    handler = ComfyHandler(adapter, Pace(poll_seconds=0.05, limit_seconds=0.3))
    with pytest.raises(GiveUp) as raised:
        handler(task(graphs.slow(seconds=20, steps=200)))
    assert raised.value.code == "comfyui_timeout"
    assert comfy.queue == IDLE
    assert (Pace().poll_seconds, Pace().limit_seconds) == (2, 3_600)


# -- taking up


def resumed(comfy: Comfy, adapter: SelfHosted, graph: graphs.Graph) -> Recorded:
    ref = adapter.submit(str(uuid.uuid4()), graph)
    wait_until(lambda: comfy.runs)
    return task(graph, resumed=Resumed("comfyui", ref))


def test_a_prompt_that_still_runs_is_taken_up(comfy: Comfy, adapter: SelfHosted, handler: ComfyHandler) -> None:
    hold = comfy.hold("2")
    ctx = resumed(comfy, adapter, graphs.slow(seconds=0.05))
    running = Beside(handler, ctx)
    wait_until(lambda: len(comfy.asked_for("/queue")) > 1)
    hold.set()
    assert running.ended()["outputs"]
    assert len(comfy.runs) == len(comfy.asked_for("/prompt")) == 1
    assert ctx.refs == []


def test_a_prompt_that_has_ended_is_collected(comfy: Comfy, adapter: SelfHosted, handler: ComfyHandler) -> None:
    ctx = resumed(comfy, adapter, graphs.basic())
    wait_until(lambda: comfy.history)
    assert handler(ctx)["outputs"]
    assert len(comfy.runs) == 1
    assert comfy.history == {}


def test_a_failure_that_nobody_reported_is_reported(comfy: Comfy, adapter: SelfHosted, handler: ComfyHandler) -> None:
    ctx = resumed(comfy, adapter, graphs.failing())
    with pytest.raises(GiveUp):
        handler(ctx)
    assert len(comfy.runs) == 1


def test_a_prompt_that_is_lost_or_another_provider_s_is_run_anew(
    comfy: Comfy, adapter: SelfHosted, handler: ComfyHandler
) -> None:
    gone = task(graphs.basic(), resumed=Resumed("comfyui", str(uuid.uuid4())))
    assert handler(gone)["outputs"]
    ref = adapter.submit(str(uuid.uuid4()), graphs.basic())
    wait_until(lambda: ref in comfy.history)
    foreign = task(graphs.basic(), resumed=Resumed("comfy-cloud", ref))
    assert handler(foreign)["outputs"]
    assert len(comfy.runs) == 3


def test_an_interrupt_of_somebody_at_the_server_is_not_the_end(comfy: Comfy, handler: ComfyHandler) -> None:
    hold = comfy.hold("2")
    running = Beside(handler, task(graphs.slow(seconds=0.05)))
    wait_until(lambda: "2" in comfy.reached)
    comfy._interrupt(None)  # noqa: SLF001 - what the button of the editor does
    hold.set()
    assert running.ended()["outputs"]
    assert len(comfy.runs) == 2


def test_a_graphics_card_without_memory_is_worth_another_try(handler: ComfyHandler) -> None:
    with pytest.raises(Retry) as raised:
        handler(task(graphs.failing("Allocation on device failed", kind="oom")))
    assert raised.value.code == "comfyui_failed"


def test_a_task_without_a_graph_is_refused(handler: ComfyHandler) -> None:
    with pytest.raises(GiveUp) as raised:
        handler(Recorded(None))
    assert raised.value.code == "no_graph"


def test_a_server_behind_a_password_gets_it_and_nobody_else_does(comfy: Comfy) -> None:
    adapter = SelfHosted(comfy.url.replace("//", "//ada:pass%20word@"))
    ctx = task(graphs.slow())
    assert ComfyHandler(adapter, QUICK)(ctx)["outputs"]
    assert ctx.previews
    assert {request.headers["authorization"] for request in comfy.requests} == {"Basic YWRhOnBhc3Mgd29yZA=="}
    assert adapter.endpoint == comfy.url
    adapter.close()
