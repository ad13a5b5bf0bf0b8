"""Pure functions of the ComfyUI worker: frames, progress, error texts, media types, outputs and graphs."""

import json
import struct
from typing import Any

import pytest

from callsheet.worker.comfyui import (
    Api,
    ComfyHandler,
    ComfyRejectedError,
    MissingApiKeyError,
    Output,
    SelfHosted,
    comfyui_worker,
    create_comfy_backend,
)
from callsheet.worker.comfyui.adapters.base import NodeProgress, OverallProgress, Preview, PromptEnded
from callsheet.worker.comfyui.adapters.error_text import describe_failure, describe_rejection
from callsheet.worker.comfyui.adapters.output_list import parse_outputs, select_outputs
from callsheet.worker.comfyui.adapters.websocket_messages import HELLO, MessageReader
from callsheet.worker.comfyui.asset_cache import AssetCache
from callsheet.worker.comfyui.media_type import detect_media_type, extension_for
from callsheet.worker.comfyui.progress import PromptProgress
from callsheet.worker.comfyui.submission_graph import bypass_cache, fill_in_files, validate_graph
from tests.support.comfyui import sample_files
from tests.support.comfyui.execution import preview
from tests.worker.comfyui import graphs

REF = "6d5e357f-99f5-40c2-b828-88928bce5dc8"


def read_messages(*messages: str | bytes, exclusive: bool = True) -> list[Any]:
    reader = MessageReader(exclusive=exclusive)
    return [event for message in messages for event in reader.read(message, REF)]


def encode_message(kind: str, **data: Any) -> str:
    return json.dumps({"type": kind, "data": {"prompt_id": REF, **data}})


# -- frames


def test_messages_of_a_prompt_are_read() -> None:
    assert read_messages(encode_message("execution_cached", nodes=["1", "2"])) == [NodeProgress(done=("1", "2"))]
    assert read_messages(encode_message("executing", node="3", display_node="3")) == [
        NodeProgress(fractions=(("3", 0.0),))
    ]
    assert read_messages(encode_message("progress", node="3", value=3, max=4)) == [
        NodeProgress(fractions=(("3", 0.75),), steps=(("3", 4),))
    ]
    assert read_messages(encode_message("executed", node="9", output={})) == [NodeProgress(done=("9",))]
    states = {"1": {"value": 1.0, "max": 1.0, "state": "finished"}, "2": {"value": 1, "max": 4, "state": "running"}}
    counted = NodeProgress(done=("1",), fractions=(("2", 0.25),), steps=(("2", 4),))
    assert read_messages(encode_message("progress_state", nodes=states)) == [counted]


@pytest.mark.parametrize("kind", ["execution_success", "execution_error", "execution_interrupted"])
def test_every_final_message_ends_the_prompt(kind: str) -> None:
    assert read_messages(encode_message(kind)) == [PromptEnded()]
    assert read_messages(encode_message("executing", node=None)) == [PromptEnded()]


def test_messages_of_other_prompts_and_invalid_ones_are_ignored() -> None:
    other = json.dumps({"type": "execution_success", "data": {"prompt_id": "another"}})
    broken = (
        "",
        "nonsense",
        "[]",
        "{}",
        '{"type": "status", "data": {"status": {}}}',
        other,
        encode_message("progress_state"),
    )
    for message in broken:
        assert read_messages(message) == []
    for frame in (b"", b"\x00", struct.pack(">I", 1), struct.pack(">II", 4, 99) + b"{", struct.pack(">I", 77) + b"x"):
        assert read_messages(frame) == []
    assert read_messages(encode_message("progress", node="3", value=1, max=0)) == [
        NodeProgress(fractions=(("3", 0.0),), steps=(("3", 0),))
    ]


def test_previews_are_read_in_both_forms() -> None:
    mine, other = {"prompt_id": REF, "node_id": "2"}, {"prompt_id": "another", "node_id": "2"}
    assert read_messages(preview(sample_files.JPEG, None)) == [Preview(sample_files.JPEG)]
    assert read_messages(preview(sample_files.JPEG, None), exclusive=False) == [], (
        "it may belong to another prompt of the account"
    )
    assert read_messages(preview(sample_files.png(1, 1, 0), mine), exclusive=False) == [
        Preview(sample_files.png(1, 1, 0), "2")
    ]
    assert read_messages(preview(sample_files.JPEG, other)) == []
    assert read_messages(struct.pack(">II", 3, 1) + b"2some words") == [], "a text of a node is not an image"
    assert json.loads(HELLO)["data"] == {"supports_preview_metadata": True}


