"""Workflow files with ComfyUI graphs and with `extends`: loading them, and findings with file, line and hint."""

import json
from pathlib import Path
from typing import Any

import pytest

from callsheet.catalog import check, load
from callsheet.catalog.workflow_file_reader import find_node_lines
from callsheet.core.model.comfyui_graph import ComfySpec, Target
from tests.support import comfyui_graphs

HEAD = '[[stages]]\nname = "draw"\nkind = "comfyui"\n\n'  # four lines
SPEC = HEAD + '[stages.comfyui]\ngraph = "poster.json"\n'  # six lines
INPUTS = f"{SPEC}[stages.comfyui.inputs]\n"
PROMPT = 'prompt = { node = "6", field = "text" }\n'


def write_workflow(folder: Path, text: str, graph: Any = None, name: str = "poster") -> Path:
    """Write a workflow file and its graph, and return the path of the workflow file."""
    (folder / f"{name}.toml").write_text(text)
    if not isinstance(graph, str):
        graph = json.dumps(comfyui_graphs.text_to_image() if graph is None else graph, indent=1)
    (folder / "poster.json").write_text(graph)
    return folder / f"{name}.toml"


def test_a_graph_is_read_from_the_folder_of_the_workflow_file(tmp_path: Path) -> None:
    file = write_workflow(tmp_path, f'{SPEC}output_node = "9"\nrandom = ["seed"]\n[stages.comfyui.inputs]\n{PROMPT}'
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


def test_a_graph_can_be_part_of_the_workflow_file(tmp_path: Path) -> None:
    node = '[stages.comfyui.graph.1]\nclass_type = "EmptyImage"\ninputs = { width = 64 }\n'
    file = write_workflow(tmp_path, f"{HEAD}{node}")
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
        (f"inline = true\n{SPEC}", 1, "which inline workflows cannot have", "Remove inline = true."),
        (INPUTS.replace("\n\n", "\ninputs = [{}, {prompt = 1}]\n\n") + PROMPT, 4, "prompt: must be a text", "Give the"),
        (f"overrides = {{ prompt = 'a' }}\n{SPEC}", 1, "Only a workflow that extends", "Write defaults instead."),
    ],
)  # fmt: skip
def test_a_problem_is_reported_on_its_line(text: str, line: int, message: str, hint: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps(comfyui_graphs.plain()))
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "link.json").symlink_to(outside)
    file = write_workflow(folder, text)
    (finding,) = check([file])
    assert (finding.file, finding.line) == (str(file), line)
    assert message in finding.message
    assert hint in finding.hint


@pytest.mark.parametrize(
    ("graph", "line", "message", "hint"),
    [
        ('{\n "1": {\n  "a" 3}\n}', 3, "JSON is malformed", "Correct the JSON here."),
        ('{\n "1": {"a": 3,\n "a": 4}\n}', 1, "The key 'a' is repeated in one object", "Remove one of the two."),
        ('{\n "1": {\n', 2, "truncated", "Correct the JSON here."),
        ("[" * 5_000, 1, "nested too deeply", "Export (API)"),
        (comfyui_graphs.as_the_editor_saves(), 1, "is in the editor's format", "choose Workflow > Export (API)"),
        ([], 1, "graph: expected object", "Write a table."),
        ({"1": {"class_type": "A", "inputs": {}}, "2": {"inputs": {}}}, 6, "Node '2' has no class_type.", "Export"),
        ({"1": comfyui_graphs.node("ImageInvert", image="notalink")}, 2, "a value, but must be a link",
        'Write ["<node>", <output>]'),
        ({"1": comfyui_graphs.node("A", text="__X__")}, 2, "'__X__' in 'text' of node 1 (A) belongs to no",
        "Add it to"),
        (" " * (4 * 1024 * 1024 + 1), 1, "larger than 4 MiB", "Upload images"),
    ],
)  # fmt: skip
def test_a_problem_of_a_graph_is_reported_in_its_file_at_its_node(
    graph: Any, line: int, message: str, hint: str, tmp_path: Path
) -> None:
    (finding,) = check([write_workflow(tmp_path, SPEC, graph)])
    assert (finding.file, finding.line) == (str(tmp_path / "poster.json"), line)
    assert message in finding.message
    assert hint in finding.hint


def test_a_placeholder_without_a_value_is_reported_at_the_schema(tmp_path: Path) -> None:
    graph = comfyui_graphs.text_to_image()
    graph["6"]["inputs"]["text"] = "__PROMPT__"
    text = f"{INPUTS}prompt = '__PROMPT__'\n[input_schema]\ntype = 'object'\n"
    (finding,) = check([write_workflow(tmp_path, text, graph)])
    assert (finding.line, finding.message) == (9, "The input 'prompt' may have no value.")
    assert finding.hint == "Require it in input_schema, or add a default."
    assert check([write_workflow(tmp_path, f"{text}required = ['prompt']\n", graph)]) == []


