"""`callsheet worker` and `callsheet comfyui`: invalid options, capabilities, and how they find their server."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from callsheet.cli.server_process import lock_directory
from tests.cli.conftest import CliResult, invoke_cli
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

MODULE = """from callsheet.worker import Worker

worker = Worker("mine")
worker.task("shout")(lambda ctx: ctx.input)
"""
SERVER_URL = ["--url", "http://127.0.0.1:1"]
SECRET = ["--fleet-secret-file", "secret"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sample_worker:worker", *SECRET], "No server found in callsheet-data."),
        (
            ["sample_worker:worker", *SERVER_URL],
            "No fleet secret for http://127.0.0.1:1, which is not the server of callsheet-data.",
        ),
        (["sample_worker:worker", "--url", "server", *SECRET], "http:// or https://"),
        (["sample_worker:worker", *SERVER_URL, *SECRET, "--interruption-source", "gcp"], "Choose aws"),
        (["sample_worker:worker", *SERVER_URL, *SECRET, "--kinds", "shout,whisper"], "no handler for 'whisper'"),
        (["sample_worker:worker", *SERVER_URL, *SECRET, "--name", "a/b"], "letters, digits"),
        (["sample_worker:worker", *SERVER_URL, *SECRET, "--label", "zone"], "NAME=VALUE"),
        (["sample_worker:worker", *SERVER_URL, *SECRET, "--capability", "gpu"], "NAME=TEXT or NAME:=JSON"),
        (["sample_worker:worker", *SERVER_URL, *SECRET, "--capability", "=H100"], "NAME=TEXT or NAME:=JSON"),
        (["sample_worker:worker", *SERVER_URL, *SECRET, "--capability", "vram_gb:=much"], "'much' is not JSON"),
        (["sample_worker:worker", *SERVER_URL, *SECRET, "--capability", "gpu=\udcff"], "must be JSON"),
        (["sample_worker:worker", *SERVER_URL, *SECRET, "--protect-command", ""], "is empty"),
        (["nowhere:worker", *SERVER_URL, *SECRET], "cannot be imported"),
        (["sample_worker:shout", *SERVER_URL, *SECRET], "sample_worker has no shout. Pass a worker that exists"),
        (["sample_worker:Worker", *SERVER_URL, *SECRET], "is of type type. It must be a callsheet.worker.Worker."),
        (["idle:worker", *SERVER_URL, *SECRET], "idle:worker has no handlers. Add one with @worker.task(KIND)"),
        ([":worker", *SERVER_URL, *SECRET], "The module is missing. Write package.module:worker."),
        (
            ["broken:worker", *SERVER_URL, *SECRET],
            "broken cannot be imported: SyntaxError: invalid syntax (broken.py, line 1)",
        ),
        (["raising:worker", *SERVER_URL, *SECRET], "raising cannot be imported: raising.py:2: KeyError: 'x'."),
        (["leaving:worker", *SERVER_URL, *SECRET], "leaving cannot be imported: leaving.py:1: SystemExit: 7."),
        (
            ["missing:worker", *SERVER_URL, *SECRET],
            "missing cannot be imported: missing.py:1: No module named 'nowhere'.",
        ),
        (["stopping:worker", *SERVER_URL, *SECRET], "stopping.py:1: ValueError: Enough."),
    ],
)
def test_a_usage_error_exits_with_2_and_a_remedy(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_worker(*words, folder=tmp_path, monkeypatch=monkeypatch)
    assert done.code == 2
    assert message in " ".join(done.err.replace("│", " ").split())
    assert ".." not in done.err


def test_a_worker_that_cannot_start_reports_the_reason_in_one_sentence(
    live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ["sample_worker:worker", "--url", live_server.url]
    wrong = run_worker(*server, *SECRET, folder=tmp_path, monkeypatch=monkeypatch)
    assert (wrong.code, wrong.err) == (
        1, "callsheet: The server rejected the fleet secret: it is wrong or was revoked. Pass an active one.\n",
    )  # fmt: skip
    unreadable = run_worker(*server, "--fleet-secret-file", "nowhere", folder=tmp_path, monkeypatch=monkeypatch)
    assert (unreadable.code, unreadable.err) == (1, "callsheet: Cannot read the fleet secret from nowhere.\n")
    assert unreadable.out == "", "it is printed once"
    (tmp_path / "cache").rename(tmp_path / "old")
    (tmp_path / "cache").touch()
    cache_is_file = run_worker(*server, *SECRET, folder=tmp_path, monkeypatch=monkeypatch)
    assert cache_is_file.code == 2
    assert "is a file. Pass a folder." in cache_is_file.err
    cache_below_file = run_worker(*server, *SECRET, folder=tmp_path, monkeypatch=monkeypatch, cache="cache/below")
    assert cache_below_file.code == 1
    assert "Choose another with --cache-dir" in cache_below_file.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--api", "v2"],
            "Comfy Cloud requires an API key. Pass --comfy-api-key-file, or set COMFY_API_KEY.",
        ),
        (
            ["--api", "cloud"],
            "Comfy Cloud requires an API key. Pass --comfy-api-key-file, or set COMFY_API_KEY.",
        ),
        (["--comfyui-url", "localhost:8188"], "is not the URL of a ComfyUI server. Example: http://127.0.0.1:8188."),
    ],
)
def test_a_comfyui_worker_without_a_usable_server_is_a_usage_error(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMFY_API_KEY", raising=False)
    done = run_worker(*words, *SERVER_URL, *SECRET, folder=tmp_path, monkeypatch=monkeypatch, command=["comfyui"])
    assert done.code == 2
    assert " ".join(done.err.split()).endswith(message)


@pytest.mark.parametrize(
    "command", [["worker", "sample_worker:worker"], ["comfyui", "--comfyui-url", "http://127.0.0.1:9"]]
)
def test_a_worker_registers_with_its_capabilities(
    command: list[str], live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator revokes the worker, which ends the command."""
    name, operator = f"capable-{command[0]}", live_server.client("operator")
    capabilities = ["--capability", "gpu=H100", "--capability", "vram_gb:=80", "--capability", "fast:=true"]
    (tmp_path / "fleet-secret").write_text(live_server.keys["worker"])
    revoked: list[Any] = []

    def revoke() -> None:
        wait_until(lambda: operator.get(f"/v1/admin/workers/{name}").is_success)
        revoked.append(operator.post(f"/v1/admin/workers/{name}/revoke").raise_for_status().json())

    revoking = threading.Thread(target=revoke)
    revoking.start()
    server = ["--url", live_server.url, "--fleet-secret-file", "fleet-secret", "--name", name]
    done = run_worker(*server, *capabilities, folder=tmp_path, monkeypatch=monkeypatch, command=command)
    revoking.join()
    assert (done.code, "was revoked" in done.err) == (1, True)
    assert revoked[0]["capabilities"] == {"gpu": "H100", "vram_gb": 80, "fast": True}


