"""Jobs from the shell: tables for people, JSON for programs, exit codes for scripts."""

import contextlib
import hashlib
import json
import os
import pty
import re
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path

import pytest

from callsheet.blobs import object_keys
from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.cli.conftest import Run, invoke_cli
from tests.client.stub_server import JOB, ScriptedResponse, StubServer
from tests.support.processes.live_server import LiveServer

CALLSHEET = Path(sys.executable).with_name("callsheet")
JOB_ID = re.compile(r"[0-9a-f-]{36}")


def submit_job(run: Run, *more: str) -> str:
    done = run("submit", "sketch", "--user", "ann", "--input", "prompt=dunes", "--json", *more)
    assert done.code == 0, done.err
    return str(done.json["id"])


def work_in_thread(live_server: LiveServer, *, fail: bool = False) -> threading.Thread:
    """Do the next sketch, as soon as there is one."""

    def work() -> None:
        (leased,) = live_server.engine.claim(commands.Claim(worker_id="w1", kinds=("draw",)), wait_seconds=10)
        live_server.engine.execute(commands.Heartbeat(lease=leased.lease, progress=40, message="inking"))
        if fail:
            live_server.engine.execute(
                commands.Fail(lease=leased.lease, code="no_ink", message="No ink.", retryable=False)
            )
        else:
            live_server.engine.execute(commands.Complete(lease=leased.lease))

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_job_is_submitted_and_said_in_a_sentence(live_server: LiveServer, run: Run) -> None:
    done = run("submit", "sketch", "--user", "ann", "--input", '{"prompt": "dunes"}', "--label", "a=b", role="client")
    assert done.code == 0
    assert re.fullmatch(r"[0-9a-f-]{36} is queued, for 3 credits\.\n", done.out)
    live_server.work()


def test_the_same_idempotency_key_makes_one_job_and_that_is_said(live_server: LiveServer, run: Run) -> None:
    job = submit_job(run, "--idempotency-key", "once")
    assert submit_job(run, "--idempotency-key", "once") == job
    live_server.work()
    words = ["--user", "ann", "--input", "prompt=dunes", "--idempotency-key", "once"]
    assert run("submit", "sketch", *words).out == f"{job} was submitted before and is completed.\n"
    assert run("submit", "sketch", *words, "--json").json["replay"] is True


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (['{"a": 1}'], {"a": 1}),
        (["prompt=a = b", "seed:=7", "tags:=[1]"], {"prompt": "a = b", "seed": 7, "tags": [1]}),
        (["@FILE"], {"from": "file"}),
        (["@-"], {"from": "stdin"}),
        (["@FILE", "from=here"], {"from": "here"}),
    ],
)
def test_an_input_is_json_a_file_or_fields(
    live_server: LiveServer, run: Run, tmp_path: Path, words: list[str], wanted: object
) -> None:
    file = tmp_path / "input.json"
    file.write_text('{"from": "file"}')
    given = [part for word in words for part in ("--input", word.replace("FILE", str(file)))]
    done = run("submit", "sketch", "--user", "ann", "--json", *given, stdin='{"from": "stdin"}')
    assert done.code == 0, done.err
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
    assert json.loads(leased.input) == wanted
    live_server.engine.execute(commands.Complete(lease=leased.lease))


@pytest.mark.parametrize("words", [["dunes"], ["{"], ["a:=x"], ["@absent.json"], ["[1]", "a=b"], ["{}", "{}"]])
def test_an_input_that_is_none_is_a_wrong_call(run: Run, words: list[str]) -> None:
    given = [part for word in words for part in ("--input", word)]
    done = run("submit", "sketch", "--user", "ann", *given)
    assert (done.code, done.out) == (2, "")
    assert "--input takes JSON" in " ".join(done.err.split()) or "cannot be read" in done.err


def test_waiting_for_a_job_shows_its_progress_and_its_end(live_server: LiveServer, run: Run) -> None:
    thread = work_in_thread(live_server)
    done = run("submit", "sketch", "--user", "ann", "--input", "{}", "--wait")
    thread.join()
    assert done.code == 0
    job = JOB_ID.match(done.out)
    assert job is not None
    assert done.out.startswith(f"{job[0]} is queued, for 3 credits.\n")
    assert "  task.progressed  draw  40 %  inking\n" in done.out
    assert done.out.endswith(f"\n{job[0]} is completed.\n")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_job_that_ends_badly_is_exit_code_1(live_server: LiveServer, run: Run, more: list[str]) -> None:
    thread = work_in_thread(live_server, fail=True)
    done = run("submit", "sketch", "--user", "ann", "--input", "{}", "--wait", *more)
    thread.join()
    assert done.code == 1
    assert (done.json["error"]["code"] if more else "is failed: No ink. (no_ink)" in done.out) == (
        "no_ink" if more else True
    )