def test_all_problems_around_a_graph_are_reported(tmp_path: Path) -> None:
    text = f"prise = 1\n{SPEC}[stages.comfyui.inputs]\na = {{ node = '1', field = 'x' }}\nb = '__B__'\n"
    found = check([write_workflow(tmp_path, text)])
    assert [finding.line for finding in found] == [1, 9, 10]


def test_a_byte_order_mark_is_accepted_and_each_node_has_its_line(tmp_path: Path) -> None:
    file = write_workflow(tmp_path, SPEC)
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


def write_folder(folder: Path, **texts: str) -> Path:
    write_workflow(folder, BASE, name="base")
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


def test_a_workflow_inherits_what_it_does_not_set(tmp_path: Path) -> None:
    """For example several effects with one graph, but their own values and prices."""
    oil = 'extends = "base"\nprice = 9\nretry.attempts_max = 2\n[overrides]\nstyle = "oil"\n'
    wild = 'extends = "oil"\n[overrides]\nprompt = "a fox"\n'
    base, oil_workflow, wild_workflow, zen_workflow = load(
        write_folder(tmp_path, oil=oil, wild=wild, zen='extends = "base"\n')
    )
    assert (base.name, oil_workflow.name, wild_workflow.name) == ("base", "oil", "wild")
    assert (oil_workflow.price, oil_workflow.enabled) == (9, True)
    assert (oil_workflow.retry.attempts_max, oil_workflow.retry.backoff.factor) == (2, 3)
    assert (oil_workflow.input_schema, wild_workflow.price) == ({"required": ["prompt"]}, 9)
    specs = [definition.stages[0].comfyui for definition in (base, oil_workflow, wild_workflow, zen_workflow)]
    assert [spec.overrides for spec in specs if spec] == [
        {}, {"style": "oil"}, {"style": "oil", "prompt": "a fox"}, {},
    ]  # fmt: skip
    assert {definition.stages[0].kind for definition in (base, oil_workflow, wild_workflow)} == {"comfyui"}


def test_a_single_file_can_extend_a_file_of_its_folder(tmp_path: Path) -> None:
    write_folder(tmp_path, oil='extends = "base"\n')
    (oil,) = load(tmp_path / "oil.toml")
    assert (oil.name, oil.price) == ("oil", 4)
    write_workflow(tmp_path, BASE.replace("price = 4", "prise = 4"), name="base")
    child, parent = check([tmp_path / "oil.toml"])
    assert (Path(child.file).name, child.line, child.message) == (
        "oil.toml", 1, "base.toml, which this extends, is not valid.",
    )  # fmt: skip
    assert (Path(parent.file).name, parent.line) == ("base.toml", 1)


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ('price = 1\nextends = "bass"\n', 2, "There is no workflow 'bass' to extend.", "Did you mean 'base'?"),
        ('extends = "missing"\n', 1, "There is no workflow 'missing' to extend.", "in the same folder"),
        ('extends = "oil"\n', 1, "in a circle: oil.toml → oil.toml", "Remove extends from one of them."),
        ("extends = 3\nstages = []\ninline = true\n", 1, "extends: expected str", "a text in quotes"),
        ('extnds = "base"\nstages = []\ninline = true\n', 1, "no field 'extnds'", "Did you mean 'extends'?"),
        ('extends = "base"\nprice = -1\n', 2, "price must be a whole number", "Write a number in this range."),
        (
            'extends = "base"\n[overrides]\n\nstile = "x"\n',
            4,
            "No graph has an input 'stile'.",
            "The inputs are prompt",
        ),
        ('extends = "base"\n[overrides]\nstyle = 3\n', 3, "'style' must be a text.", "Set another value."),
        ('extends = "base"\noverrides = 3\n', 2, "overrides: expected object", "Write a table."),
        ('extends = "base"\nretry = 3\n', 2, "retry: expected object", "Write a table."),
    ],
)
def test_a_problem_of_an_extension_is_reported_on_its_line(
    text: str, line: int, message: str, hint: str, tmp_path: Path
) -> None:
    (finding,) = check([write_folder(tmp_path, oil=text)])
    assert (Path(finding.file).name, finding.line) == ("oil.toml", line)
    assert message in finding.message
    assert hint in finding.hint


def test_a_circle_of_three_files_is_reported_once_and_each_file_has_a_finding(tmp_path: Path) -> None:
    found = check([write_folder(tmp_path, a='extends = "b"\n', b='extends = "c"\n', c='extends = "a"\n')])
    assert [Path(one.file).name for one in found] == ["a.toml", "b.toml", "c.toml"]
    assert [one.message for one in found if "circle" in one.message] == [
        "Workflows extend each other in a circle: a.toml → b.toml → c.toml → a.toml."
    ]
