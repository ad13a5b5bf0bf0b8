"""`callsheet workflows import`: turns a graph that ComfyUI exported into a valid workflow."""

import http.server
import json
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callsheet.catalog import load
from callsheet.comfyui.template import iter_targets, render
from callsheet.core.policy.input_schema.validator import InputSchema
from tests.cli.conftest import CliResult, invoke_cli
from tests.support import comfyui_graphs
from tests.support.comfyui_graphs import INFO

GRAPHS = {
    "txt2img": comfyui_graphs.text_to_image, "img2img": comfyui_graphs.image_to_image,
    "guided": comfyui_graphs.guided, "plain": comfyui_graphs.plain,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_graph(graph: Any, name: str = "poster_api.json") -> str:
    Path(name).write_text(graph if isinstance(graph, str) else json.dumps(graph))
    return name


def import_workflow(*words: str) -> CliResult:
    return invoke_cli("workflows", "import", *words)


@pytest.mark.parametrize("graph_name", GRAPHS)
@pytest.mark.parametrize("with_object_info", [True, False])
def test_an_exported_graph_becomes_a_valid_workflow_that_renders_the_same_graph(
    graph_name: str, with_object_info: bool
) -> None:
    graph = GRAPHS[graph_name]()
    Path("info.json").write_text(json.dumps(INFO))
    words = ["--object-info", "info.json"] if with_object_info else []
    done = import_workflow(write_graph(graph), "--name", graph_name, "--output-dir", "imported", *words)
    assert done.code == 0, done.err
    assert invoke_cli("workflows", "check", "imported").out == "All workflows are valid.\n"
    (definition,) = load(Path("imported"))
    spec = definition.stages[0].comfyui
    assert spec is not None
    assert (definition.name, definition.stages[0].kind, spec.graph) == (graph_name, "comfyui", graph)
    assert json.loads(Path("imported", f"{graph_name}.graph.json").read_text()) == graph
    rendered = render(spec, dict.fromkeys(spec.random, 3), "task").graph
    for name, target in iter_targets(spec):
        if name in spec.random:
            graph[target.node]["inputs"][target.field] = 3
    assert rendered == graph  # without other input, the graph is as exported


def test_the_input_schema_accepts_the_exposed_inputs_and_nothing_else() -> None:
    assert import_workflow(write_graph(comfyui_graphs.image_to_image())).code == 0
    (definition,) = load(Path("poster.toml"))
    schema = InputSchema("poster", definition.input_schema)
    valid = {"prompt": "a fox", "image": {"$file": "0197"}, "denoise": 0.5, "seed": 2**40}
    assert schema.is_valid(valid)
    for wrong in (
        {"prompt": 3}, {"image": "x.png"}, {"image": {"$file": "a", "sha256": "b"}}, {"denoise": 2}, {"ckpt_name": "x"},
        {"seed": -1}, {"prompt": "x" * 4_001},
    ):  # fmt: skip
        assert not schema.is_valid(valid | wrong), wrong
    assert not schema.is_valid({"prompt": "a fox"})
    table = tomllib.loads(Path("poster.toml").read_text())
    assert table["input_schema"]["properties"]["prompt"]["examples"] == ['a "bottle"\nof \\ stars ✨']


def test_the_output_lists_the_exposed_inputs_and_the_next_command() -> None:
    lines = import_workflow(write_graph(comfyui_graphs.text_to_image())).out.splitlines()
    assert lines[0].split() == ["INPUT", "SETS", "NODE", "REQUIRED", "IN", "THE", "GRAPH"]
    assert lines[1].split()[:4] == ["prompt", "6.text", "CLIPTextEncode", "yes"]
    assert [line.split()[0] for line in lines[1:8]] == [
        "prompt", "negative_prompt", "width", "height", "steps", "cfg", "seed",
    ]  # fmt: skip
    assert lines[-2] == "Written: poster.toml and poster.graph.json."
    assert lines[-1].endswith("callsheet workflows check poster.toml")


def test_the_result_is_printed_as_json() -> None:
    result = import_workflow(write_graph(comfyui_graphs.plain()), "--json").json
    assert (result["workflow"], result["graph"], result["output_node"]) == ("poster.toml", "poster.graph.json", "9")
    assert result["inputs"][0]["targets"] == [{"node": "1", "field": "width"}]
    again = import_workflow("poster_api.json", "--json")
    assert (again.code, json.loads(again.err)["code"]) == (1, "file_exists")


def test_existing_files_are_overwritten_only_with_force() -> None:
    file = write_graph(comfyui_graphs.plain())
    Path("poster.graph.json").write_text("mine")
    refused = import_workflow(file)
    assert (refused.code, Path("poster.graph.json").read_text()) == (1, "mine")
    assert "poster.graph.json already exists. Choose another --name or --output-dir, or pass --force." in refused.err
    Path("poster.toml").touch()
    assert "poster.toml and poster.graph.json already exist. Choose" in import_workflow(file).err
    Path("poster.toml").unlink()
    assert not Path("poster.toml").exists()
    assert import_workflow(file, "--force").code == 0
    assert json.loads(Path("poster.graph.json").read_text()) == comfyui_graphs.plain()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (comfyui_graphs.as_the_editor_saves(), "poster_api.json:1: The graph is in the editor's format"),
        ("{", "poster_api.json:1: Input data was truncated."),
        ([1], "The graph is not an object with nodes by id."),
        (
            {"1": comfyui_graphs.node("VAEDecode", samples=["7", 0], vae="x")},
            "links to node '7', which is not in the graph.",
        ),
    ],
)
def test_an_invalid_graph_is_rejected_with_the_reason(graph: Any, message: str) -> None:
    done = import_workflow(write_graph(graph))
    assert (done.code, message in done.err) == (1, True), done.err
    assert [path.name for path in Path().iterdir()] == ["poster_api.json"]


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        ("My Poster (v2)_api.json", [], "My-Poster-v2"),
        ("!!.json", [], "workflow"),
        ("a.json", ["--name", "b.c"], "b.c"),
    ],
)
def test_the_name_of_the_workflow_comes_from_the_option_or_the_file(name: str, words: list[str], expected: str) -> None:
    assert import_workflow(write_graph(comfyui_graphs.plain(), name), *words).code == 0
    assert Path(f"{expected}.toml").is_file()