def test_capabilities_that_the_server_rejects_are_reported(
    live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fleet-secret").write_text(live_server.keys["worker"])
    server = ["sample_worker:worker", "--url", live_server.url, "--fleet-secret-file", "fleet-secret"]
    done = run_worker(*server, "--capability", "gpu=" + "x" * 20_000, folder=tmp_path, monkeypatch=monkeypatch)
    assert done.code == 1
    assert "rejected this worker" in done.err
    assert "16384 bytes" in done.err


def test_the_url_and_secret_default_to_those_of_a_server_on_this_machine(
    live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server rejects the capabilities, so it has accepted the secret."""
    (tmp_path / "callsheet-data").mkdir()
    (tmp_path / "callsheet-data" / "server.json").write_text(json.dumps({"url": live_server.url}))
    (tmp_path / "callsheet-data" / "fleet.key").write_text(live_server.keys["worker"])
    words = ["sample_worker:worker", "--capability", "gpu=" + "x" * 20_000]
    with lock_directory(tmp_path / "callsheet-data"):
        done = run_worker(*words, folder=tmp_path, monkeypatch=monkeypatch)
        assert (done.code, "16384 bytes" in done.err) == (1, True)
        monkeypatch.setenv("CALLSHEET_URL", f"{live_server.url}/")
        exported = run_worker(*words, folder=tmp_path, monkeypatch=monkeypatch)
        assert (exported.code, "16384 bytes" in exported.err) == (1, True)
        monkeypatch.delenv("CALLSHEET_URL")
        (tmp_path / "callsheet-data").rename(tmp_path / "elsewhere")
        assert (
            "16384 bytes" in run_worker(*words, "--data-dir", "elsewhere", folder=tmp_path, monkeypatch=monkeypatch).err
        )
    killed = run_worker(*words, "--data-dir", "elsewhere", folder=tmp_path, monkeypatch=monkeypatch)
    assert (killed.code, "No server found in" in killed.err) == (2, True), "the secret is sent to no other program"
    other = run_worker(*words, "--data-dir", "elsewhere", *SERVER_URL, folder=tmp_path, monkeypatch=monkeypatch)
    assert (other.code, "No fleet secret" in other.err) == (2, True)


def run_worker(
    *words: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Sequence[str] = ("worker",),
    cache: str = "cache",
) -> CliResult:  # fmt: skip
    """Run a worker command in a folder with valid and invalid modules."""
    texts = {
        "sample_worker": MODULE, "broken": "def (", "raising": "\n{}['x']", "leaving": "raise SystemExit(7)",
        "missing": "import nowhere", "stopping": "raise ValueError('Enough.')",
        "idle": "from callsheet.worker import Worker\nworker = Worker('idle')",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "secret").write_text("cs_secret")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return invoke_cli(*command, *words, "--cache-dir", folder / cache)
