"""Rendering a graph: each value sets its fields only, values have a precedence, and invalid values are refused."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callsheet.comfyui.template import render
from callsheet.core.model.comfyui_graph import ComfySpec, FileSlot, RenderedGraph, Target
from callsheet.core.model.errors import BadInput
from tests.support import comfyui_graphs

TASK = "0197f3a0-0000-7000-8000-000000000001"
DIGEST = "ab" * 32
PROMPT = Target(node="6", field="text")
PLACEHOLDERS = ["__PROMPT__", "__STYLE__", "__PROMPT__ __STYLE__", '"}, "9": {"', "\\", "\n", "é✨", "", "['4', 0]"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def spec_of(graph: comfyui_graphs.Graph | None = None, **more: Any) -> ComfySpec:
    return ComfySpec(graph=comfyui_graphs.text_to_image() if graph is None else graph, **more)


def with_leaf(graph: comfyui_graphs.Graph, where: Target, value: Any) -> comfyui_graphs.Graph:
    changed = copy.deepcopy(graph)
    changed[where.node]["inputs"][where.field] = value
    return changed


def with_prompt(text: str = "a __STYLE__ of __PROMPT__, __STYLE__") -> comfyui_graphs.Graph:
    graph = comfyui_graphs.text_to_image()
    graph["6"]["inputs"]["text"] = text
    return graph


def refusal(spec: ComfySpec, input: Any) -> str:
    with pytest.raises(BadInput) as caught:
        render(spec, input, TASK)
    assert caught.value.code == "invalid_input"
    return caught.value.message


# -- fields and placeholders


@given(st.text() | st.sampled_from(PLACEHOLDERS))
def test_the_text_of_a_user_sets_one_field_and_is_not_interpreted(text: str) -> None:
    """R175: also if it contains a placeholder or JSON."""
    graph = with_leaf(comfyui_graphs.text_to_image(), Target(node="7", field="text"), "__STYLE__")
    by_field = spec_of(graph, inputs={"prompt": PROMPT, "style": "__STYLE__"}, defaults={"style": "oil"})
    expected = with_leaf(with_leaf(graph, Target(node="7", field="text"), "oil"), PROMPT, text)
    assert render(by_field, {"prompt": text}, TASK) == RenderedGraph(expected)
    by_text = spec_of(with_leaf(graph, PROMPT, "__PROMPT__"), inputs={"prompt": "__PROMPT__", "style": "__STYLE__"})
    assert render(by_text, {"prompt": text, "style": "oil"}, TASK) == RenderedGraph(expected)
    assert msgspec.json.decode(msgspec.json.encode(expected)) == expected


@given(st.text() | st.sampled_from(PLACEHOLDERS), st.text() | st.sampled_from(PLACEHOLDERS))
def test_placeholders_in_a_text_are_replaced_once(prompt: str, style: str) -> None:
    spec = spec_of(with_prompt(), inputs={"prompt": "__PROMPT__", "style": "__STYLE__"})
    rendered = render(spec, {"prompt": prompt, "style": style}, TASK).graph
    assert rendered == with_leaf(spec.graph, PROMPT, f"a {style} of {prompt}, {style}")


@given(JSON)
def test_an_input_value_sets_its_field_only_or_is_refused(value: Any) -> None:
    """A list is refused, because ComfyUI would read it as a link to another node."""
    spec = spec_of(inputs={"prompt": PROMPT, "steps": Target(node="3", field="steps")})
    for name, where in (("prompt", PROMPT), ("steps", Target(node="3", field="steps"))):
        if value is None or type(value) in ({str} if name == "prompt" else {int, float}):
            rendered = render(spec, {name: value}, TASK)
            assert rendered.graph == (spec.graph if value is None else with_leaf(spec.graph, where, value))
        else:
            assert refusal(spec, {name: value}).startswith(f"{name}: ")


def test_rendering_does_not_change_the_graph_of_the_workflow() -> None:
    cfg = Target(node="3", field="cfg")
    spec = spec_of(with_prompt(), inputs={"prompt": "__PROMPT__", "style": "__STYLE__", "cfg": cfg})
    before = copy.deepcopy(spec.graph)
    first = render(spec, {"prompt": "a", "style": "b", "cfg": 2.5}, TASK).graph
    second = render(spec, {"prompt": "c", "style": "d"}, TASK).graph
    assert spec.graph == before
    assert (first["6"]["inputs"]["text"], first["3"]["inputs"]["cfg"]) == ("a b of a, b", 2.5)
    assert (second["6"]["inputs"]["text"], second["3"]["inputs"]["cfg"]) == ("a d of c, d", 8)


def test_a_placeholder_alone_keeps_the_type_of_its_value_and_one_within_a_text_becomes_text() -> None:
    """R219."""
    graph = comfyui_graphs.text_to_image()
    graph["3"]["inputs"]["steps"] = "__STEPS__"
    graph["6"]["inputs"]["text"] = "__STEPS__ birds"
    graph["9"]["inputs"]["more"] = {"list": ["__STEPS__", ["__STEPS__", 0], {"deep": "__STEPS__!"}]}
    rendered = render(spec_of(graph, inputs={"steps": "__STEPS__"}), {"steps": 12}, TASK).graph
    assert rendered["3"]["inputs"]["steps"] == 12
    assert rendered["6"]["inputs"]["text"] == "12 birds"
    assert rendered["9"]["inputs"]["more"] == {
        "list": [12, ["__STEPS__", 0], {"deep": "12!"}]
    }  # the node id of a link is not replaced


# -- precedence


def test_the_input_overrides_the_overrides_which_override_the_defaults_and_the_graph() -> None:
    """R173."""
    spec = spec_of(inputs={"prompt": PROMPT})
    rendered = []
    for more, input in (
        ({}, None),
        ({"defaults": {"prompt": "default"}}, {}),
        ({"defaults": {"prompt": "default"}, "overrides": {"prompt": "override"}}, {"prompt": None}),
        ({"defaults": {"prompt": "default"}, "overrides": {"prompt": "override"}}, {"prompt": "", "other": 1}),
    ):
        rendered.append(render(replace(spec, **more), input, TASK).graph["6"]["inputs"]["text"])
    assert rendered == ['a "bottle"\nof \\ stars ✨', "default", "override", ""]


def test_one_input_sets_several_fields() -> None:
    targets = [Target(node="5", field="width"), Target(node="5", field="height")]
    rendered = render(spec_of(inputs={"size": targets}), {"size": 640}, TASK).graph
    assert rendered["5"]["inputs"] == {"width": 640, "height": 640, "batch_size": 1}


def test_a_random_input_differs_per_task_is_stable_per_task_and_can_be_set() -> None:
    spec = spec_of(inputs={"seed": Target(node="3", field="seed")}, random=["seed"])

    def seed(spec: ComfySpec, input: Any, task: str) -> int:
        value: int = render(spec, input, task).graph["3"]["inputs"]["seed"]
        return value

    seeds = {seed(spec, {}, f"task-{no}") for no in range(200)}
    assert len(seeds) == 200
    assert all(0 <= one < 2**31 for one in seeds)
    assert seed(spec, {}, TASK) == seed(spec, None, TASK)
    assert seed(spec, {"seed": 7}, TASK) == 7
    assert seed(replace(spec, defaults={"seed": 8}), {}, TASK) == 8


# -- files


def test_a_file_slot_has_the_digest_of_the_value_that_is_used() -> None:
    """R237: the digest of a default never belongs to another file."""
    graph = comfyui_graphs.image_to_image()
    spec = spec_of(graph, inputs={"image": Target(node="10", field="image")}, output_node="9")
    spec = replace(spec, defaults={"image": {"$file": "style", "sha256": DIGEST}})
    for empty in (None, {}, {"image": None}):
        assert render(spec, empty, TASK).assets == [FileSlot("10", "image", "style", DIGEST, "image")]
    own = render(spec, {"image": {"$file": "mine"}}, TASK)
    assert (own.assets, own.output_node) == ([FileSlot("10", "image", "mine", None, "image")], "9")
    with_digest = render(spec, {"image": {"$file": "mine", "sha256": DIGEST}}, TASK)
    assert with_digest.assets == own.assets
    assert own.graph == with_leaf(graph, Target(node="10", field="image"), "")  # empty until the worker fills it
    overridden = replace(spec, overrides={"image": {"$file": "effect"}})
    assert render(overridden, {}, TASK).assets == [FileSlot("10", "image", "effect", None, "image")]


def test_a_user_cannot_name_a_file_of_the_worker_by_its_path() -> None:
    """LoadImage would open `other.png [output]`, which another job may have created."""
    spec = spec_of(comfyui_graphs.image_to_image(), inputs={"image": Target(node="10", field="image")})
    assert refusal(spec, {"image": "other.png [output]"}) == 'image: must be a file: {"$file": "<id>"}.'
    with_placeholder = with_leaf(spec.graph, Target(node="10", field="image"), "__IMAGE__ [input]")
    assert "must be a file" in refusal(spec_of(with_placeholder, inputs={"image": "__IMAGE__"}), {"image": "x"})
    author = render(replace(spec, defaults={"image": "mask.png"}), {}, TASK)
    assert author.graph["10"]["inputs"]["image"] == "mask.png"


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (PROMPT, 3, "must be a text"),
        (PROMPT, True, "must be a text"),
        (PROMPT, ["4", 0], "must be a text, a number, true or false, or a file"),
        (PROMPT, {"$file": ""}, "must be a text, a number, true or false, or a file"),
        (PROMPT, {"$file": "x", "node": "3"}, "must be a text, a number, true or false, or a file"),
        (PROMPT, {"$file": "x", "sha256": "AB"}, "must be a text, a number, true or false, or a file"),
        (Target(node="3", field="steps"), "20", "must be a number"),
        (Target(node="3", field="steps"), True, "must be a number"),
        (Target(node="3", field="steps"), {"$file": "x"}, "must not be a file: 'steps' of node 3 (KSampler)"),
        (Target(node="9", field="lossless"), 1, "must be true or false"),
        ("__STYLE__", True, "must be a text or a number: it is part of a longer text"),
        ("__STYLE__", {"$file": "x"}, "must not be a file: 'text' of node 6 (CLIPTextEncode)"),
        ("__STYLE__", None, "must have a value: the workflow has none for it"),
    ],
)
def test_a_value_that_does_not_fit_its_field_is_refused_by_name(where: Any, value: Any, message: str) -> None:
    graph = with_prompt("a __STYLE__ bird")
    graph["9"]["inputs"]["lossless"] = False
    assert refusal(spec_of(graph, inputs={"x": where}), {"x": value}).startswith(f"x: {message}")


def test_an_input_that_is_not_an_object_is_refused_if_the_graph_has_inputs() -> None:
    assert refusal(spec_of(inputs={"prompt": PROMPT}), ["a"]).startswith("input: must be an object")
    assert render(spec_of(), ["a"], TASK).graph == comfyui_graphs.text_to_image()
