"""Tenants, the audit log, how the house is doing, and everything that happens, from the shell."""

import json
import signal
from pathlib import Path

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.cli.conftest import Run, invoke_cli
from tests.client.stub_server import ScriptedResponse, StubServer, frames, problem, stream
from tests.support.processes.cli_process import CommandProcess
from tests.support.processes.live_server import LiveServer


def test_tenants_are_made_changed_and_listed(live_server: LiveServer, run: Run) -> None:
    _ = live_server
    made = run("tenants", "set", "studio", "--weight", "3", role="operator")
    assert made.out == "studio is active, has weight 3, and any number of active jobs for each user.\n"
    changed = run("tenants", "set", "studio", "--status", "suspended", "--active-jobs-max", "1", role="operator")
    assert changed.out == "studio is suspended, has weight 3, and 1 active job for each user.\n"
    listed = run("tenants", role="operator").out
    assert listed == run("tenants", "list", role="operator").out
    (line,) = [line for line in listed.splitlines() if line.startswith("studio")]
    assert line.split()[:4] == ["studio", "suspended", "3", "1"]
    found = {one["id"]: one["weight"] for one in run("tenants", "--json", role="operator").json["tenants"]}
    assert found["studio"] == 3
    assert run("tenants", "set", "studio", "--json", role="operator").json["status"] == "suspended"
    assert run("tenants").code == 1, "only an operator looks at them"


def test_the_audit_log_is_listed_newest_first(run: Run) -> None:
    for name in ("first", "second"):
        run("keys", "create", name, "--role", "viewer")
    lines = run("audit", "--limit", "2").out.splitlines()
    assert lines[0].split()[:4] == ["AT", "BY", "ACTION", "SUBJECT"]
    assert ["second" in lines[1], "first" in lines[2], len(lines)] == [True, True, 3]
    [line] = run("audit", "--limit", "1", "--json").json["entries"]
    assert run("audit", "--subject", line["subject"], "--json").json["entries"] == [line]


def test_the_state_of_the_server_is_shown_in_numbers(live_server: LiveServer, run: Run) -> None:
    definition = WorkflowDefinition(name="waiting", price=0, stages=[StageSpec(name="wait", kind="ops-wait")])
    live_server.engine.execute(commands.PutWorkflow(definition=definition))
    live_server.submit(workflow="waiting")
    said = run("status", role="operator").out
    assert " queued" in said.splitlines()[0]
    (line,) = [line for line in said.splitlines() if line.startswith("ops-wait")]
    assert line.split() == ["ops-wait", "waiting", "1", "0"]
    queues = run("status", "--json", role="operator").json["queues"]
    assert {"kind": "ops-wait", "workflow": "waiting", "waiting": 1, "running": 0} in queues
    live_server.work("ops-wait")


def test_events_are_followed_from_where_and_of_which_type_one_says(live_server: LiveServer, tmp_path: Path) -> None:
    first, second = live_server.submit()["id"], live_server.submit()["id"]
    for job in (first, second):
        live_server.work(worker=job)
    env = {"CALLSHEET_URL": live_server.url, "CALLSHEET_API_KEY": live_server.keys["admin"]}
    with CommandProcess("events", "--json", "--type", "job.", log=tmp_path / "log", env=env) as following:
        told = [json.loads(following.line())]
        while (told[-1]["job_id"], told[-1]["type"]) != (second, "job.completed"):
            told.append(json.loads(following.line()))
        assert following.stop(signal.SIGINT) == 130
    assert {event["type"].partition(".")[0] for event in told} == {"job"}
    how, _, after = json.loads((tmp_path / "log").read_text())["message"].partition(" --after ")
    assert (how.endswith("callsheet events"), after in {event["cursor"] for event in told}) == (True, True)
    with CommandProcess(
        "events", "--after", told[-2]["cursor"], "--type", "job.completed", log=tmp_path / "next", env=env
    ) as on:
        assert on.line().split()[1:] == [second, "job.completed"]


def test_events_end_where_the_server_ends_them() -> None:
    with StubServer() as stub:
        stub.responses = [stream(frames(1, 2, cursor="c")), problem(403, "forbidden")]
        done = invoke_cli("events", "--type", "job.", "--type", "task.", "--url", stub.url)
        assert (done.code, done.err) == (1, "callsheet: Not now.\n")
        assert [line.split()[1:] for line in done.out.splitlines()] == [["j1", "task.progressed"]] * 2
        assert stub.asked[0].path == "/v1/events?type=job.%2Ctask."
        assert stub.asked[1].headers["last-event-id"] == "c2"
        stub.responses = [ScriptedResponse(200, {"workers": [], "next": None})]
        invoke_cli("workers", "--url", stub.url, "--tenant", "studio")
        assert stub.asked[-1].headers["callsheet-tenant"] == "studio"