def test_watching_gives_one_event_a_line_to_programs(live_server: LiveServer, run: Run) -> None:
    job = submit_job(run)
    live_server.work()
    done = run("watch", job, "--json")
    events = [json.loads(line) for line in done.out.splitlines()]
    assert (done.code, [event["seq"] for event in events]) == (0, list(range(1, len(events) + 1)))
    assert (events[0]["type"], events[-1]["type"]) == ("job.created", "job.completed")
    assert "job.completed" in run("watch", job).out


def test_on_a_terminal_a_bar_runs_to_the_end(live_server: LiveServer, run: Run) -> None:
    job = submit_job(run)
    ours, theirs = pty.openpty()
    env = os.environ | {
        "CALLSHEET_URL": live_server.url,
        "CALLSHEET_API_KEY": live_server.keys["admin"],
        "TERM": "xterm",
    }
    with subprocess.Popen([CALLSHEET, "watch", job], stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        work_in_thread(live_server).join()
        printed = read_terminal(ours)
    assert process.returncode == 0, printed
    assert "sketch completed" in printed
    assert "100 %" in printed
    assert f"{job} is completed." in printed


def read_terminal(terminal: int) -> str:
    """Read a terminal until whoever wrote to it has gone."""
    printed = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(terminal, 65_536):
            printed += chunk
    os.close(terminal)
    return printed.decode()


def test_a_list_of_jobs_is_a_line_each_for_grep_and_fits_a_narrow_terminal(live_server: LiveServer, run: Run) -> None:
    user = "a-user-with-a-name-of-forty-characters-or-so"
    run("wallet", "topup", user, "3")
    job = run("submit", "sketch", "--user", user, "--input", "{}", "--json").json["id"]
    env = os.environ | {
        "CALLSHEET_URL": live_server.url,
        "CALLSHEET_API_KEY": live_server.keys["admin"],
        "COLUMNS": "80",
    }
    piped = subprocess.run([CALLSHEET, "jobs", "--user", user], capture_output=True, text=True, check=True, env=env)
    (line,) = (line for line in piped.stdout.splitlines() if job in line)
    assert line.split()[1:7] == ["sketch", user, "queued", "0", "%", "3"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", line.split()[7])
    ours, theirs = pty.openpty()
    with subprocess.Popen([CALLSHEET, "jobs", "--user", user], stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = re.sub(r"\x1b\[[0-9;]*m", "", read_terminal(ours)).splitlines()
    assert process.returncode == 0
    assert shown[0].split() == ["JOB", "WORKFLOW", "STATUS"]
    assert shown[1].split() == [job, "sketch", "queued"]
    live_server.work()


def test_jobs_are_listed_with_filters_and_a_limit(live_server: LiveServer, run: Run) -> None:
    made = [submit_job(run, "--label", "list=cli") for _ in range(3)]
    found = run("jobs", "--label", "list=cli", "--status", "queued", "--json")
    assert [job["id"] for job in found.json["jobs"]] == made[::-1]
    shown = run("jobs", "--label", "list=cli", "--limit", "2").out
    assert JOB_ID.findall(shown) == made[:0:-1]
    assert shown.splitlines()[0].split() == ["JOB", "WORKFLOW", "USER", "STATUS", "PROGRESS", "PRICE", "SUBMITTED"]
    assert run("jobs", "--user", "nobody").out == "There are no such jobs.\n"
    for _ in made:
        live_server.work()


def test_a_job_is_shown_with_its_tasks_and_its_files_are_fetched(
    live_server: LiveServer, run: Run, tmp_path: Path
) -> None:
    job = submit_job(run)
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
    lease = leased.lease
    key = object_keys.output_key(leased.tenant, lease.job_id, lease.task_id, lease.attempt, 1)
    live_server.callsheet.state.blobs.put(key, b"bytes")
    made = commands.OutputFile(1, "sketch.png", "image/png", 5, hashlib.sha256(b"bytes").hexdigest())
    live_server.engine.execute(commands.Complete(lease=lease, files=(made,)))
    shown = run("jobs", "show", job)
    assert shown.code == 0
    assert f"{job} is completed." in shown.out
    assert "sketch.png" in shown.out
    assert set(run("jobs", "show", job, "--json").json) == {"job", "stages", "tasks", "outputs", "runs"}
    fetched = run("jobs", "download", job, "--output", tmp_path, "--json")
    assert fetched.json == {"paths": [str(tmp_path / "1-1-sketch.png")]}
    assert (tmp_path / "1-1-sketch.png").read_bytes() == b"bytes"
    assert run("jobs", "download", job, "--output", tmp_path / "new" / "folder").code == 0
    assert (tmp_path / "new" / "folder" / "1-1-sketch.png").read_bytes() == b"bytes"
    (tmp_path / "file").touch()
    nowhere = run("jobs", "download", job, "--output", tmp_path / "file")
    assert (nowhere.code, nowhere.err.count("\n")) == (1, 1)


def test_files_of_one_task_with_one_name_are_all_saved(live_server: LiveServer, run: Run, tmp_path: Path) -> None:
    job = submit_job(run)
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
    lease, made = leased.lease, []
    for no, name in enumerate(["a.txt", "a.txt", "a-2.txt", "A.txt", "b"], 1):
        key = object_keys.output_key(leased.tenant, lease.job_id, lease.task_id, lease.attempt, no)
        live_server.callsheet.state.blobs.put(key, b"%d" % no)
        made.append(commands.OutputFile(no, name, "text/plain", 1, hashlib.sha256(b"%d" % no).hexdigest()))
    live_server.engine.execute(commands.Complete(lease=lease, files=tuple(made)))
    fetched = run("jobs", "download", job, "--output", tmp_path, "--json").json["paths"]
    names = ["1-1-a.txt", "1-1-a-2.txt", "1-1-a-2-2.txt", "1-1-A-3.txt", "1-1-b"]
    assert fetched == [str(tmp_path / name) for name in names]
    assert [(tmp_path / name).read_text() for name in names] == ["1", "2", "3", "4", "5"]


def test_a_list_asks_for_no_more_jobs_than_it_shows() -> None:
    with StubServer() as stub:
        stub.responses = [ScriptedResponse(200, {"jobs": [JOB], "next": None})]
        assert "j1" in invoke_cli("jobs", "--limit", "7", "--url", stub.url).out
        assert [asked.path for asked in stub.asked] == ["/v1/jobs?limit=7"]


def test_a_job_is_paused_explained_resumed_canceled_and_tried_again(live_server: LiveServer, run: Run) -> None:
    job = submit_job(run)
    assert run("jobs", "pause", job).out == f"{job} is paused.\n"
    why = run("jobs", "why", job)
    assert (why.code, "(paused)" in why.out) == (0, True)
    assert run("jobs", "why", job, "--json").json["constraints"][0]["code"] == "paused"
    assert run("jobs", "resume", job, "--json").json["status"] == "queued"
    work_in_thread(live_server, fail=True).join()
    assert run("watch", job).code == 1
    assert run("jobs", "retry", job, "--json").json["run"] == 2
    assert run("jobs", "cancel", job, "--reason", "enough").out == f"{job} is canceled.\n"
    refused = run("jobs", "pause", job)
    assert (refused.code, refused.out, refused.err.count("\n")) == (1, "", 1)
    assert refused.err.startswith("callsheet: The job is canceled: it cannot be paused.")


def test_a_job_that_waits_says_why_no_start_can_be_estimated_or_how_it_was_estimated(
    live_server: LiveServer, run: Run
) -> None:
    definition = WorkflowDefinition(name="rare", stages=[StageSpec(name="etch", kind="etch")])
    live_server.engine.execute(commands.PutWorkflow(definition=definition))
    job = run("submit", "rare", "--user", "ann", "--json").json["id"]
    assert run("jobs", "why", job).out.splitlines() == [
        "It is next in its queue. (queued)",
        "Its position in the queue is 1.",
        "0 tasks of its queue completed so far; an estimate needs at least 5.",
    ]
    run("jobs", "cancel", job)
    printed = job_why_lines(estimated_seconds=718.4, reason="2 at a time, each as long as the last 40 took.")
    turn = "It may start in about 12 minutes, says an estimate from 40 tasks: "
    assert printed[-1] == f"{turn}2 at a time, each as long as the last 40 took."
    assert (
        job_why_lines(estimated_seconds=7, samples=0, reason="Later.")[-1] == "It may start in about 7 seconds: Later."
    )


def test_the_remaining_time_of_a_job_is_marked_as_an_estimate() -> None:
    ends = {"percent": 40, "remaining_seconds_p50": 12.2, "remaining_seconds_p90": 20.0, "samples": 34}
    assert job_why_lines(remaining=ends | {"reason": "Time until it ends."})[-1] == (
        "About 12 seconds to go, and about 40 % done, says an estimate from 34 tasks. Time until it ends."
    )
    late = {"percent": 99, "samples": 34, "reason": "It has taken longer than each of the last 34."}
    assert job_why_lines(remaining=late)[-1] == (
        "About 99 % is done, says an estimate from 34 tasks. It has taken longer than each of the last 34."
    )


def job_why_lines(*, remaining: dict[str, object] | None = None, **start: object) -> list[str]:
    """Return what `jobs why` says of a job of which a server tells so much."""
    known = {"samples": 40, "reason": ""}
    starts = dict.fromkeys(("estimated_start_at", "estimated_seconds", "duration_seconds_p50", "duration_seconds_p90"))
    ends = dict.fromkeys(("percent", "remaining_seconds_p50", "remaining_seconds_p90"))
    with StubServer() as stub:
        stub.responses = [ScriptedResponse(200, {
            "job_id": "j1", "status": "queued", "progress": 0, "stage_no": 1, "stage": "etch", "constraints": [],
            "position": 3, "start": known | starts | start, "remaining": known | ends | (remaining or {}),
        })]  # fmt: skip
        return invoke_cli("jobs", "why", "j1", "--url", stub.url).out.splitlines()


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_job_without_the_input_that_its_workflow_requires_says_what_that_is(
    live_server: LiveServer, run: Run, more: list[str]
) -> None:
    schema = {"type": "object", "required": ["prompt", "size"]}
    definition = WorkflowDefinition(name="poster", input_schema=schema, stages=[StageSpec(name="draw", kind="draw")])
    live_server.engine.execute(commands.PutWorkflow(definition=definition))
    done = run("submit", "poster", "--user", "ann", *more, role="client")
    assert (done.code, done.out) == (1, "")
    assert "poster requires --input with prompt, size." in done.err
    assert not more or json.loads(done.err)["code"] == "invalid_input"
    assert "needs --input" not in run("submit", "poster", "--user", "ann", "--input", "prompt=x").err
    assert run("submit", "no-such", "--user", "ann").err == "callsheet: There is no workflow 'no-such'.\n"


def test_times_are_written_one_way_for_people_and_as_http_writes_them_for_programs(
    live_server: LiveServer, run: Run
) -> None:
    job = submit_job(run)
    written = live_server.client("admin").get(f"/v1/jobs/{job}").json()["created_at"]
    assert run("jobs", "show", job, "--json").json["job"]["created_at"] == written
    live_server.work()
    event = live_server.client("admin").get(f"/v1/jobs/{job}/events").json()["events"][0]
    assert json.loads(run("watch", job, "--json").out.splitlines()[0])["at"] == event["at"]
    local = datetime.fromisoformat(written).astimezone().isoformat(timespec="seconds")
    for words in (["jobs", "--user", "ann"], ["jobs", "show", job], ["watch", job]):
        assert local in run(*words).out
    assert run("jobs", "--since", local, "--user", "ann").code == 0


def test_what_a_job_has_consumed_is_given_back_once(live_server: LiveServer, run: Run) -> None:
    run("wallet", "topup", "rae", "10")
    words = ["--user", "rae", "--input", '{"prompt": "x"}', "--priority", "99", "--json"]
    job = run("submit", "sketch", *words).json["id"]
    live_server.work()
    assert run("jobs", "refund", job, "--reason", "Too dark.").out == "rae has 10 credits.\n"
    assert run("jobs", "refund", job, "--reason", "x").out == "rae has 10 credits; it was refunded before.\n"
    assert run("jobs", "refund", job, "--reason", "x", "--json").json["replay"] is True
    assert run("jobs", "refund", job).code == 2


def test_a_stage_is_approved_in_a_persons_name(live_server: LiveServer, run: Run) -> None:
    definition = WorkflowDefinition(name="gated", stages=[StageSpec(name="render", kind="render", approval=True)])
    live_server.engine.execute(commands.PutWorkflow(definition=definition))
    job = run("submit", "gated", "--user", "ann", "--json").json["id"]
    other = submit_job(run)
    assert run("jobs", "show", job).out.startswith(f"{job} waits for approval.\n")
    found = run("jobs", "--needs-approval").out
    assert (job in found, other in found, "approval" in found) == (True, False, True)
    assert run("approve", job, "render", "--approver", "eve").out == "Stage 1 (render) is pending, approved by eve.\n"
    assert run("approve", job, "1", "--approver", "eve", "--json").json["approved_by"] == "eve"
    live_server.work("render")
