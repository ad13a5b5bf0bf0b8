"""`callsheet demo`: interruptions, output, proxies, and the banner of `callsheet up`."""

import io
import json
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from callsheet.client import CallsheetError
from callsheet.demo.runner import show
from tests.client.stub_server import ScriptedResponse, StubServer
from tests.support.processes.cli_process import CALLSHEET, CommandProcess, ServerProcess, run
from tests.support.wait import wait_until

WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("demo") / "data") as started:
        yield started


def test_an_interrupted_demo_cancels_its_jobs_and_leaves_no_reserved_credits(up: ServerProcess) -> None:
    with up.client() as client, CommandProcess("demo", "--data-dir", up.data, log=up.data / "demo.log") as demo:
        wait_until(lambda: len(list(client.jobs.list(user="demo"))) == 4, WAIT_SECONDS)
        assert demo.stop(signal.SIGINT) == 130
        jobs = list(client.jobs.list(user="demo"))
        assert (len(jobs), {job.status for job in jobs} <= {"canceled", "completed"}) == (4, True)
        assert {job.workflow: job.status for job in jobs}["short-video"] == "canceled"
        assert client.wallets.get("demo").reserved == 0


def test_an_interrupted_demo_with_its_own_server_exits_with_130(tmp_path: Path) -> None:
    with CommandProcess("demo", "--data-dir", tmp_path / "data", log=tmp_path / "log") as demo:
        assert "these four jobs cost" in demo.line()
        assert demo.stop(signal.SIGINT) == 130
    assert not (tmp_path / "data" / "server.json").exists()


def test_without_a_terminal_each_job_is_reported_once(up: ServerProcess, tmp_path: Path) -> None:
    output = io.StringIO()
    assert show(up.url, up.key, tmp_path, Console(file=output, width=200)).completed
    lines = output.getvalue().splitlines()
    for line in ("sketch: completed", "tone: completed", "clip: completed", "short-video: completed"):
        assert lines.count(line) == 1, lines


def test_pictures_appear_and_the_api_key_is_not_sent_to_a_proxy(
    up: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system="truecolor", width=120)
    with StubServer() as proxy:
        proxy.responses = [ScriptedResponse(502, "<html>")]
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert show(up.url, up.key, tmp_path, console).completed
        assert proxy.requests == []
    assert "▀" in screen.getvalue()


def test_a_server_without_demo_workflows_is_reported_with_a_remedy(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--no-demo-workflows") as plain:
        done = run("demo", "--data-dir", plain.data)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "no demo workflows. Start it with `callsheet up`, without --no-demo-workflows." in done.stderr


def test_with_the_json_option_the_result_is_one_document(up: ServerProcess) -> None:
    done = run("demo", "--json", "--data-dir", up.data)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["completed"], {job["status"] for job in result["jobs"]}) == (True, {"completed"})
    assert all(Path(file).stat().st_size for file in result["files"])
    assert len(result["files"]) == 4


def test_a_server_starts_with_the_workflows_of_a_folder_and_a_settings_file(tmp_path: Path) -> None:
    definitions = tmp_path / "workflows"
    definitions.mkdir()
    (definitions / "poster.toml").write_text('price = 4\n[[stages]]\nname = "draw"\nkind = "gpu"\n')
    (tmp_path / "callsheet.toml").write_text(
        '[limits]\nlabels_max = 1\n[http]\ncors_origins = ["https://app.example"]\n'
    )
    words = ["--no-demo-workflows", "--workflows", definitions, "--config", tmp_path / "callsheet.toml"]
    for _ in range(2):  # a second start changes nothing
        with ServerProcess(tmp_path / "data", *words) as server, server.client() as client:
            assert [(one.name, one.version, one.price) for one in client.workflows.list()] == [("poster", 1, 4)]
            with pytest.raises(CallsheetError, match="labels"):
                client.jobs.submit("poster", user="ann", labels={"a": "1", "b": "2"})
            seen = httpx.get(f"{server.url}/healthz", headers={"origin": "https://app.example"})
            assert seen.headers["access-control-allow-origin"] == "https://app.example"
            assert server.stop() == 0
    (definitions / "poster.toml").write_text("price = -1\n")
    done = run("up", "--data-dir", tmp_path / "data", *words)
    assert (done.returncode, "poster.toml:1: " in done.stderr) == (1, True)


def test_the_banner_reports_that_no_worker_runs(tmp_path: Path) -> None:
    words = ["up", "--no-demo-workflows", "--concurrency", 3, "--data-dir", "here", "--port", 0]
    with CommandProcess(*words, log=tmp_path / "log", cwd=tmp_path) as started:
        printed = read_until(started, "/v1/jobs")
        assert "No worker runs in this process" in printed
        assert "callsheet demo" not in printed
        assert started.stop() == 0


def test_the_banner_links_to_the_api_reference_and_fits_a_terminal(tmp_path: Path) -> None:
    with CommandProcess(
        "up", "--data-dir", "callsheet-data", "--port", 0, log=tmp_path / "log", cwd=tmp_path
    ) as started:
        printed = read_until(started, "/v1/jobs")
        page = re.search(r"http://[\d.:]+/docs", printed)
        assert page is not None
        assert httpx.get(page[0]).status_code == 200
        assert f"  {CALLSHEET} demo\n" in printed
        assert max(map(len, printed.splitlines())) < 80
        assert started.stop() == 0


def test_the_next_steps_are_printed_after_the_demo(tmp_path: Path) -> None:
    words = ["up", "--demo", "--data-dir", "callsheet-data", "--port", 0]
    with CommandProcess(*words, log=tmp_path / "log", cwd=tmp_path) as started:
        before, _, after = read_until(started, "keeps running").partition("The wallet has 67 credits left.\n")
        assert "Try next" not in before
        assert re.search(r"open http://[\d.:]+/docs\n", after)
        [line] = re.findall(rf"^  {CALLSHEET} (submit .+)$", after, re.MULTILINE)
        done = run(*shlex.split(line), cwd=tmp_path)
        assert (done.returncode, done.stdout.splitlines()[-1].endswith(" is completed.")) == (0, True)
        assert started.stop() == 0


def read_until(started: CommandProcess, text: str) -> str:
    """Read what a command prints, up to a line with this text."""
    lines = [started.line()]
    while text not in lines[-1]:
        assert lines[-1], lines
        lines.append(started.line())
    return "".join(lines)
