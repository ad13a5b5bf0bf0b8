"""Validation of ComfyUI graphs: alone, with their inputs, and as part of a workflow definition."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callsheet.comfyui.graph_rules_implementation import COMFYUI_GRAPH_RULES
from callsheet.comfyui.template import render, resolve_values
from callsheet.comfyui.validate import find_graph_issues, find_issues
from callsheet.core.model import commands as c
from callsheet.core.model.comfyui_graph import ComfySpec, Target
from callsheet.core.model.errors import BadInput
from callsheet.core.model.workflow_definition import (
    StageSpec,
    WorkflowDefinition,
    check_definition,
    graph_of,
    parse_definition,
)
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.working_set import encode
from tests.comfyui.test_template import JSON, PROMPT, TASK, spec_of, with_prompt
from tests.core.rule_harness import CoreHarness
from tests.support import comfyui_graphs
from tests.support.comfyui_graphs import node

LIMITS = Limits()


def first_issue(spec: ComfySpec) -> tuple[tuple[str | int, ...], str, str]:
    return next(find_issues(spec, LIMITS))


@pytest.mark.parametrize(
    ("graph", "key_path", "message", "hint"),
    [
        (comfyui_graphs.as_the_editor_saves(), (), "is in the editor's format", "choose Workflow > Export (API)"),
        ({"prompt": comfyui_graphs.plain(), "client_id": "x"}, (), "wrapped in 'prompt'",
        "Use only the value of 'prompt'."),
        ({}, (), "The graph is empty.", "Export (API)"),
        ({"1": "x"}, ("1",), "Node '1' is not an object", "Export (API)"),
        ({"1": {"inputs": {}}}, ("1",), "Node '1' has no class_type.", "Export (API)"),
        ({"1": {"class_type": "A"}}, ("1",), "Node '1' (A) has no inputs.", "Write {}"),
        ({"1": node("A", x=["77", 0])}, ("1", "inputs", "x"), "links to node '77', which is not in the graph", "Link"),
        ({"1": node("A", x=["2", -1]), "2": node("B")}, ("1", "inputs", "x"), "links to output -1", "The first"),
        ({"1": node("A", x=["2", 0]), "2": node("B", y=["1", 0])}, ("1",), "in a circle: 1 → 2 → 1", "Remove one"),
        ({"1": node("A", x=["1", 0])}, ("1",), "in a circle: 1 → 1", "Remove one of these links"),
        (
            {"1": node("ImageInvert", image="notalink")}, ("1", "inputs", "image"),
            "'image' of node 1 (ImageInvert) is a value, but must be a link", 'Write ["<node>", <output>]',
        ),
        ({str(no): node("A") for no in range(2_001)}, (), "2001 nodes; at most 2000", "Split it."),
        ({"1": node("A", x="x" * 600_000)}, (), "bytes; at most 524288", "as files and refer to them"),
        ({"1": node("A", x=msgspec.json.decode("[" * 80 + "]" * 80))}, (), "deeper than 64 levels", "Flatten it."),
    ],
)  # fmt: skip
def test_an_invalid_graph_is_reported_with_a_hint(
    graph: Any, key_path: tuple[str, ...], message: str, hint: str
) -> None:
    """ComfyUI answers some of these formats with status 500."""
    found = next(find_graph_issues(graph, LIMITS))
    assert found.key_path == key_path
    assert message in found.message
    assert hint in found.hint
    with pytest.raises(BadInput, match="Stage 'draw': ") as refused:
        COMFYUI_GRAPH_RULES.check_graph("draw", ComfySpec(graph=graph), LIMITS)
    assert refused.value.code == "invalid_graph"


@pytest.mark.parametrize(
    ("more", "key_path", "message"),
    [
        ({"inputs": {"x": Target(node="66", field="text")}}, ("inputs", "x"), "There is no node '66'."),
        ({"inputs": {"x": Target(node="6", field="txt")}}, ("inputs", "x"), "no field 'txt' in node 6"),
        ({"inputs": {"x": Target(node="6", field="clip")}}, ("inputs", "x"), "is a link to another node"),
        ({"inputs": {"x": PROMPT, "y": PROMPT}}, ("inputs", "y"), "is also set by 'x'"),
        ({"inputs": {"x": "__NOWHERE__"}}, ("inputs", "x"), "'__NOWHERE__' is not in the graph"),
        ({"inputs": {"x": ""}}, ("inputs", "x"), "A placeholder is empty."),
        ({"inputs": {"x": "__A__", "y": "__A__B"}}, ("inputs", "x"), "is part of the placeholder of 'y'"),
        ({"defaults": {"prompt": "x"}}, ("defaults", "prompt"), "There is no input 'prompt' in this graph."),
        ({"overrides": {"prompt": "x"}}, ("overrides", "prompt"), "There is no input 'prompt' in this graph."),
        ({"inputs": {"x": PROMPT}, "defaults": {"x": 3}}, ("defaults", "x"), "'x' must be a text."),
        ({"inputs": {"x": PROMPT}, "overrides": {"x": []}}, ("overrides", "x"), "'x' must be a text, a number"),
        ({"random": ["seed"]}, ("random",), "There is no input 'seed' in this graph."),
        ({"output_node": "99"}, ("output_node",), "The output_node '99' is not in the graph."),
    ],
)
def test_an_input_without_a_valid_target_is_reported(
    more: dict[str, Any], key_path: tuple[str, ...], message: str
) -> None:
    found = first_issue(spec_of(**more))
    assert found[0] == key_path
    assert message in found[1]


@pytest.mark.parametrize(
    ("text", "inputs", "message"),
    [
        ("a __BIRD__", {}, "'__BIRD__' in 'text' of node 6 (CLIPTextEncode) belongs to no input."),
        ("a __X__ __BIRD_2__", {"x": "__X__"}, "'__BIRD_2__'"),
        ("a {{x}} {{ bird }}", {"x": "{{x}}"}, "'{{ bird }}'"),
        ("a ${x} ${bird}", {"x": "${x}"}, "'${bird}'"),
    ],
)
def test_a_placeholder_without_an_input_is_reported(text: str, inputs: dict[str, Any], message: str) -> None:
    (found,) = find_issues(spec_of(with_prompt(text), inputs=inputs), LIMITS)
    assert found.key_path == ("graph", "6", "inputs", "text")
    assert message in found.message


@pytest.mark.parametrize("text", ["{{masterpiece}}, __animal__, ${a}", "%date:yyyy%", "{a|b} __ and __init__"])
def test_prompt_syntax_is_not_a_placeholder(text: str) -> None:
    assert list(find_issues(spec_of(with_prompt(text)), LIMITS)) == []


@pytest.mark.parametrize(
    "build", [comfyui_graphs.text_to_image, comfyui_graphs.image_to_image, comfyui_graphs.guided, comfyui_graphs.plain]
)
def test_common_graphs_are_valid(build: Callable[[], comfyui_graphs.Graph]) -> None:
    assert list(find_graph_issues(build(), LIMITS)) == []


def test_a_long_chain_is_not_a_circle() -> None:
    chain = {str(no): node("ImageInvert", image=[str(no + 1), 0]) for no in range(1_998)} | {"1998": node("EmptyImage")}
    assert list(find_graph_issues(chain, LIMITS)) == []


LEAVES = JSON | st.sampled_from([["1", 0], "__X__", "a __X__ b", "__Y__"])
FIELDS = st.fixed_dictionaries({"image": LEAVES, "text": LEAVES})
NODES = st.fixed_dictionaries({"class_type": st.sampled_from(["LoadImage", "Own"]), "inputs": FIELDS})
WHERE = st.builds(Target, node=st.sampled_from("12"), field=st.sampled_from(["image", "text"]))
SPECS = st.builds(
    ComfySpec,
    graph=st.dictionaries(st.sampled_from("12"), NODES, min_size=1) | st.dictionaries(st.text(max_size=3), JSON),
    inputs=st.dictionaries(st.sampled_from("xy"), WHERE | st.lists(WHERE, max_size=2) | st.sampled_from(["__X__", ""])),
    defaults=st.dictionaries(st.sampled_from("xyz"), JSON, max_size=1),
    random=st.lists(st.sampled_from("xz"), max_size=1),
)


@given(SPECS, JSON | st.fixed_dictionaries({"x": JSON}))
def test_a_graph_without_issues_renders_or_the_input_is_refused(spec: ComfySpec, input: Any) -> None:
    if list(find_issues(spec, LIMITS)):
        return
    try:
        rendered = render(spec, input, TASK)
    except BadInput as refused:
        assert refused.code == "invalid_input"  # noqa: PT017 - either ending is right, no other is
        return
    assert list(find_graph_issues(rendered.graph, LIMITS)) == []
    assert rendered.graph.keys() == spec.graph.keys()


# -- workflow definitions

STAGE = StageSpec(name="draw", kind="comfyui", comfyui=spec_of(inputs={"prompt": PROMPT}))
ANY_PROMPT = {"type": "object", "properties": {"prompt": {}}}


def test_a_graph_is_stored_with_its_workflow_and_found_by_stage() -> None:
    """R174."""
    spec = spec_of(with_prompt(), inputs={"prompt": "__PROMPT__", "style": [PROMPT], "x": PROMPT}, random=["x"])
    definition = WorkflowDefinition(name="poster", stages=[replace(STAGE, comfyui=spec), StageSpec(name="b", kind="k")])
    assert parse_definition(encode(definition)) == definition
    assert [graph_of(definition, no) for no in range(4)] == [None, spec, None, None]


@pytest.mark.parametrize(
    ("schema", "valid"),
    [
        (None, False), (True, False), ({"type": "object"}, False), ({"required": ["prompt"]}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, True),
    ],
)  # fmt: skip
def test_a_placeholder_needs_a_default_or_a_required_input(schema: Any, valid: bool) -> None:
    spec = spec_of(with_prompt("__PROMPT__"), inputs={"prompt": "__PROMPT__"})
    definition = WorkflowDefinition(name="poster", stages=[replace(STAGE, comfyui=spec)], input_schema=schema)
    defaulted = replace(definition, stages=[replace(STAGE, comfyui=replace(spec, defaults={"prompt": "x"}))])
    random = replace(definition, stages=[replace(STAGE, comfyui=replace(spec, random=["prompt"]))])
    assert [CoreHarness().do(c.PutWorkflow(definition=one)).version for one in (defaulted, random)] == [1, 1]
    if valid:
        assert CoreHarness().do(c.PutWorkflow(definition=definition)).version == 1
    else:
        refusal = CoreHarness().expect_refusal(c.PutWorkflow(definition=definition))
        assert "'prompt' may have no value" in refusal.message


def test_the_inputs_of_a_stage_must_fit_its_graph() -> None:
    definition = WorkflowDefinition(name="poster", stages=[replace(STAGE, inputs=[{"prompt": "a"}, {"prompt": 3}])])
    with pytest.raises(BadInput, match=r"inputs\[1\]: prompt: must be a text"):
        check_definition(definition, LIMITS, COMFYUI_GRAPH_RULES)


def test_inline_stages_cannot_have_a_graph() -> None:
    """A graph runs code on the worker, so only an operator can add one."""
    inline = WorkflowDefinition(name="free", inline=True)
    harness = CoreHarness(inline)
    submit = c.Submit(id=harness.new_id(), tenant="acme", user="ann", workflow="free", stages=[STAGE])
    assert harness.expect_refusal(submit).code == "invalid_graph"
    job = harness.do(replace(submit, stages=[]))
    add = c.AddStage(id=harness.new_id(), tenant="acme", job_id=job.job_id, stage=STAGE)
    assert harness.expect_refusal(add).code == "invalid_graph"
    assert harness.expect_refusal(c.PutWorkflow(definition=replace(inline, stages=[STAGE]))).code == "invalid_graph"


def test_a_submit_whose_input_does_not_fit_the_graph_is_refused() -> None:
    harness = CoreHarness(WorkflowDefinition(name="poster", stages=[STAGE], input_schema=ANY_PROMPT))
    submit = c.Submit(id=harness.new_id(), tenant="acme", user="ann", workflow="poster", input={"prompt": ["4", 0]})
    refused = harness.expect_refusal(submit)
    assert (refused.code, "prompt: must be" in refused.message) == ("invalid_input", True)
    job = harness.do(replace(submit, input={"prompt": "a bird"}))
    stage = harness.stages(job.job_id)[0]
    add = c.AddTasks(id=harness.new_id(), tenant="acme", job_id=job.job_id, stage_id=stage.id, inputs=[{"prompt": 3}])
    assert harness.expect_refusal(add).code == "invalid_input"
    assert resolve_values(STAGE.comfyui or spec_of(), {"prompt": "a bird"}) == {"prompt": "a bird"}
