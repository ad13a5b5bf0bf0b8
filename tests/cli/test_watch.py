"""Following a job: which part of it a line is about, what a person must do, and who leaves while it goes on."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from callsheet.cli.watch import follow
from callsheet.client import Client
from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.cli.conftest import Run
from tests.cli.test_jobs import read_terminal, submit_job
from tests.client.stub_server import JOB, frames
from tests.support.processes.cli_process import CommandProcess
from tests.support.processes.live_server import LiveServer

CALLSHEET = Path(sys.executable).with_name("callsheet")
FILM = WorkflowDefinition(
    name="film",
    stages=[StageSpec(name="board", kind="board", tasks=2), StageSpec(name="render", kind="render", approval=True)],
)


@pytest.fixture
def job_awaiting_approval(live_server: LiveServer, run: Run) -> Iterator[str]:
    """A job whose second stage waits for a person; a worker wrote some lines about the first."""
    live_server.engine.execute(commands.PutWorkflow(definition=FILM))
    job = str(run("submit", "film", "--user", "ann", "--json").json["id"])
    for leased in live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("board",), count=2)):
        live_server.engine.execute(commands.Heartbeat(lease=leased.lease, log=("line one", "line two")))
        live_server.engine.execute(commands.Complete(lease=leased.lease))
    yield job
    run("jobs", "cancel", job, "--grace", "0")


def test_a_job_that_waits_for_a_person_says_so_and_what_to_type(run: Run, job_awaiting_approval: str) -> None:
    shown = run("jobs", "show", job_awaiting_approval).out
    assert shown.startswith(f"{job_awaiting_approval} waits for approval.\n")
    (line,) = [line for line in shown.splitlines() if line.startswith("render")]
    assert line.rstrip().endswith("waits for approval")
    assert f"Stage 2 (render) waits for approval: callsheet approve {job_awaiting_approval} 2\n" in shown
    run("approve", job_awaiting_approval, "2", "--approver", "eve")
    assert "waits for approval" not in run("jobs", "show", job_awaiting_approval).out


def test_a_line_says_which_stage_or_task_it_is_about_and_what_a_worker_logged(
    live_server: LiveServer, run: Run, job_awaiting_approval: str
) -> None:
    house = ["--url", live_server.url, "--api-key", live_server.keys["admin"]]
    with CommandProcess("watch", job_awaiting_approval, *house, log=Path(os.devnull)) as watched:
        said = [watched.line()]
        while "stage.waiting" not in said[-1]:
            assert said[-1]
            said.append(watched.line())
        run("jobs", "cancel", job_awaiting_approval, "--grace", "0")
        rest = watched.process.communicate()[0]
    facts = [line.rstrip("\n").split("  ", 1)[1] for line in said]
    for no in (1, 2):
        assert f"task.leased  board {no}" in facts
        assert {f"task.logged  board {no}  line one", f"task.logged  board {no}  line two"} <= set(facts)
        assert f"task.completed  board {no}" in facts
    assert "stage.completed  board" in facts
    assert (
        facts[-1]
        == f"stage.waiting  render  Stage 2 (render) waits for approval: callsheet approve {job_awaiting_approval} 2"
    )
    assert f"{job_awaiting_approval} is canceled" in rest
    later = run("watch", job_awaiting_approval).out
    assert ("stage.waiting  render" in later, "callsheet approve" in later) == (True, False)


def test_on_a_terminal_a_person_reads_what_to_type_and_what_was_logged(
    live_server: LiveServer, run: Run, job_awaiting_approval: str
) -> None:
    ours, theirs = pty.openpty()
    env = os.environ | {
        "CALLSHEET_URL": live_server.url,
        "CALLSHEET_API_KEY": live_server.keys["admin"],
        "COLUMNS": "200",
    }
    with subprocess.Popen(
        [CALLSHEET, "watch", job_awaiting_approval], stdout=theirs, stderr=theirs, env=env
    ) as process:
        os.close(theirs)
        said = b""
        while b"callsheet approve" not in said:
            said += os.read(ours, 65_536)
        run("jobs", "cancel", job_awaiting_approval, "--grace", "0")
        text = said.decode() + read_terminal(ours)
    assert process.returncode == 1
    assert f"Stage 2 (render) waits for approval: callsheet approve {job_awaiting_approval} 2" in text
    assert "board 1: line one" in text


@pytest.mark.parametrize(("known", "looks"), [([6], 1), ([2, 6], 2), ([2, 4, 6], 3)])
def test_on_a_terminal_a_job_is_looked_at_only_when_there_is_news_of_it(
    monkeypatch: pytest.MonkeyPatch, known: list[int], looks: int
) -> None:
    """A look shows what all events up to it did: those that are past, and those that came meanwhile, need no other."""
    asked: list[str] = []
    rows = iter([JOB | {"last_event_seq": count, "progress": count * 10} for count in known])
    told = [frames(1, 2, 3, 4, 5) + frames(6, kind="job.completed")]

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if request.url.path.endswith("/events"):
            return httpx.Response(200, text=told.pop()) if told else httpx.Response(204)
        return httpx.Response(200, json=next(rows, JOB | {"status": "completed"}))

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with Client("http://x", transport=httpx.MockTransport(answer)) as client:
        assert follow(client, "j1").completed
    assert asked.count("/v1/jobs/j1") == looks + 1, "and once more, to say how it ended"


def test_a_job_that_is_being_canceled_is_not_said_to_run(live_server: LiveServer, run: Run) -> None:
    job = submit_job(run)
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
    assert run("jobs", "cancel", job, "--grace", "600").out == f"{job} is being canceled.\n"
    assert run("jobs", "show", job).out.startswith(f"{job} is being canceled.\n")
    assert re.search(rf"{job}  sketch +ann +canceling", run("jobs", "--user", "ann").out)
    live_server.engine.execute(commands.Fail(lease=leased.lease, code="canceled", message="Stopped.", retryable=False))


def test_whoever_stops_waiting_learns_that_the_job_goes_on(live_server: LiveServer, run: Run, tmp_path: Path) -> None:
    house, log = ["--url", live_server.url, "--api-key", live_server.keys["admin"]], tmp_path / "err"
    with CommandProcess("submit", "sketch", "--user", "ann", "--input", "{}", "--wait", *house, log=log) as waits:
        queued = re.fullmatch(r"([0-9a-f-]{36}) is queued, for 3 credits\.\n", waits.line())
        assert queued is not None
        assert waits.line()
        assert waits.stop(signal.SIGINT) == 130
    job = queued[1]
    sentence = f"The job keeps running. Follow it with: callsheet watch {job}"
    assert log.read_text() == f"callsheet: {sentence}\n"
    log.unlink()
    with CommandProcess("watch", job, "--json", *house, log=log) as watches:
        assert json.loads(watches.line())["type"] == "job.created"
        assert watches.stop(signal.SIGINT) == 130
    assert json.loads(log.read_text()) == {"code": "interrupted", "message": sentence, "request_id": None}
    assert run("jobs", "cancel", job, "--grace", "0").out == f"{job} is canceled.\n"