def test_an_image_without_a_node_belongs_to_the_running_node() -> None:
    image, started, ended = (
        preview(sample_files.JPEG, None),
        encode_message("executing", node="9"),
        encode_message("executing", node=None),
    )
    assert read_messages(started, image, ended, image)[1:] == [
        Preview(sample_files.JPEG, "9"),
        PromptEnded(),
        Preview(sample_files.JPEG),
    ]
    other = json.dumps({"type": "executing", "data": {"prompt_id": "another", "node": "7"}})
    assert read_messages(started, other, image)[1:] == [Preview(sample_files.JPEG, "9")], (
        "the node of another prompt is ignored"
    )
    reconnected = json.dumps({"type": "executing", "data": {"node": "9"}})
    assert read_messages(reconnected, image) == [Preview(sample_files.JPEG, "9")], "the form after a reconnect"
    assert read_messages(reconnected, image, exclusive=False) == []


# -- progress


def test_progress_counts_nodes_and_steps_and_never_falls() -> None:
    progress = PromptProgress(graphs.slow())
    seen = []
    for event in (
        NodeProgress(done=("1",), fractions=(("2", 0.5),)), NodeProgress(fractions=(("2", 0.25),)),
        NodeProgress(done=("2", "an unknown node")),
        NodeProgress(fractions=(("9", 0.0),)), NodeProgress(done=("9",)), NodeProgress(fractions=(("2", 0.0),)),
        OverallProgress(0.1, "2"), PromptEnded(),
    ):  # fmt: skip
        progress.apply(event)
        seen.append(round(progress.percent))
    assert seen == [49, 49, 65, 65, 98, 98, 98, 98]
    assert progress.message == "CallsheetTestSleep"
    again = PromptProgress(graphs.slow())
    assert again.apply(OverallProgress(0.5, None))
    assert not again.apply(OverallProgress(0.4, None)), "no new progress"
    assert again.percent == 49


# -- error texts


def test_a_rejection_contains_no_list_of_models_and_no_path() -> None:
    models = [f"/srv/models/{name}.safetensors" for name in "abc"]
    error = {
        "type": "value_not_in_list", "message": "Value not in list", "details": f"ckpt: 'x' not in {models}",
        "extra_info": {"input_name": "ckpt", "input_config": [models, {}], "received_value": "/home/ada/x.ckpt"},
    }  # fmt: skip
    text, nodes = describe_rejection(None, {"4": {"errors": [error], "class_type": "CheckpointLoaderSimple"}})
    assert text == "Node 4 (CheckpointLoaderSimple): ckpt: '[path]' is not one of the values that the server offers."
    assert nodes == ("4",)


def test_many_errors_are_truncated_and_malformed_ones_are_tolerated() -> None:
    many = {str(no): {"errors": [{"type": "odd", "message": "Odd thing."}], "class_type": "X"} for no in range(15)}
    text, nodes = describe_rejection(None, many)
    assert text.endswith("5 more nodes have errors.")
    assert len(nodes) == 15
    assert describe_rejection(None, None) == ("ComfyUI rejected the graph.", ())
    assert describe_rejection("text", {"1": "text"})[0] == "Node 1 (): not valid."


def test_a_failure_message_names_the_node_and_the_error_type() -> None:
    raised = {"node_id": "3", "node_type": "KSampler", "exception_type": "torch.OutOfMemoryError"}
    assert describe_failure(raised, ()) == ("Node 3 (KSampler) failed: OutOfMemoryError", True)
    prompt = "first line\nsecond line of a secret prompt"
    text, retryable = describe_failure(
        {"exception_type": "ValueError", "exception_message": f"bad: {prompt}!"}, [prompt]
    )
    assert text == "Node  () failed: ValueError: bad: [input]!"
    assert not retryable


# -- media and outputs


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (sample_files.png(1, 1, 0), "image/png"), (sample_files.JPEG, "image/jpeg"), (sample_files.MP4, "video/mp4"),
        (sample_files.WEBM, "video/webm"), (sample_files.WEBP, "image/webp"), (sample_files.FLAC, "audio/flac"),
        (sample_files.MP3, "audio/mpeg"), (sample_files.wav(), "audio/wav"),
    ],
)  # fmt: skip
def test_the_media_type_is_detected_from_the_content(body: bytes, kind: str) -> None:
    assert detect_media_type(body[:64], "text/html", "wrong.txt") == kind
    assert extension_for(kind).startswith(".")


