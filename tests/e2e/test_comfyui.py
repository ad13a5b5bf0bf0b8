"""`callsheet comfyui` as a process: it runs imported graphs on a ComfyUI server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.comfyui import sample_files
from tests.support.comfyui.server import ComfyServer
from tests.support.comfyui.server_state import NEW, OLD
from tests.support.processes.cli_process import CommandProcess, ServerProcess, run
from tests.worker.comfyui import graphs

END_SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data", command="serve") as started:
        yield started


def start_worker(server: ServerProcess, folder: Path, comfy: ComfyServer) -> CommandProcess:
    connection = ["--url", server.url, "--fleet-secret-file", server.data / "fleet.key"]
    arguments = ["comfyui", "--comfyui-url", comfy.url, *connection, "--cache-dir", folder / "cache", "--json"]
    return CommandProcess(*arguments, log=folder / "comfyui.log", cwd=folder)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_an_exported_graph_is_imported_submitted_and_run(server: ServerProcess, tmp_path: Path, version: str) -> None:
    """R220: from a graph on disk to an output file, with commands only."""
    (tmp_path / "graph.json").write_text(json.dumps(graphs.basic(255)))
    imported = run(
        "workflows", "import", tmp_path / "graph.json", "--name", "picture", "--output-dir", tmp_path, cwd=tmp_path
    )
    assert imported.returncode == 0, imported.stderr
    assert run("workflows", "check", tmp_path / "picture.toml").returncode == 0
    connection = ["--url", server.url, "--api-key", server.key]
    applied = run("workflows", "apply", tmp_path / "picture.toml", *connection)
    assert applied.returncode == 0, applied.stderr
    with ComfyServer(tmp_path / "comfy", version) as comfy, start_worker(server, tmp_path, comfy) as worker:
        assert json.loads(worker.line())["kinds"] == ["comfyui"]
        with server.client() as client:
            client.wallets.top_up("ann", 100)
            schema = client.workflows.get("picture").definition["input_schema"]
            assert "width_2" in schema["properties"]
            job = client.jobs.submit("picture", user="ann", input={"width_2": 40})
            assert client.jobs.wait(job.id, END_SECONDS).completed
            (output,) = client.jobs.outputs(job.id)
            assert [client.files.read(file) for file in output.files] == [sample_files.png(40, 24, 0xFFFFFF ^ 255)]
        assert worker.stop() == 0


def test_an_uploaded_image_is_used_in_the_graph_and_sent_to_comfyui_once(server: ServerProcess, tmp_path: Path) -> None:
    """R217, R218, R219: the worker downloads the image, uploads it to ComfyUI and puts its name into the graph."""
    (tmp_path / "graph.json").write_text(json.dumps(graphs.upload()))
    run("workflows", "import", tmp_path / "graph.json", "--name", "scaled", "--output-dir", tmp_path, cwd=tmp_path)
    applied = run("workflows", "apply", tmp_path / "scaled.toml", "--url", server.url, "--api-key", server.key)
    assert applied.returncode == 0, applied.stderr
    with ComfyServer(tmp_path / "comfy", NEW) as comfy, start_worker(server, tmp_path, comfy) as worker:
        with server.client() as client:
            file = client.files.upload(sample_files.png(4, 4, 7), user="ann", name="mine.png")
            for width in (12, 16):
                job = client.jobs.submit("scaled", user="ann", input={"image": {"$file": file.id}, "width": width})
                assert client.jobs.wait(job.id, END_SECONDS).completed
                (output,) = client.jobs.outputs(job.id)
                assert [output_file.media_type for output_file in output.files] == ["image/png"]
        (uploaded,) = (comfy.disk.root / "input").iterdir()
        assert uploaded.read_bytes() == sample_files.png(4, 4, 7)
        assert len(comfy.requests_to("/upload/image")) == 1
        sent = [request.json()["prompt"] for request in comfy.requests_to("/prompt")]
        assert [(one["10"]["inputs"]["image"], one["11"]["inputs"]["width"]) for one in sent] == [
            (uploaded.name, 12), (uploaded.name, 16),
        ]  # fmt: skip
        assert worker.stop() == 0


def test_the_cloud_api_without_a_key_is_a_usage_error(server: ServerProcess) -> None:
    done = run("comfyui", "--api", "cloud", "--url", server.url, "--fleet-secret-file", server.data / "fleet.key")
    assert done.returncode == 2
    assert "COMFY_API_KEY" in done.stderr
