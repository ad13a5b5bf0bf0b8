"""`callsheet comfyui` in a process of its own: a ComfyUI server becomes a worker, and a graph becomes a file."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.comfyui import sample_files
from tests.support.comfyui.server import ComfyServer
from tests.support.comfyui.server_state import NEW, OLD
from tests.support.processes.cli_process import CommandProcess, ServerProcess, run
from tests.worker.comfyui import graphs

ENDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data", command="serve") as made:
        yield made


def working(server: ServerProcess, folder: Path, comfy: ComfyServer) -> CommandProcess:
    connection = ["--url", server.url, "--fleet-secret-file", server.data / "fleet.key"]
    arguments = ["comfyui", "--comfyui-url", comfy.url, *connection, "--cache-dir", folder / "cache", "--json"]
    return CommandProcess(*arguments, log=folder / "comfyui.log", cwd=folder)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_an_exported_graph_is_imported_submitted_and_run(server: ServerProcess, tmp_path: Path, version: str) -> None:
    """From a graph on disk to an output file, with commands only; R217, R220 to R222."""
    (tmp_path / "graph.json").write_text(json.dumps(graphs.basic(255)))
    made = run(
        "workflows", "import", tmp_path / "graph.json", "--name", "picture", "--output-dir", tmp_path, cwd=tmp_path
    )
    assert made.returncode == 0, made.stderr
    assert run("workflows", "check", tmp_path / "picture.toml").returncode == 0
    address = ["--url", server.url, "--api-key", server.key]
    put = run("workflows", "apply", tmp_path / "picture.toml", *address)
    assert put.returncode == 0, put.stderr
    with ComfyServer(tmp_path / "comfy", version) as comfy, working(server, tmp_path, comfy) as worker:
        assert json.loads(worker.line())["kinds"] == ["comfyui"]
        with server.client() as client:
            client.wallets.top_up("ann", 100)
            schema = client.workflows.get("picture").definition["input_schema"]
            assert "width_2" in schema["properties"]
            job = client.jobs.submit("picture", user="ann", input={"width_2": 40})
            assert client.jobs.wait(job.id, ENDS).completed
            (output,) = client.jobs.outputs(job.id)
            assert [client.files.read(file) for file in output.files] == [sample_files.png(40, 24, 0xFFFFFF ^ 255)]
        assert worker.stop() == 0


def test_an_uploaded_image_is_used_in_the_graph_and_sent_to_comfyui_once(server: ServerProcess, tmp_path: Path) -> None:
    """R217 to R219: downloaded by the worker, uploaded to ComfyUI, referred to by its name there."""
    (tmp_path / "graph.json").write_text(json.dumps(graphs.upload()))
    run("workflows", "import", tmp_path / "graph.json", "--name", "scaled", "--output-dir", tmp_path, cwd=tmp_path)
    put = run("workflows", "apply", tmp_path / "scaled.toml", "--url", server.url, "--api-key", server.key)
    assert put.returncode == 0, put.stderr
    with ComfyServer(tmp_path / "comfy", NEW) as comfy, working(server, tmp_path, comfy) as worker:
        with server.client() as client:
            file = client.files.upload(sample_files.png(4, 4, 7), user="ann", name="mine.png")
            for width in (12, 16):
                job = client.jobs.submit("scaled", user="ann", input={"image": {"$file": file.id}, "width": width})
                assert client.jobs.wait(job.id, ENDS).completed
                (output,) = client.jobs.outputs(job.id)
                assert [made.media_type for made in output.files] == ["image/png"]
        (uploaded,) = (comfy.disk.root / "input").iterdir()
        assert uploaded.read_bytes() == sample_files.png(4, 4, 7)
        assert len(comfy.requests_to("/upload/image")) == 1
        sent = [request.json()["prompt"] for request in comfy.requests_to("/prompt")]
        assert [(one["10"]["inputs"]["image"], one["11"]["inputs"]["width"]) for one in sent] == [
            (uploaded.name, 12), (uploaded.name, 16),
        ]  # fmt: skip
        assert worker.stop() == 0


def test_the_cloud_without_a_key_is_refused_in_one_sentence(server: ServerProcess) -> None:
    ran = run("comfyui", "--api", "cloud", "--url", server.url, "--fleet-secret-file", server.data / "fleet.key")
    assert ran.returncode == 2
    assert "COMFY_API_KEY" in ran.stderr
