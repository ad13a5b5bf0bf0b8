"""Drafts of workflows from exported graphs, and the node information of a ComfyUI server."""

from typing import Any

import pytest

from callsheet.comfyui.draft import DraftInput, WorkflowDraft, draft
from callsheet.comfyui.node_info import combo_choices, fields_of, find_mismatches, is_link, is_socket, takes_file
from tests.support import comfyui_graphs
from tests.support.comfyui_graphs import INFO, node


def targets_by_name(found: WorkflowDraft) -> dict[str, list[str]]:
    return {one.name: [f"{target.node}.{target.field}" for target in one.targets] for one in found.inputs}


def input_named(found: WorkflowDraft, name: str) -> DraftInput:
    return next(exposed for exposed in found.inputs if exposed.name == name)


def test_text_to_image_has_inputs_for_prompts_size_steps_and_a_random_seed() -> None:
    found = draft(comfyui_graphs.text_to_image())
    assert targets_by_name(found) == {
        "prompt": ["6.text"], "negative_prompt": ["7.text"], "width": ["5.width"], "height": ["5.height"],
        "steps": ["3.steps"], "cfg": ["3.cfg"], "seed": ["3.seed"],
    }  # fmt: skip
    assert [exposed.name for exposed in found.inputs if exposed.required] == ["prompt"]
    assert [exposed.name for exposed in found.inputs if exposed.random] == ["seed"]
    assert input_named(found, "negative_prompt").schema["default"] == "watermark"
    assert input_named(found, "width").schema == {"type": "integer", "minimum": 1, "default": 512}
    assert (found.output_node, found.notes) == ("9", [])


def test_prompt_and_negative_prompt_are_distinguished_by_their_links() -> None:
    graph = comfyui_graphs.text_to_image()
    graph["3"]["inputs"] |= {"positive": ["7", 0], "negative": ["6", 0]}
    assert targets_by_name(draft(graph))["prompt"] == ["7.text"]
    graph["20"] = node("ControlNetApplyAdvanced", positive=["7", 0], negative=["6", 0], control_net=["4", 0])
    graph["3"]["inputs"] |= {"positive": ["20", 0], "negative": ["20", 1]}
    found = targets_by_name(draft(graph))
    assert (found["prompt"], found["negative_prompt"]) == (["7.text"], ["6.text"])


def test_image_to_image_has_inputs_for_a_file_and_the_denoise_value() -> None:
    found = draft(comfyui_graphs.image_to_image())
    assert targets_by_name(found)["image"] == ["10.image"]
    image = input_named(found, "image")
    assert (image.required, image.schema["required"], "default" in image.schema) == (True, ["$file"], False)
    assert input_named(found, "denoise").schema == {"type": "number", "minimum": 0, "maximum": 1, "default": 0.87}
    assert "width" not in targets_by_name(found)


def test_a_prompt_is_found_through_a_guider_and_a_primitive_node() -> None:
    found = targets_by_name(draft(comfyui_graphs.guided()))
    assert found == {
        "prompt": ["3.value"], "width": ["10.width"], "height": ["10.height"], "steps": ["9.steps"],
        "guidance": ["5.guidance"], "seed": ["7.noise_seed"],
    }  # fmt: skip


def test_equal_texts_share_one_input_and_so_do_seeds() -> None:
    graph = comfyui_graphs.text_to_image()
    graph["6"] = node("CLIPTextEncodeSDXL", text_g="a fox", text_l="a fox", width=1024, height=1024, clip=["4", 1])
    graph["30"] = node("ImageAddNoise", image=["8", 0], seed=1, strength=0.1)
    graph["31"] = node("CLIPTextEncode", text="an owl", clip=["4", 1])
    found = targets_by_name(draft(graph))
    assert found["prompt"] == ["6.text_g", "6.text_l"]
    assert found["prompt_2"] == ["31.text"]  # not linked, but still a prompt
    assert found["seed"] == ["3.seed", "30.seed"]
    assert [name for name in found if name.startswith("width")] == ["width"]  # the encoder's width is not an input


def test_sizes_of_several_nodes_have_numbered_names() -> None:
    found = targets_by_name(draft(comfyui_graphs.plain()))
    assert found == {"width": ["1.width"], "width_2": ["2.width"], "height": ["1.height"], "height_2": ["2.height"]}


def test_the_node_information_of_a_server_gives_types_bounds_and_choices() -> None:
    found = draft(comfyui_graphs.text_to_image(), INFO)
    assert input_named(found, "width").schema == {"type": "integer", "minimum": 16, "maximum": 16384, "default": 512}
    assert input_named(found, "cfg").schema == {"type": "number", "minimum": 0.0, "maximum": 100.0, "default": 8}
    for name, choices in (("sampler_name", ["euler", "ddim"]), ("scheduler", ["normal", "karras"])):
        assert input_named(found, name).schema["enum"] == choices  # ComfyUI encodes choices in two ways
    assert input_named(found, "seed").schema == {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}
    assert found.notes == []
    info = {"EmptyAudio": {"input": {"required": {"duration": ["FLOAT", {"min": 0.5, "max": 2**64 - 1}]}}}}
    audio = draft({"1": node("EmptyAudio", duration=1.0)}, info)
    assert input_named(audio, "duration").schema == {"type": "number", "minimum": 0.5, "default": 1.0}