def test_for_unknown_content_the_content_type_and_then_the_name_decide() -> None:
    assert detect_media_type(b"{}", "application/json; charset=utf-8", "a.png") == "application/json"
    assert detect_media_type(b"??", "application/octet-stream", "a.svg") == "image/svg+xml"
    assert detect_media_type(b"", "", "") == "application/octet-stream"


def test_outputs_are_found_under_any_key_once_each() -> None:
    file = {"filename": "a.mp4", "subfolder": "s", "type": "output"}
    made = {
        "7": {"images": [file], "gifs": [file | {"format": "x"}], "animated": [True]},
        "8": {"text": ["t"], "x": "y"},
    }
    assert parse_outputs(made) == (Output("7", "a.mp4", "s"), Output("8", "text", kind="text", text="t"))
    assert (
        parse_outputs(None)
        == parse_outputs({"1": None})
        == parse_outputs({"1": {"images": [{"filename": ""}, 5]}})
        == ()
    )


def test_saved_outputs_take_precedence_over_temporary_ones() -> None:
    temporary, saved, text = (
        Output("1", "t.png", kind="temp"),
        Output("2", "o.png"),
        Output("3", "text", kind="text", text=""),
    )
    assert select_outputs([temporary, saved, text], None) == [saved, text]
    assert select_outputs([temporary, text], None) == [temporary, text]
    assert select_outputs([temporary, saved], "1") == [temporary]
    assert select_outputs([saved], "5") == []


# -- graphs and assets


@pytest.mark.parametrize(
    "graph",
    [[], None, {}, {"nodes": [], "links": []}, {"1": {"inputs": {}}}, {"1": {"class_type": "X"}}, {"1": 5}],
)
def test_an_invalid_graph_is_rejected(graph: Any) -> None:
    with pytest.raises(ComfyRejectedError):
        validate_graph(graph)


def test_files_and_nonces_are_filled_into_a_copy() -> None:
    graph = graphs.upload()
    assert fill_in_files(graph, [("10", "image", "x.png")])["10"]["inputs"]["image"] == "x.png"
    assert bypass_cache(graph, ["9", "absent"], "n")["9"]["inputs"]["callsheet_nonce"] == "n"
    assert graph == graphs.upload()
    with pytest.raises(ComfyRejectedError):
        fill_in_files(graph, [("77", "image", "x.png")])


def test_the_asset_cache_evicts_the_oldest_entry() -> None:
    assets = AssetCache(entries_max=2)
    for digest in "abc":
        assets.put("here", digest, digest.upper())
        assets.get("here", "a")
    assert [assets.get("here", digest) for digest in "abc"] == ["A", None, "C"]
    assets.invalidate("here", ["a", "never"])
    assert assets.get("here", "a") is None


def test_a_server_url_is_validated_and_the_endpoint_has_no_credentials() -> None:
    with pytest.raises(ValueError, match="not the URL"):
        SelfHosted("localhost:8188")
    adapter = SelfHosted("http://ada:secret@127.0.0.1:8188/")
    assert adapter.endpoint == "http://127.0.0.1:8188"
    adapter.close()


def test_a_worker_runs_graphs_for_all_of_its_kinds() -> None:
    adapters = [
        create_comfy_backend(),
        create_comfy_backend("cloud", key="k"),
        create_comfy_backend("v2", "http://127.0.0.1:8189"),
    ]
    assert [adapter.provider for adapter in adapters] == ["comfyui", "comfy-cloud", "comfy-v2"]
    worker = comfyui_worker(adapters[0], ["portrait", "clip"])
    assert list(worker.handlers) == ["portrait", "clip"]
    assert all(isinstance(handler, ComfyHandler) for handler in worker.handlers.values())
    keyless: list[tuple[Api, str | None]] = [("cloud", None), ("cloud", "http://127.0.0.1:8189"), ("v2", None)]
    for api, url in keyless:
        with pytest.raises(MissingApiKeyError, match="requires an API key"):
            create_comfy_backend(api, url)
    for adapter in adapters:
        adapter.close()
