"""Values in a graph: each is one leaf and nothing else, later ones win, what does not fit is refused by name."""

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


def marked(text: str = "a __STYLE__ of __PROMPT__, __STYLE__") -> comfyui_graphs.Graph:
    graph = comfyui_graphs.text_to_image()
    graph["6"]["inputs"]["text"] = text
    return graph


def refusal(spec: ComfySpec, input: Any) -> str:
    with pytest.raises(BadInput) as caught:
        render(spec, input, TASK)
    assert caught.value.code == "invalid_input"
    return caught.value.message


# -- one leaf


@given(st.text() | st.sampled_from(PLACEHOLDERS))
def test_a_users_text_is_one_leaf_whatever_it_holds(text: str) -> None:
    """R175, and weak point 28 of the original: a prompt that holds a placeholder stays as it is."""
    graph = with_leaf(comfyui_graphs.text_to_image(), Target(node="7", field="text"), "__STYLE__")
    by_field = spec_of(graph, inputs={"prompt": PROMPT, "style": "__STYLE__"}, defaults={"style": "oil"})
    wanted = with_leaf(with_leaf(graph, Target(node="7", field="text"), "oil"), PROMPT, text)
    assert render(by_field, {"prompt": text}, TASK) == RenderedGraph(wanted)
    by_text = spec_of(with_leaf(graph, PROMPT, "__PROMPT__"), inputs={"prompt": "__PROMPT__", "style": "__STYLE__"})
    assert render(by_text, {"prompt": text, "style": "oil"}, TASK) == RenderedGraph(wanted)
    assert msgspec.json.decode(msgspec.json.encode(wanted)) == wanted


@given(st.text() | st.sampled_from(PLACEHOLDERS), st.text() | st.sampled_from(PLACEHOLDERS))
def test_texts_within_a_text_are_put_in_once_and_never_looked_at_again(prompt: str, style: str) -> None:
    spec = spec_of(marked(), inputs={"prompt": "__PROMPT__", "style": "__STYLE__"})
    rendered = render(spec, {"prompt": prompt, "style": style}, TASK).graph
    assert rendered == with_leaf(spec.graph, PROMPT, f"a {style} of {prompt}, {style}")


@given(JSON)
def test_whatever_a_job_brings_either_changes_that_field_only_or_is_refused(value: Any) -> None:
    """Nothing but a scalar or a file gets in: a pair would be a link to another node."""
    spec = spec_of(inputs={"prompt": PROMPT, "steps": Target(node="3", field="steps")})
    for name, where in (("prompt", PROMPT), ("steps", Target(node="3", field="steps"))):
        if value is None or type(value) in ({str} if name == "prompt" else {int, float}):
            rendered = render(spec, {name: value}, TASK)
            assert rendered.graph == (spec.graph if value is None else with_leaf(spec.graph, where, value))
        else:
            assert refusal(spec, {name: value}).startswith(f"{name}: ")


def test_the_graph_of_the_recipe_is_left_alone() -> None:
    cfg = Target(node="3", field="cfg")
    spec = spec_of(marked(), inputs={"prompt": "__PROMPT__", "style": "__STYLE__", "cfg": cfg})
    before = copy.deepcopy(spec.graph)
    first = render(spec, {"prompt": "a", "style": "b", "cfg": 2.5}, TASK).graph
    second = render(spec, {"prompt": "c", "style": "d"}, TASK).graph
    assert spec.graph == before
    assert (first["6"]["inputs"]["text"], first["3"]["inputs"]["cfg"]) == ("a b of a, b", 2.5)
    assert (second["6"]["inputs"]["text"], second["3"]["inputs"]["cfg"]) == ("a d of c, d", 8)


def test_a_placeholder_that_is_a_whole_leaf_takes_the_values_type_and_one_within_a_text_its_words() -> None:
    graph = comfyui_graphs.text_to_image()
    graph["3"]["inputs"]["steps"] = "__STEPS__"
    graph["6"]["inputs"]["text"] = "__STEPS__ birds"
    graph["9"]["inputs"]["more"] = {"list": ["__STEPS__", ["__STEPS__", 0], {"deep": "__STEPS__!"}]}
    rendered = render(spec_of(graph, inputs={"steps": "__STEPS__"}), {"steps": 12}, TASK).graph
    assert rendered["3"]["inputs"]["steps"] == 12
    assert rendered["6"]["inputs"]["text"] == "12 birds"
    assert rendered["9"]["inputs"]["more"] == {"list": [12, ["__STEPS__", 0], {"deep": "12!"}]}  # a link is no text


