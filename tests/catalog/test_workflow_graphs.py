"""Workflow files with ComfyUI graphs: read from beside the file, judged with it, by file, line and what to do."""

import json
from pathlib import Path
from typing import Any

import pytest

from callsheet.catalog import check, load
from callsheet.catalog.source_file import find_node_lines
from callsheet.core.model.comfyui_graph import ComfySpec, Target
from tests.support import comfyui_graphs

HEAD = '[[stages]]\nname = "draw"\nkind = "comfyui"\n\n'  # four lines
SPEC = HEAD + '[stages.comfyui]\ngraph = "poster.json"\n'  # six lines
INPUTS = f"{SPEC}[stages.comfyui.inputs]\n"
PROMPT = 'prompt = { node = "6", field = "text" }\n'


def put(folder: Path, text: str, graph: Any = None, name: str = "poster") -> Path:
    (folder / f"{name}.toml").write_text(text)
    said = (
        graph
        if isinstance(graph, str)
        else json.dumps(comfyui_graphs.text_to_image() if graph is None else graph, indent=1)
    )
    (folder / "poster.json").write_text(said)
    return folder / f"{name}.toml"


def test_a_graph_beside_the_file_becomes_part_of_the_recipe(tmp_path: Path) -> None:
    file = put(tmp_path, f'{SPEC}output_node = "9"\nrandom = ["seed"]\n[stages.comfyui.inputs]\n{PROMPT}'
               'seed = [{ node = "3", field = "seed" }]\n[stages.comfyui.defaults]\nprompt = "a fox"\n')  # fmt: skip
    assert check([file]) == []
    (definition,) = load(file)
    assert definition.stages[0].comfyui == ComfySpec(
        graph=comfyui_graphs.text_to_image(),
        inputs={"prompt": Target(node="6", field="text"), "seed": [Target(node="3", field="seed")]},
        defaults={"prompt": "a fox"}, random=["seed"], output_node="9",
    )  # fmt: skip
    (tmp_path / "deep").mkdir()
    (tmp_path / "poster.json").rename(tmp_path / "deep" / "g.json")
    file.write_text(SPEC.replace("poster.json", "deep/g.json"))
    assert check([tmp_path]) == []


def test_a_graph_may_stand_in_the_file_itself(tmp_path: Path) -> None:
    node = '[stages.comfyui.graph.1]\nclass_type = "EmptyImage"\ninputs = { width = 64 }\n'
    file = put(tmp_path, f"{HEAD}{node}")
    assert load(file)[0].stages[0].comfyui == ComfySpec(
        graph={"1": {"class_type": "EmptyImage", "inputs": {"width": 64}}}
    )
    file.write_text(HEAD + node.replace("width = 64", 'image = ["7", 0]'))
    (finding,) = check([file])
    assert (finding.file, finding.line) == (str(file), 7)
    assert "links to node '7'" in finding.message


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        (SPEC.replace("poster.json", "absent.json"), 6, "no file 'absent.json'", "Put the exported graph there"),
        (SPEC.replace("poster.json", "../poster.json"), 6, "is outside the folder", "Put it beside this file."),
        (SPEC.replace("poster.json", "/etc/passwd"), 6, "is outside the folder", "Put it beside this file."),
        (SPEC.replace("poster.json", "link.json"), 6, "is outside the folder", "Put it beside this file."),
        (SPEC.replace("poster.json", "a\\u0000b"), 6, "is outside the folder", "Put it beside this file."),
        (f"{HEAD}[stages.comfyui]\ngraph = 3\n", 6, "stages[0].comfyui.graph: expected object", "Write a table."),
        (f"{HEAD}[stages.comfyui]\n", 5, "The field 'graph' is missing.", "Add graph = "),
        (f"{SPEC}output = 9\n", 7, "no field 'output'", "Did you mean 'output_node'?"),
        (f"{SPEC}output_node = 9\n", 7, "output_node: expected str", "a text in quotes"),
        (f'{SPEC}output_node = "99"\n', 7, "The output_node '99' is not in the graph.", "Its nodes are '3', '4'"),
        (f"{INPUTS}prompt = 3\n", 8, "comfyui.inputs.prompt: expected", "a table"),
        (f"{INPUTS}x = {{ node = '6' }}\n", 8, "The field 'field' is missing.", "Add field = "),
        (f"{INPUTS}x = [{{ node = '6', feld = 'a', field = 'text' }}]\n", 8, "no field 'feld'", "'field'"),
        (f"{INPUTS}{PROMPT.replace('6', '66')}", 8, "There is no node '66'.", "nodes are '3'"),
        (f"{INPUTS}{PROMPT.replace('text', 'clip')}", 8, "is a link to another node", "of node 4"),
        (f"{INPUTS}x = '__X__'\n", 8, "'__X__' is not in the graph", "node and field"),
        (f"{SPEC}[stages.comfyui.defaults]\nx = 1\n", 8, "There is no input 'x'", "Add it to inputs"),
        (f"{INPUTS}{PROMPT}[stages.comfyui.defaults]\nprompt = 1\n", 10, "must be a text", "another value"),
        (f"{SPEC}[stages.comfyui.defaults]\nx = 2026-01-31\n", 8, "is a date", "Put it in quotes."),
        (f"inline = true\n{SPEC}", 1, "which a workflow with inline = true cannot have", "Take inline = true out."),
        (INPUTS.replace("\n\n", "\ninputs = [{}, {prompt = 1}]\n\n") + PROMPT, 4, "prompt: must be a text", "Give the"),
        (f"overrides = {{ prompt = 'a' }}\n{SPEC}", 1, "Only a workflow that extends", "Write defaults instead."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found_on_its_line(text: str, line: int, message: str, hint: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps(comfyui_graphs.plain()))
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "link.json").symlink_to(outside)
    file = put(folder, text)
    (finding,) = check([file])
    assert (finding.file, finding.line) == (str(file), line)
    assert message in finding.message
    assert hint in finding.hint


