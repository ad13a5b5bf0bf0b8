"""`callsheet worker` called wrongly, and what it says of its machine."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from callsheet.cli.in_process_server import lock_directory
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
        (["yard_of_cli:worker", *SECRET], "No server found in callsheet-data."),
        (["yard_of_cli:worker", *SERVER_URL], "No fleet secret."),
        (["yard_of_cli:worker", "--url", "server", *SECRET], "http:// or https://"),
        (["yard_of_cli:worker", *SERVER_URL, *SECRET, "--interruption-source", "gcp"], "Choose aws"),
        (["yard_of_cli:worker", *SERVER_URL, *SECRET, "--kinds", "shout,whisper"], "no handler for 'whisper'"),
        (["yard_of_cli:worker", *SERVER_URL, *SECRET, "--name", "a/b"], "letters, digits"),
        (["yard_of_cli:worker", *SERVER_URL, *SECRET, "--label", "zone"], "NAME=VALUE"),
        (["yard_of_cli:worker", *SERVER_URL, *SECRET, "--capability", "gpu"], "NAME=TEXT or NAME:=JSON"),
        (["yard_of_cli:worker", *SERVER_URL, *SECRET, "--capability", "=H100"], "NAME=TEXT or NAME:=JSON"),
        (["yard_of_cli:worker", *SERVER_URL, *SECRET, "--capability", "vram_gb:=much"], "'much' is not JSON"),
        (["yard_of_cli:worker", *SERVER_URL, *SECRET, "--capability", "gpu=\udcff"], "must be JSON"),
        (["yard_of_cli:worker", *SERVER_URL, *SECRET, "--protect-command", ""], "is empty"),
        (["nowhere:worker", *SERVER_URL, *SECRET], "cannot be imported"),
        (["yard_of_cli:shout", *SERVER_URL, *SECRET], "yard_of_cli has no shout. Name a worker that exists"),
        (["yard_of_cli:Worker", *SERVER_URL, *SECRET], "is of type type. It must be a callsheet.worker.Worker."),
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
def test_a_wrong_call_exits_with_2_and_says_what_to_do(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_work(*words, folder=tmp_path, monkeypatch=monkeypatch)
    assert done.code == 2
    assert message in " ".join(done.err.replace("│", " ").split())
    assert ".." not in done.err


def test_a_worker_that_cannot_work_says_why_in_a_sentence(
    live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ["yard_of_cli:worker", "--url", live_server.url]
    wrong = run_work(*server, *SECRET, folder=tmp_path, monkeypatch=monkeypatch)
    assert (wrong.code, wrong.err) == (
        1, "callsheet: The server rejected the fleet secret: it is wrong or was revoked.\n",
    )  # fmt: skip
    nowhere = run_work(*server, "--fleet-secret-file", "nowhere", folder=tmp_path, monkeypatch=monkeypatch)
    assert (nowhere.code, nowhere.err) == (1, "callsheet: Cannot read the fleet secret from nowhere.\n")
    assert nowhere.out == "", "it is said once"
    (tmp_path / "cache").rename(tmp_path / "old")
    (tmp_path / "cache").touch()
    taken = run_work(*server, *SECRET, folder=tmp_path, monkeypatch=monkeypatch)
    assert taken.code == 2
    assert "is a file. Name a folder." in taken.err
    within = run_work(*server, *SECRET, folder=tmp_path, monkeypatch=monkeypatch, cache="cache/below")
    assert within.code == 1
    assert "Choose another with --cache-dir" in within.err


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
def test_a_comfyui_worker_that_could_not_work_does_not_start(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMFY_API_KEY", raising=False)
    done = run_work(*words, *SERVER_URL, *SECRET, folder=tmp_path, monkeypatch=monkeypatch, command=["comfyui"])
    assert done.code == 2
    assert " ".join(done.err.split()).endswith(message)


@pytest.mark.parametrize(
    "command", [["worker", "yard_of_cli:worker"], ["comfyui", "--comfyui-url", "http://127.0.0.1:9"]]
)
def test_a_machine_says_what_it_has_when_it_comes(
    command: list[str], live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's revocation ends it."""
    name, operator = f"has-{command[0]}", live_server.client("operator")
    given = ["--capability", "gpu=H100", "--capability", "vram_gb:=80", "--capability", "fast:=true"]
    (tmp_path / "right").write_text(live_server.keys["worker"])
    came: list[Any] = []

    def revoke() -> None:
        wait_until(lambda: operator.get(f"/v1/admin/workers/{name}").is_success)
        came.append(operator.post(f"/v1/admin/workers/{name}/revoke").raise_for_status().json())

    revoking = threading.Thread(target=revoke)
    revoking.start()
    server = ["--url", live_server.url, "--fleet-secret-file", "right", "--name", name]
    done = run_work(*server, *given, folder=tmp_path, monkeypatch=monkeypatch, command=command)
    revoking.join()
    assert (done.code, "was revoked" in done.err) == (1, True)
    assert came[0]["capabilities"] == {"gpu": "H100", "vram_gb": 80, "fast": True}


def test_capabilities_that_the_server_does_not_accept_are_reported(
    live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "right").write_text(live_server.keys["worker"])
    server = ["yard_of_cli:worker", "--url", live_server.url, "--fleet-secret-file", "right"]
    done = run_work(*server, "--capability", "gpu=" + "x" * 20_000, folder=tmp_path, monkeypatch=monkeypatch)
    assert done.code == 1
    assert "rejected this worker" in done.err
    assert "16384 bytes" in done.err


def test_the_url_and_secret_default_to_those_of_a_server_on_this_machine(
    live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The house is heard to refuse what this machine says of itself, so it has taken the secret."""
    (tmp_path / "callsheet-data").mkdir()
    (tmp_path / "callsheet-data" / "server.json").write_text(json.dumps({"url": live_server.url}))
    (tmp_path / "callsheet-data" / "fleet.key").write_text(live_server.keys["worker"])
    words = ["yard_of_cli:worker", "--capability", "gpu=" + "x" * 20_000]
    with lock_directory(tmp_path / "callsheet-data"):
        done = run_work(*words, folder=tmp_path, monkeypatch=monkeypatch)
        assert (done.code, "16384 bytes" in done.err) == (1, True)
        (tmp_path / "callsheet-data").rename(tmp_path / "elsewhere")
        assert (
            "16384 bytes" in run_work(*words, "--data-dir", "elsewhere", folder=tmp_path, monkeypatch=monkeypatch).err
        )
    killed = run_work(*words, "--data-dir", "elsewhere", folder=tmp_path, monkeypatch=monkeypatch)
    assert (killed.code, "No server found in" in killed.err) == (2, True), "its secret is for no other program"
    other = run_work(*words, "--data-dir", "elsewhere", *SERVER_URL, folder=tmp_path, monkeypatch=monkeypatch)
    assert (other.code, "No fleet secret." in other.err) == (2, True)


def run_work(
    *words: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Sequence[str] = ("worker",),
    cache: str = "cache",
) -> CliResult:  # fmt: skip
    """Call it in a folder with modules of all sorts."""
    texts = {
        "yard_of_cli": MODULE, "broken": "def (", "raising": "\n{}['x']", "leaving": "raise SystemExit(7)",
        "missing": "import nowhere", "stopping": "raise ValueError('Enough.')",
        "idle": "from callsheet.worker import Worker\nworker = Worker('idle')",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "secret").write_text("cs_secret")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return invoke_cli(*command, *words, "--cache-dir", folder / cache)
