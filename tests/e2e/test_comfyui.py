"""`callsheet comfyui` in a process of its own: a ComfyUI server becomes a worker, and a graph becomes a file."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.comfy import samples
from tests.support.comfy.machine import NEW, OLD
from tests.support.comfy.server import Comfy
from tests.support.running import Running, Up, run
from tests.worker.comfyui import graphs

ENDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("server") / "data", command="serve") as made:
        yield made


def working(server: Up, folder: Path, comfy: Comfy) -> Running:
    house = ["--url", server.url, "--fleet-secret-file", server.data / "fleet.key"]
    words = ["comfyui", "--server", comfy.url, *house, "--cache", folder / "cache", "--json"]
    return Running(*words, log=folder / "comfyui.log", cwd=folder)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_an_exported_graph_is_imported_submitted_and_drawn(server: Up, tmp_path: Path, version: str) -> None:
    """From a graph on disk to a file in the house, with commands alone; R217, R220 to R222."""
    (tmp_path / "graph.json").write_text(json.dumps(graphs.basic(255)))
    made = run("workflows", "import", tmp_path / "graph.json", "--name", "picture", "--out", tmp_path, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert run("workflows", "check", tmp_path / "picture.toml").returncode == 0
    address = ["--url", server.url, "--key", server.key]
    put = run("workflows", "put", tmp_path / "picture.toml", *address)
    assert put.returncode == 0, put.stderr
    with Comfy(tmp_path / "comfy", version) as comfy, working(server, tmp_path, comfy) as worker:
        assert json.loads(worker.line())["kinds"] == ["comfyui"]
        with server.client() as client:
            client.topup("ann", 100)
            schema = client.workflow("picture").recipe["input_schema"]
            assert "width_2" in schema["properties"]
            job = client.submit("picture", user="ann", input={"width_2": 40})
            assert client.wait(job.id, ENDS).completed
            (output,) = client.outputs(job.id)
            assert [client.read(file) for file in output.files] == [samples.png(40, 24, 0xFFFFFF ^ 255)]
        assert worker.stop() == 0


def test_the_cloud_without_a_key_is_refused_in_one_sentence(server: Up) -> None:
    ran = run("comfyui", "--api", "cloud", "--url", server.url, "--fleet-secret-file", server.data / "fleet.key")
    assert ran.returncode == 2
    assert "COMFY_API_KEY" in ran.stderr