@pytest.mark.parametrize(
    ("saves", "output", "note"),
    [
        ({"9": "SaveImage"}, "9", ""),
        ({"9": "SaveImage", "10": "PreviewImage"}, "9", ""),
        ({"9": "VHS_VideoCombine"}, "9", ""),
        ({"9": "SaveImage", "10": "SaveWEBM"}, None, "Nodes 9, 10 save files"),
        ({"9": "PreviewImage"}, "9", "deletes previews when it restarts"),
        ({"9": "SaveImageWebsocket"}, "9", "saves no file on the server"),
        ({}, None, "No node saves a file"),
    ],
)
def test_the_output_node_is_the_node_that_saves_a_file(saves: dict[str, str], output: str | None, note: str) -> None:
    graph = {"1": node("EmptyImage", color=1)} | {key: node(name, images=["1", 0]) for key, name in saves.items()}
    found = draft(graph)
    assert found.output_node == output
    assert note in "".join(found.notes)
    assert bool(found.notes) == bool(note)


# -- node information


@pytest.mark.parametrize(
    ("declared", "choices"),
    [
        ([["a", "b"], {"tooltip": "x"}], ["a", "b"]),
        ([["a", "b"]], ["a", "b"]),
        (["COMBO", {"options": ["a", "b"], "multiselect": False}], ["a", "b"]),
        (["COMFY_DYNAMICCOMBO_V3", {"options": [{"key": "auto", "inputs": {}}, {"key": "mp4"}]}], ["auto", "mp4"]),
        (["COMBO", {"remote": {"route": "/x"}}], []),
        (["INT", {"min": 1}], None),
        ([], None),
        ("COMBO", None),
    ],
)  # fmt: skip
def test_choices_are_read_in_every_encoding(declared: Any, choices: list[str] | None) -> None:
    assert combo_choices(declared) == choices


def with_inputs(node_id: str, **inputs: Any) -> comfyui_graphs.Graph:
    graph = comfyui_graphs.text_to_image()
    graph[node_id]["inputs"] |= inputs
    return graph


@pytest.mark.parametrize(
    ("graph", "node_id", "field", "problem"),
    [
        (with_inputs("8", samples="notalink"), "8", "samples", "must be a link"),
        (with_inputs("3", sampler_name="magic"), "3", "sampler_name", "'magic' is not among the server's choices"),
        (with_inputs("3", scheduler="magic"), "3", "scheduler", "'magic' is not among the server's choices"),
        (with_inputs("3", steps=0), "3", "steps", "0 is below 1"),
        (with_inputs("5", width=20_000), "5", "width", "20000 is above 16384"),
        (comfyui_graphs.text_to_image() | {"6": node("CLIPTextEncode", clip=["4", 1])}, "6", "text", "It is missing."),
        (comfyui_graphs.text_to_image() | {"77": node("NoSuchNode")}, "77", "", "no node 'NoSuchNode'"),
    ],
)
def test_a_value_that_the_server_would_refuse_is_found(
    graph: comfyui_graphs.Graph, node_id: str, field: str, problem: str
) -> None:
    (found,) = find_mismatches(graph, INFO)
    assert (found.node, found.field) == (node_id, field)
    assert problem in found.what
    assert f"Node {node_id}" in "".join(draft(graph, INFO).notes)


def test_a_widget_that_forces_an_input_takes_links_only() -> None:
    info = {"Own": {"input": {"required": {"text": ["STRING", {"forceInput": True}]}}}}
    assert [found.field for found in find_mismatches({"1": node("Own", text="x")}, info)] == ["text"]
    assert list(find_mismatches({"1": node("Own", text=["1", 0])}, info)) == []


def test_a_valid_graph_matches_although_its_uploaded_file_is_not_among_the_choices() -> None:
    assert list(find_mismatches(comfyui_graphs.image_to_image(), INFO)) == []


def test_invalid_node_information_is_ignored() -> None:
    invalid: list[Any] = [None, {"input": []}, {"input": {"required": {"seed": 3}}}]
    for info in ({"KSampler": one} for one in invalid):
        assert set(fields_of(info, "KSampler")) <= {"seed"}
        assert draft(comfyui_graphs.text_to_image(), info).output_node == "9"


def test_links_sockets_and_file_fields_are_recognized() -> None:
    assert [is_link(value) for value in (["1", 0], ["1"], [1, 0], "1", ["1", "0"], None)] == [True] + [False] * 5
    sockets = [("VAEDecode", "vae"), ("VAEDecode", "tile"), ("Own", "vae")]
    assert [is_socket(*field) for field in sockets] == [True, False, False]
    file_fields = [("LoadImage", "image"), ("LoadAudio", "audio"), ("LoadVideo", "file"), ("VHS_LoadVideo", "video")]
    assert all(takes_file(*field) for field in file_fields)
    assert not takes_file("CheckpointLoaderSimple", "ckpt_name")
