"""`callsheet watch` and `submit --wait`: lines, a progress bar, hints to approve, and what Ctrl-C prints."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from callsheet.cli.watch import follow
from callsheet.client import Client
from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.cli.conftest import Run, connection_options
from tests.cli.sketch_jobs import submit_job, work_in_thread
from tests.cli.terminal import read_terminal, start_on_terminal
from tests.client.stub_server import JOB, frames
from tests.support.processes.cli_process import CommandProcess
from tests.support.processes.live_server import LiveServer

FILM = WorkflowDefinition(
    name="film",
    stages=[StageSpec(name="board", kind="board", tasks=2), StageSpec(name="render", kind="render", approval=True)],
)


@pytest.fixture
def job_awaiting_approval(live_server: LiveServer, run: Run) -> Iterator[str]:
    """A job whose second stage waits for approval. The tasks of its first stage logged two lines each."""
    live_server.engine.execute(commands.PutWorkflow(definition=FILM))
    job = str(run("submit", "film", "--user", "ann", "--json").json["id"])
    for leased in live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("board",), count=2)):
        live_server.engine.execute(commands.Heartbeat(lease=leased.lease, log=("line one", "line two")))
        live_server.engine.execute(commands.Complete(lease=leased.lease))
    yield job
    run("jobs", "cancel", job, "--grace", "0")


def test_watch_with_json_prints_one_event_per_line(live_server: LiveServer, run: Run) -> None:
    job = submit_job(run)
    live_server.work()
    done = run("watch", job, "--json")
    events = [json.loads(line) for line in done.out.splitlines()]
    assert (done.code, [event["seq"] for event in events]) == (0, list(range(1, len(events) + 1)))
    assert (events[0]["type"], events[-1]["type"]) == ("job.created", "job.completed")
    assert "job.completed" in run("watch", job).out


def test_a_terminal_shows_a_progress_bar_up_to_100_percent(live_server: LiveServer, run: Run) -> None:
    job = submit_job(run)
    with start_on_terminal(live_server, "watch", job) as (process, terminal):
        work_in_thread(live_server).join()
        printed = read_terminal(terminal)
    assert process.returncode == 0, printed
    assert "sketch completed" in printed
    assert "100 %" in printed
    assert f"{job} is completed." in printed


def test_a_job_that_waits_for_approval_is_printed_with_the_command_that_approves_it(
    run: Run, job_awaiting_approval: str
) -> None:
    printed = run("jobs", "show", job_awaiting_approval).out
    assert printed.startswith(f"{job_awaiting_approval} waits for approval.\n")
    (line,) = [line for line in printed.splitlines() if line.startswith("render")]
    assert line.rstrip().endswith("waits for approval")
    assert f"Stage 2 (render) waits for approval: callsheet approve {job_awaiting_approval} 2\n" in printed
    run("approve", job_awaiting_approval, "2", "--approver", "eve")
    assert "waits for approval" not in run("jobs", "show", job_awaiting_approval).out


def test_each_line_names_its_stage_or_task_and_includes_log_lines(
    live_server: LiveServer, run: Run, job_awaiting_approval: str
) -> None:
    options = connection_options(live_server)
    with CommandProcess("watch", job_awaiting_approval, *options, log=Path(os.devnull)) as watched:
        lines = [watched.line()]
        while "stage.waiting" not in lines[-1]:
            assert lines[-1]
            lines.append(watched.line())
        run("jobs", "cancel", job_awaiting_approval, "--grace", "0")
        rest = watched.process.communicate()[0]
    events = [line.rstrip("\n").split("  ", 1)[1] for line in lines]
    for no in (1, 2):
        assert f"task.leased  board {no}" in events
        assert {f"task.logged  board {no}  line one", f"task.logged  board {no}  line two"} <= set(events)
        assert f"task.completed  board {no}" in events
    assert "stage.completed  board" in events
    assert (
        events[-1]
        == f"stage.waiting  render  Stage 2 (render) waits for approval: callsheet approve {job_awaiting_approval} 2"
    )
    assert f"{job_awaiting_approval} is canceled" in rest
    later = run("watch", job_awaiting_approval).out
    assert ("stage.waiting  render" in later, "callsheet approve" in later) == (True, False)


def test_a_terminal_shows_the_command_to_approve_and_the_log_lines(
    live_server: LiveServer, run: Run, job_awaiting_approval: str
) -> None:
    with start_on_terminal(live_server, "watch", job_awaiting_approval) as (process, terminal):
        printed = b""
        while b"callsheet approve" not in printed:
            printed += os.read(terminal, 65_536)
        run("jobs", "cancel", job_awaiting_approval, "--grace", "0")
        text = printed.decode() + read_terminal(terminal)
    assert process.returncode == 1
    assert f"Stage 2 (render) waits for approval: callsheet approve {job_awaiting_approval} 2" in text
    assert "board 1: line one" in text


@pytest.mark.parametrize(("event_counts", "reads"), [([6], 1), ([2, 6], 2), ([2, 4, 6], 3)])
def test_a_terminal_reads_the_job_again_only_after_newer_events(
    monkeypatch: pytest.MonkeyPatch, event_counts: list[int], reads: int
) -> None:
    """A job that was read reflects all events up to `last_event_seq`, so these need no other request."""
    paths: list[str] = []
    rows = iter([JOB | {"last_event_seq": count, "progress": count * 10} for count in event_counts])
    streams = [frames(1, 2, 3, 4, 5) + frames(6, kind="job.completed")]

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        if request.url.path.endswith("/events"):
            return httpx.Response(200, text=streams.pop()) if streams else httpx.Response(204)
        return httpx.Response(200, json=next(rows, JOB | {"status": "completed"}))

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with Client("http://x", transport=httpx.MockTransport(answer)) as client:
        assert follow(client, "j1").completed
    assert paths.count("/v1/jobs/j1") == reads + 1, "and once more after the end"


def test_a_job_that_is_being_canceled_is_reported_as_such(live_server: LiveServer, run: Run) -> None:
    job = submit_job(run)
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
    assert run("jobs", "cancel", job, "--grace", "600").out == f"{job} is being canceled.\n"
    assert run("jobs", "show", job).out.startswith(f"{job} is being canceled.\n")
    assert re.search(rf"{job}  sketch +ann +canceling", run("jobs", "--user", "ann").out)
    live_server.engine.execute(commands.Fail(lease=leased.lease, code="canceled", message="Stopped.", retryable=False))


def test_ctrl_c_stops_watching_and_prints_that_the_job_keeps_running(
    live_server: LiveServer, run: Run, tmp_path: Path
) -> None:
    options, log = connection_options(live_server), tmp_path / "err"
    with CommandProcess("submit", "sketch", "--user", "ann", "--input", "{}", "--wait", *options, log=log) as waiting:
        queued = re.fullmatch(r"([0-9a-f-]{36}) is queued, for 3 credits\.\n", waiting.line())
        assert queued is not None
        assert waiting.line()
        assert waiting.stop(signal.SIGINT) == 130
    job = queued[1]
    sentence = f"The job keeps running. Follow it with: callsheet watch {job}"
    assert log.read_text() == f"callsheet: {sentence}\n"
    log.unlink()
    with CommandProcess("watch", job, "--json", *options, log=log) as watching:
        assert json.loads(watching.line())["type"] == "job.created"
        assert watching.stop(signal.SIGINT) == 130
    assert json.loads(log.read_text()) == {"code": "interrupted", "message": sentence, "request_id": None}
    assert run("jobs", "cancel", job, "--grace", "0").out == f"{job} is canceled.\n"