@pytest.mark.parametrize(
    ("graph", "line", "message", "hint"),
    [
        ('{\n "1": {\n  "a" 3}\n}', 3, "JSON is malformed", "This is not JSON here."),
        ('{\n "1": {\n', 2, "truncated", "This is not JSON here."),
        ("[" * 5_000, 1, "nested too deeply", "Export (API)"),
        (comfyui_graphs.as_the_editor_saves(), 1, "is in the editor's format", "choose Workflow > Export (API)"),
        ([], 1, "graph: expected object", "Write a table."),
        ({"1": {"class_type": "A", "inputs": {}}, "2": {"inputs": {}}}, 6, "Node '2' has no class_type.", "Export"),
        ({"1": comfyui_graphs.node("ImageInvert", image="notalink")}, 2, "a value, but must be a link",
        'Write ["<node>", <output>]'),
        ({"1": comfyui_graphs.node("A", text="__X__")}, 2, "'__X__' in 'text' of node 1 (A) belongs to no",
        "Add it to"),
        (" " * (4 * 1024 * 1024 + 1), 1, "larger than 4 MiB", "Take pictures"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_graph_is_found_in_its_file_at_its_node(
    graph: Any, line: int, message: str, hint: str, tmp_path: Path
) -> None:
    (finding,) = check([put(tmp_path, SPEC, graph)])
    assert (finding.file, finding.line) == (str(tmp_path / "poster.json"), line)
    assert message in finding.message
    assert hint in finding.hint


def test_a_placeholder_without_a_value_is_found_at_the_schema(tmp_path: Path) -> None:
    graph = comfyui_graphs.text_to_image()
    graph["6"]["inputs"]["text"] = "__PROMPT__"
    text = f"{INPUTS}prompt = '__PROMPT__'\n[input_schema]\ntype = 'object'\n"
    (finding,) = check([put(tmp_path, text, graph)])
    assert (finding.line, finding.message) == (9, "The input 'prompt' may have no value.")
    assert finding.hint == "Require it in input_schema, or add a default."
    assert check([put(tmp_path, f"{text}required = ['prompt']\n", graph)]) == []


def test_everything_wrong_around_a_graph_is_found_at_once(tmp_path: Path) -> None:
    text = f"prise = 1\n{SPEC}[stages.comfyui.inputs]\na = {{ node = '1', field = 'x' }}\nb = '__B__'\n"
    found = check([put(tmp_path, text)])
    assert [finding.line for finding in found] == [1, 9, 10]


def test_a_byte_order_mark_does_no_harm_and_lines_are_those_of_the_nodes(tmp_path: Path) -> None:
    file = put(tmp_path, SPEC)
    (tmp_path / "poster.json").write_text(json.dumps(comfyui_graphs.text_to_image()), encoding="utf-8-sig")
    assert check([file]) == []
    text = json.dumps(comfyui_graphs.text_to_image(), indent=2)
    lines = find_node_lines(text)
    assert list(lines) == list(comfyui_graphs.text_to_image())
    assert all(text.splitlines()[line - 1].startswith(f'  "{node}": {{') for node, line in lines.items())


# -- extends

BASE = (
    'price = 4\nenabled = false\n[retry]\nattempts_max = 5\nbackoff.factor = 3\n[input_schema]\nrequired = ["prompt"]\n'
    f"{INPUTS}{PROMPT}style = {{ node = '7', field = 'text' }}\n"
)


def folder_of(folder: Path, **texts: str) -> Path:
    put(folder, BASE, name="base")
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


def test_a_workflow_takes_from_another_what_it_does_not_say(tmp_path: Path) -> None:
    """Source 002's effects: one graph, and effects with their own values and prices."""
    oil = 'extends = "base"\nprice = 9\nretry.attempts_max = 2\n[overrides]\nstyle = "oil"\n'
    wild = 'extends = "oil"\n[overrides]\nprompt = "a fox"\n'
    base, made, further, other = load(folder_of(tmp_path, oil=oil, wild=wild, zen='extends = "base"\n'))
    assert (base.name, made.name, further.name) == ("base", "oil", "wild")
    assert (made.price, made.enabled, made.retry.attempts_max, made.retry.backoff.factor) == (9, True, 2, 3)
    assert (made.input_schema, further.price) == ({"required": ["prompt"]}, 9)
    specs = [definition.stages[0].comfyui for definition in (base, made, further, other)]
    assert [spec.overrides for spec in specs if spec] == [
        {}, {"style": "oil"}, {"style": "oil", "prompt": "a fox"}, {},
    ]  # fmt: skip
    assert {definition.stages[0].kind for definition in (base, made, further)} == {"comfyui"}


def test_one_file_alone_finds_what_it_extends_beside_it(tmp_path: Path) -> None:
    folder_of(tmp_path, oil='extends = "base"\n')
    (made,) = load(tmp_path / "oil.toml")
    assert (made.name, made.price) == ("oil", 4)
    put(tmp_path, BASE.replace("price = 4", "prise = 4"), name="base")
    child, parent = check([tmp_path / "oil.toml"])
    assert (Path(child.file).name, child.line, child.message) == (
        "oil.toml", 1, "base.toml, which this extends, is not sound.",
    )  # fmt: skip
    assert (Path(parent.file).name, parent.line) == ("base.toml", 1)


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ('price = 1\nextends = "bass"\n', 2, "There is no workflow 'bass' to extend.", "Did you mean 'base'?"),
        ('extends = "nothing"\n', 1, "There is no workflow 'nothing' to extend.", "in the same folder"),
        ('extends = "oil"\n', 1, "in a circle: oil.toml → oil.toml", "Let one extend none."),
        ("extends = 3\nstages = []\ninline = true\n", 1, "extends: expected str", "a text in quotes"),
        ('extnds = "base"\nstages = []\ninline = true\n', 1, "no field 'extnds'", "Did you mean 'extends'?"),
        ('extends = "base"\nprice = -1\n', 2, "price must be a whole number", "Write a number within."),
        ('extends = "base"\n[overrides]\n\nstile = "x"\n', 4, "No graph has an input 'stile'.", "Known are prompt"),
        ('extends = "base"\n[overrides]\nstyle = 3\n', 3, "'style' must be a text.", "Set another value."),
        ('extends = "base"\noverrides = 3\n', 2, "overrides: expected object", "Write a table."),
        ('extends = "base"\nretry = 3\n', 2, "retry: expected object", "Write a table."),
    ],
)
def test_what_is_wrong_with_an_extension_is_found_on_its_line(
    text: str, line: int, message: str, hint: str, tmp_path: Path
) -> None:
    (finding,) = check([folder_of(tmp_path, oil=text)])
    assert (Path(finding.file).name, finding.line) == ("oil.toml", line)
    assert message in finding.message
    assert hint in finding.hint


def test_a_circle_of_three_is_said_once_for_each_that_is_in_it(tmp_path: Path) -> None:
    found = check([folder_of(tmp_path, a='extends = "b"\n', b='extends = "c"\n', c='extends = "a"\n')])
    assert [Path(one.file).name for one in found] == ["a.toml", "b.toml", "c.toml"]
    assert [one.message for one in found if "circle" in one.message] == [
        "Workflows extend each other in a circle: a.toml → b.toml → c.toml → a.toml."
    ]
