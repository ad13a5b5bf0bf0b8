"""`callsheet jobs input`, `update`, `delete`, `events` and `add-tasks`."""

import json
import os
from pathlib import Path

import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.cli.conftest import Run, connection_options
from tests.cli.sketch_jobs import submit_job
from tests.support.processes.cli_process import CommandProcess
from tests.support.processes.live_server import LiveServer


def test_the_input_of_a_job_is_printed_as_json(run: Run) -> None:
    job = submit_job(run)
    assert run("jobs", "input", job).json == {"prompt": "dunes"}
    run("jobs", "cancel", job)


def test_an_update_changes_the_named_fields_only(run: Run) -> None:
    job = submit_job(run, "--label", "a=b", "--label", "c=d")
    assert run("jobs", "update", job, "--priority", "80").out == f"{job} has priority 80; labels a=b, c=d.\n"
    noted = run("jobs", "update", job, "--label", "e=f", "--metadata", '{"shot": 7}')
    assert noted.out == f'{job} has priority 80; labels e=f; metadata {{"shot":7}}.\n'
    assert run("jobs", "update", job, "--priority", "10", "--json").json["priority"] == 10
    nothing = run("jobs", "update", job)
    assert (nothing.code, "Nothing to update" in nothing.err) == (2, True)
    run("jobs", "cancel", job)


def test_a_deleted_job_is_not_found_and_the_freed_bytes_are_reported(run: Run) -> None:
    job = submit_job(run)
    assert run("jobs", "delete", job).out == f"{job} is deleted: 0 bytes are free.\n"
    assert run("jobs", "show", job).err == f"callsheet: There is no job {job}.\n"
    other = submit_job(run)
    assert run("jobs", "delete", other, "--json").json == {"files": 0, "bytes": 0, "pending": False}


@pytest.mark.parametrize("ended", [False, True])
def test_past_events_are_printed_and_the_command_exits(live_server: LiveServer, run: Run, *, ended: bool) -> None:
    job = submit_job(run)
    if ended:
        live_server.work()
    done = run("jobs", "events", job)
    types = [line.split("  ")[1] for line in done.out.splitlines()]
    assert (done.code, types[0]) == (0, "job.created")
    assert ("job.completed" in types) == ended
    events = [json.loads(line) for line in run("jobs", "events", job, "--json").out.splitlines()]
    assert [event["type"] for event in events] == types
    run("jobs", "cancel", job)


def test_new_events_are_followed_until_the_job_ends(live_server: LiveServer, run: Run) -> None:
    job = submit_job(run)
    options = connection_options(live_server)
    with CommandProcess("jobs", "events", job, "--follow", *options, log=Path(os.devnull)) as following:
        assert "job.created" in following.line()
        run("jobs", "cancel", job)
        assert "job.canceled" in following.process.communicate()[0]
        assert following.process.returncode == 0


def test_one_task_is_added_for_each_input(live_server: LiveServer, run: Run) -> None:
    film = WorkflowDefinition(name="grown", stages=[StageSpec(name="board", kind="grown")], inline=True)
    live_server.engine.execute(commands.PutWorkflow(definition=film))
    job = run("submit", "grown", "--user", "ann", "--json").json["id"]
    two = run("jobs", "add-tasks", job, "board", "--input", "shot:=2", "--input", '{"shot": 3}')
    assert two.out == "Stage 1 has 2 more tasks: numbers 2 to 3.\n", two.err
    assert run("jobs", "add-tasks", job, "1", "--input", "shot:=4").out == "Stage 1 has 1 more task: number 4.\n"
    inputs = [
        json.loads(live_server.engine.execute(commands.Claim(worker_id="w", kinds=("grown",)))[0].input) for _ in "1234"
    ]
    assert inputs[1:] == [{"shot": 2}, {"shot": 3}, {"shot": 4}]
    assert run("jobs", "add-tasks", job, "1").code == 2
    run("jobs", "cancel", job, "--grace", "0")
