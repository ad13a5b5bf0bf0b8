"""`callsheet jobs` and `callsheet approve`: list, show, explain, pause, cancel, retry, refund and approve."""

import json
import re
import subprocess
from datetime import datetime
from pathlib import Path

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.cli.conftest import Run, connection_environment, invoke_cli
from tests.cli.sketch_jobs import submit_job, work_in_thread
from tests.cli.terminal import run_on_terminal, strip_styles
from tests.client.output_files import complete_with_files
from tests.client.stub_server import JOB, ScriptedResponse, StubServer
from tests.support.processes.cli_process import CALLSHEET, clean_environment
from tests.support.processes.live_server import LiveServer

JOB_ID = re.compile(r"[0-9a-f-]{36}")


def test_a_list_has_one_line_per_job_in_a_pipe_and_fits_a_narrow_terminal(live_server: LiveServer, run: Run) -> None:
    user = "a-user-with-a-name-of-forty-characters-or-so"
    run("wallet", "topup", user, "3")
    job = run("submit", "sketch", "--user", user, "--input", "{}", "--json").json["id"]
    env = clean_environment(connection_environment(live_server) | {"COLUMNS": "80"})
    piped = subprocess.run([CALLSHEET, "jobs", "--user", user], capture_output=True, text=True, check=True, env=env)
    (line,) = (line for line in piped.stdout.splitlines() if job in line)
    assert line.split()[1:7] == ["sketch", user, "queued", "0", "%", "3"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", line.split()[7])
    lines = strip_styles(run_on_terminal(live_server, "jobs", "--user", user, columns=80)).splitlines()
    assert lines[0].split() == ["JOB", "WORKFLOW", "STATUS"]
    assert lines[1].split() == [job, "sketch", "queued"]
    live_server.work()


def test_jobs_are_listed_with_filters_and_a_limit(live_server: LiveServer, run: Run) -> None:
    submitted = [submit_job(run, "--label", "list=cli") for _ in range(3)]
    found = run("jobs", "--label", "list=cli", "--status", "queued", "--json")
    assert [job["id"] for job in found.json["jobs"]] == submitted[::-1]
    listed = run("jobs", "--label", "list=cli", "--limit", "2").out
    assert JOB_ID.findall(listed) == submitted[:0:-1]
    assert listed.splitlines()[0].split() == ["JOB", "WORKFLOW", "USER", "STATUS", "PROGRESS", "PRICE", "SUBMITTED"]
    assert run("jobs", "--user", "other").out == "There are no such jobs.\n"
    for _ in submitted:
        live_server.work()


def test_show_prints_a_job_with_its_tasks_and_download_saves_its_files(
    live_server: LiveServer, run: Run, tmp_path: Path
) -> None:
    job = submit_job(run)
    complete_with_files(live_server, ("sketch.png", b"bytes"))
    done = run("jobs", "show", job)
    assert done.code == 0
    assert f"{job} is completed." in done.out
    assert "sketch.png" in done.out
    assert set(run("jobs", "show", job, "--json").json) == {"job", "stages", "tasks", "outputs", "runs"}
    downloaded = run("jobs", "download", job, "--output", tmp_path, "--json")
    assert downloaded.json == {"paths": [str(tmp_path / "1-1-sketch.png")]}
    assert (tmp_path / "1-1-sketch.png").read_bytes() == b"bytes"
    assert run("jobs", "download", job, "--output", tmp_path / "new" / "folder").code == 0
    assert (tmp_path / "new" / "folder" / "1-1-sketch.png").read_bytes() == b"bytes"
    (tmp_path / "file").touch()
    failed = run("jobs", "download", job, "--output", tmp_path / "file")
    assert (failed.code, failed.err.count("\n")) == (1, 1)


def test_a_list_requests_no_more_jobs_than_its_limit() -> None:
    with StubServer() as stub:
        stub.responses = [ScriptedResponse(200, {"jobs": [JOB], "next": None})]
        assert "j1" in invoke_cli("jobs", "--limit", "7", "--url", stub.url).out
        assert [request.path for request in stub.requests] == ["/v1/jobs?limit=7"]


def test_a_job_is_paused_explained_resumed_retried_and_canceled(live_server: LiveServer, run: Run) -> None:
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


def test_why_prints_the_estimated_start_or_why_there_is_none(live_server: LiveServer, run: Run) -> None:
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
    prefix = "It may start in about 12 minutes (estimated from 40 tasks): "
    assert printed[-1] == f"{prefix}2 at a time, each as long as the last 40 took."
    assert (
        job_why_lines(estimated_seconds=7, samples=0, reason="Later.")[-1] == "It may start in about 7 seconds: Later."
    )


def test_why_marks_the_remaining_time_as_an_estimate() -> None:
    ends = {"percent": 40, "remaining_seconds_p50": 12.2, "remaining_seconds_p90": 20.0, "samples": 34}
    assert job_why_lines(remaining=ends | {"reason": "Time until it ends."})[-1] == (
        "About 12 seconds to go, and about 40 % done (estimated from 34 tasks). Time until it ends."
    )
    late = {"percent": 99, "samples": 34, "reason": "It has taken longer than each of the last 34."}
    assert job_why_lines(remaining=late)[-1] == (
        "About 99 % is done (estimated from 34 tasks). It has taken longer than each of the last 34."
    )


def test_why_says_that_a_position_is_capped() -> None:
    assert "Its position in the queue is 3+." in job_why_lines(position_is_capped=True)


def job_why_lines(
    *, remaining: dict[str, object] | None = None, position_is_capped: bool = False, **start: object
) -> list[str]:
    """Return what `jobs why` prints for such an answer of the server."""
    known = {"samples": 40, "reason": ""}
    starts = dict.fromkeys(("estimated_start_at", "estimated_seconds", "duration_seconds_p50", "duration_seconds_p90"))
    ends = dict.fromkeys(("percent", "remaining_seconds_p50", "remaining_seconds_p90"))
    with StubServer() as stub:
        stub.responses = [ScriptedResponse(200, {
            "job_id": "j1", "status": "queued", "progress": 0, "stage_no": 1, "stage": "etch", "constraints": [],
            "position": 3, "position_is_capped": position_is_capped,
            "start": known | starts | start, "remaining": known | ends | (remaining or {}),
        })]  # fmt: skip
        return invoke_cli("jobs", "why", "j1", "--url", stub.url).out.splitlines()


def test_times_are_local_in_text_and_the_apis_own_in_json(live_server: LiveServer, run: Run) -> None:
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


def test_a_completed_job_is_refunded_once(live_server: LiveServer, run: Run) -> None:
    run("wallet", "topup", "rae", "10")
    words = ["--user", "rae", "--input", '{"prompt": "x"}', "--priority", "99", "--json"]
    job = run("submit", "sketch", *words).json["id"]
    live_server.work()
    assert run("jobs", "refund", job, "--reason", "Too dark.").out == "rae has 10 credits.\n"
    assert run("jobs", "refund", job, "--reason", "x").out == "rae has 10 credits; it was refunded before.\n"
    assert run("jobs", "refund", job, "--reason", "x", "--json").json["replay"] is True
    assert run("jobs", "refund", job).code == 2


def test_a_stage_is_approved_in_the_name_of_a_person(live_server: LiveServer, run: Run) -> None:
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