# -- which value


def test_the_graph_then_defaults_then_overrides_then_the_job_and_the_later_wins() -> None:
    """R173."""
    spec = spec_of(inputs={"prompt": PROMPT})
    said = []
    for more, input in (
        ({}, None),
        ({"defaults": {"prompt": "default"}}, {}),
        ({"defaults": {"prompt": "default"}, "overrides": {"prompt": "override"}}, {"prompt": None}),
        ({"defaults": {"prompt": "default"}, "overrides": {"prompt": "override"}}, {"prompt": "", "other": 1}),
    ):
        said.append(render(replace(spec, **more), input, TASK).graph["6"]["inputs"]["text"])
    assert said == ['a "bottle"\nof \\ stars ✨', "default", "override", ""]


def test_one_input_sets_several_fields() -> None:
    targets = [Target(node="5", field="width"), Target(node="5", field="height")]
    rendered = render(spec_of(inputs={"size": targets}), {"size": 640}, TASK).graph
    assert rendered["5"]["inputs"] == {"width": 640, "height": 640, "batch_size": 1}


def test_a_random_input_is_the_tasks_own_and_the_same_on_every_try_unless_somebody_gives_one() -> None:
    spec = spec_of(inputs={"seed": Target(node="3", field="seed")}, random=["seed"])

    def seed(spec: ComfySpec, input: Any, task: str) -> int:
        value: int = render(spec, input, task).graph["3"]["inputs"]["seed"]
        return value

    drawn = {seed(spec, {}, f"task-{no}") for no in range(200)}
    assert len(drawn) == 200
    assert all(0 <= one < 2**31 for one in drawn)
    assert seed(spec, {}, TASK) == seed(spec, None, TASK)
    assert seed(spec, {"seed": 7}, TASK) == 7
    assert seed(replace(spec, defaults={"seed": 8}), {}, TASK) == 8


# -- files


def test_a_file_is_a_slot_with_the_digest_of_the_very_value_that_won() -> None:
    """R217, R237, and weak point 22: the digest of a default never goes with another file."""
    graph = comfyui_graphs.image_to_image()
    spec = spec_of(graph, inputs={"image": Target(node="10", field="image")}, output_node="9")
    spec = replace(spec, defaults={"image": {"$file": "style", "sha256": DIGEST}})
    for nothing in (None, {}, {"image": None}):
        assert render(spec, nothing, TASK).assets == [FileSlot("10", "image", "style", DIGEST, "image")]
    own = render(spec, {"image": {"$file": "mine"}}, TASK)
    assert (own.assets, own.output_node) == ([FileSlot("10", "image", "mine", None, "image")], "9")
    lying = render(spec, {"image": {"$file": "mine", "sha256": DIGEST}}, TASK)
    assert lying.assets == own.assets
    assert own.graph == with_leaf(graph, Target(node="10", field="image"), "")  # no other file until it is filled
    over = replace(spec, overrides={"image": {"$file": "effect"}})
    assert render(over, {}, TASK).assets == [FileSlot("10", "image", "effect", None, "image")]


def test_a_user_names_no_file_of_the_machine_by_a_text() -> None:
    """LoadImage would open `other.png [output]`: what another job made there."""
    spec = spec_of(comfyui_graphs.image_to_image(), inputs={"image": Target(node="10", field="image")})
    assert refusal(spec, {"image": "other.png [output]"}) == 'image: must be a file: {"$file": "<id>"}.'
    marked_up = with_leaf(spec.graph, Target(node="10", field="image"), "__IMAGE__ [input]")
    assert "must be a file" in refusal(spec_of(marked_up, inputs={"image": "__IMAGE__"}), {"image": "x"})
    author = render(replace(spec, defaults={"image": "mask.png"}), {}, TASK)
    assert author.graph["10"]["inputs"]["image"] == "mask.png"


@pytest.mark.parametrize(
    ("where", "value", "said"),
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
def test_a_value_that_does_not_fit_its_place_is_refused_by_name(where: Any, value: Any, said: str) -> None:
    graph = marked("a __STYLE__ bird")
    graph["9"]["inputs"]["lossless"] = False
    assert refusal(spec_of(graph, inputs={"x": where}), {"x": value}).startswith(f"x: {said}")


def test_an_input_that_is_no_object_is_refused_where_inputs_are_named() -> None:
    assert refusal(spec_of(inputs={"prompt": PROMPT}), ["a"]).startswith("input: must be an object")
    assert render(spec_of(), ["a"], TASK).graph == comfyui_graphs.text_to_image()
