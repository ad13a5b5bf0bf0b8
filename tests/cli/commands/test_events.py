"""`callsheet events`: follow the events of a tenant."""

import json
import signal
from pathlib import Path

from tests.cli.conftest import connection_environment, invoke_cli
from tests.client.stub_server import StubServer, frames, problem, stream
from tests.support.processes.cli_process import CommandProcess
from tests.support.processes.live_server import LiveServer


def test_events_are_followed_by_type_and_from_a_cursor(live_server: LiveServer, tmp_path: Path) -> None:
    first, second = live_server.submit()["id"], live_server.submit()["id"]
    for job in (first, second):
        live_server.work(worker=job)
    env = connection_environment(live_server)
    with CommandProcess("events", "--json", "--type", "job.", log=tmp_path / "log", env=env) as following:
        events = [json.loads(following.line())]
        while (events[-1]["job_id"], events[-1]["type"]) != (second, "job.completed"):
            events.append(json.loads(following.line()))
        assert following.stop(signal.SIGINT) == 130
    assert {event["type"].partition(".")[0] for event in events} == {"job"}
    hint, _, after = json.loads((tmp_path / "log").read_text())["message"].partition(" --cursor ")
    assert (hint.endswith("callsheet events"), after in {event["cursor"] for event in events}) == (True, True)
    with CommandProcess(
        "events", "--cursor", events[-2]["cursor"], "--type", "job.completed", log=tmp_path / "next", env=env
    ) as resumed:
        assert resumed.line().split()[1:] == [second, "job.completed"]


def test_events_resume_after_a_cut_and_end_when_the_server_rejects_them() -> None:
    with StubServer() as stub:
        stub.responses = [stream(frames(1, 2, cursor="c")), problem(403, "forbidden")]
        done = invoke_cli("events", "--type", "job.", "--type", "task.", "--url", stub.url)
        assert (done.code, done.err) == (1, "callsheet: Not now.\n")
        assert [line.split()[1:] for line in done.out.splitlines()] == [["j1", "task.progressed"]] * 2
        assert stub.requests[0].path == "/v1/events?type=job.%2Ctask."
        assert stub.requests[1].headers["last-event-id"] == "c2"
