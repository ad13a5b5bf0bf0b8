"""The commands and examples of the guides work as printed, in their order."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from callsheet import CallsheetError
from tests.e2e.doc_examples import blocks, run_in_shell
from tests.support.processes.cli_process import ServerProcess
from tests.support.tidiness.tidy import ROOT

GUIDES = ROOT / "docs" / "guides"


def test_the_commands_of_the_first_workflow_guide_work(tmp_path: Path) -> None:
    page = GUIDES / "first-workflow.md"
    files = [text.partition("\n") for text in blocks(page, "toml")]
    (tmp_path / "workflows").mkdir()
    for first_line, _, text in files:
        (tmp_path / first_line.removeprefix("# ")).write_text(text)
    with ServerProcess(tmp_path / "callsheet-data"):
        printed = run_in_shell(tmp_path, "\n".join(blocks(page, "sh")))
    applied = re.findall(r"^(\S+) is version 1, for \d+ credits\.$", printed, re.MULTILINE)
    assert applied == ["careful", "portrait", "portrait-fast", "storyboard"]
    assert printed.endswith("is completed.\n")


def test_the_example_about_credits_prints_what_its_comments_say(tmp_path: Path) -> None:
    [example] = blocks(GUIDES / "credits.md", "python")
    (tmp_path / "credits.py").write_text(example)
    with ServerProcess(tmp_path / "callsheet-data") as server:
        keys = f"export CALLSHEET_URL={server.url} CALLSHEET_API_KEY={server.key}"
        printed = run_in_shell(tmp_path, f"{keys}\npython credits.py")
    assert printed.splitlines() == re.findall(r"print\(.+\)  # (.+)", example)


def test_the_commands_of_the_installation_guide_work(tmp_path: Path) -> None:
    _, check = blocks(GUIDES / "install.md", "sh")
    with ServerProcess(tmp_path / "callsheet-data"):
        assert run_in_shell(tmp_path, check).endswith("is completed.\n")


def test_the_job_of_the_approvals_guide_waits_and_is_approved(tmp_path: Path) -> None:
    page = GUIDES / "approvals.md"
    [review] = blocks(page, "python")
    submit, listing = blocks(page, "sh")
    (tmp_path / "review.py").write_text(review)
    with ServerProcess(tmp_path / "callsheet-data") as server, server.client() as client:
        run_in_shell(tmp_path, submit.replace(" --wait", ""))
        [job] = client.jobs.list()
        for event in client.jobs.events(job.id):
            if event.type == "stage.waiting":
                break
        assert job.id in run_in_shell(tmp_path, listing)
        keys = f"export CALLSHEET_URL={server.url} CALLSHEET_API_KEY={server.key}"
        printed = run_in_shell(tmp_path, f"{keys}\npython review.py")
        assert f"{job.id} render scene-3.png" in printed
        assert client.jobs.wait(job.id, timeout=60).status == "completed"


def test_the_gate_and_the_api_of_the_plugins_guide_work(tmp_path: Path) -> None:
    gate, _, api = blocks(GUIDES / "plugins.md", "python")
    (tmp_path / "studio").mkdir()
    for text in (gate, api):
        (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
    gates, *_, apis = blocks(GUIDES / "plugins.md", "toml")
    (tmp_path / "callsheet.toml").write_text(gates + apis.replace("[plugins]", ""))
    options = ("--config", tmp_path / "callsheet.toml")
    with (
        ServerProcess(tmp_path / "data", *options, env={"PYTHONPATH": str(tmp_path)}) as server,
        server.client() as client,
    ):
        with pytest.raises(CallsheetError) as refused:
            client.jobs.submit("sketch", user="demo", input={"prompt": "a forbidden place"})
        forecast = httpx.get(f"{server.url}/weather/forecast", headers={"X-Weather-Key": server.key})
    assert (refused.value.status, refused.value.code) == (403, "prompt_refused")
    assert forecast.json() == {"forecast": "sun", "tenant": "default"}


def test_the_example_of_the_embedding_guide_runs(tmp_path: Path) -> None:
    example, *_ = blocks(GUIDES / "embed.md", "python")
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("completed 15\n", "")