@pytest.mark.parametrize("name", ["../x", "a/b", "", "-x"])
def test_an_invalid_name_is_rejected_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    done = import_workflow(write_graph(comfyui_graphs.plain()), f"--name={name}", "--output-dir", "imported")
    assert (done.code, "is not a valid name" in done.err) == (1, True)
    assert [path.name for path in tmp_path.rglob("*")] == ["poster_api.json"]


def test_unreadable_files_are_reported_in_one_sentence() -> None:
    absent = import_workflow("absent.json")
    assert (absent.code, "absent.json:1: The file cannot be read" in absent.err) == (1, True)
    Path("info.json").write_text("[]")
    for words in (["--object-info", "info.json"], ["--object-info", "nowhere.json"]):
        done = import_workflow(write_graph(comfyui_graphs.plain()), *words)
        assert (done.code, done.err.count("\n")) == (1, 1)
    both = import_workflow(
        write_graph(comfyui_graphs.plain()), "--object-info", "info.json", "--comfyui-url", "http://127.0.0.1:1"
    )
    assert both.code == 2
    Path("file").write_text("")
    assert "file" in import_workflow("poster_api.json", "--output-dir", "file").err


class _ComfyUI(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = self.path == "/object_info" and "Origin" not in self.headers
        body = json.dumps(INFO).encode() if found else b""
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing."""


@pytest.fixture
def comfyui() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _ComfyUI) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_bounds_and_choices_come_from_a_running_comfyui(comfyui: str) -> None:
    graph = comfyui_graphs.text_to_image()
    graph["4"]["inputs"]["ckpt_name"] = "elsewhere.safetensors"
    done = import_workflow(write_graph(graph), "--comfyui-url", f"{comfyui}/")
    assert done.code == 0, done.err
    assert "! Node 4, ckpt_name: 'elsewhere.safetensors' is not among the server's choices." in done.out
    properties = tomllib.loads(Path("poster.toml").read_text())["input_schema"]["properties"]
    assert properties["width"] == {"type": "integer", "minimum": 16, "maximum": 16384, "default": 512}
    assert properties["sampler_name"] == {"type": "string", "enum": ["euler", "ddim"], "default": "euler"}
    wrong = import_workflow("poster_api.json", "--comfyui-url", f"{comfyui}/nowhere", "--force")
    assert (wrong.code, "responded with 404 to /object_info" in wrong.err) == (1, True)


def test_a_comfyui_that_does_not_answer_is_reported() -> None:
    done = import_workflow(write_graph(comfyui_graphs.plain()), "--comfyui-url", "http://127.0.0.1:1")
    assert (done.code, "does not respond" in done.err) == (1, True)
    assert not Path("poster.toml").exists()
