"""Everything a job is made of can be said in the shell; many jobs come from a file, each with its outcome."""

import json
from pathlib import Path

import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import WorkflowDefinition
from tests.cli.conftest import Run, invoke_cli
from tests.client.stub_server import JOB, ScriptedResponse, StubServer, problem
from tests.support.processes.live_server import LiveServer

DUNES = {"workflow": "sketch", "user": "ann", "input": {"prompt": "dunes"}}


def test_what_a_job_is_made_of_is_sent_as_it_was_said(tmp_path: Path) -> None:
    (tmp_path / "stages.json").write_text('[{"name": "draw", "kind": "draw"}]')
    with StubServer() as stub:
        stub.responses = [ScriptedResponse(201, JOB)]
        done = invoke_cli(
            "submit", "sketch", "--user", "ann", "--deadline", "600", "--metadata", '{"shot": 7}', "--quote", "q1",
            "--stages", f"@{tmp_path / 'stages.json'}", "--label", "a=b", "--url", stub.url,
        )  # fmt: skip
    assert (done.code, done.out) == (0, "j1 is queued, for 3 credits.\n")
    sent = {name: value for name, value in stub.asked[0].body.items() if name != "idempotency_key"}
    assert sent == {
        "workflow": "sketch", "user": "ann", "deadline_seconds": 600, "metadata": {"shot": 7}, "quote": "q1",
        "stages": [{"name": "draw", "kind": "draw"}], "labels": {"a": "b"}, "start_in_seconds": 0,
    }  # fmt: skip


def test_a_server_takes_a_jobs_own_stages_and_notes(live_server: LiveServer, run: Run) -> None:
    live_server.engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name="free", stages=[], inline=True)))
    stages = '[{"name": "etch", "kind": "etch", "tasks": 2}]'
    done = run("submit", "free", "--user", "ann", "--stages", stages, "--metadata", '{"a": 1}', "--deadline", "600",
               "--json")  # fmt: skip
    assert done.code == 0, done.err
    assert (done.json["metadata"], done.json["stages_total"], bool(done.json["deadline_at"])) == ({"a": 1}, 1, True)
    run("jobs", "cancel", done.json["id"])


@pytest.mark.parametrize(("words", "why"), [
    (["sketch"], "Missing --user"), (["--user", "ann"], "Missing WORKFLOW"),
    (["sketch", "--user", "ann", "--metadata", "[1]"], "--metadata takes JSON, or @FILE: Expected `object`"),
    (["sketch", "--user", "ann", "--metadata", "{"], "--metadata takes JSON, or @FILE"),
    (["sketch", "--user", "ann", "--stages", "@absent.json"], "Cannot read the file absent.json"),
    (["--batch", "absent.jsonl"], "Cannot read the file absent.jsonl"),
    (["--batch", "-", "--wait", "--label", "a=b"], "--batch cannot be combined with --wait, --label"),
])  # fmt: skip
def test_a_wrong_call_says_what_is_wrong_and_sends_nothing(words: list[str], why: str) -> None:
    done = invoke_cli("submit", *words, "--url", "http://127.0.0.1:1")
    assert (done.code, done.out) == (2, "")
    assert why in " ".join(done.err.replace("│", " ").split())


def test_many_jobs_are_read_from_a_file_and_each_has_its_outcome(
    live_server: LiveServer, run: Run, tmp_path: Path
) -> None:
    lines = [
        DUNES | {"idempotency_key": "many-1"},
        DUNES | {"workflow": "no-such"},
        DUNES | {"idempotency_key": "many-1"},
    ]
    file = tmp_path / "jobs.jsonl"
    file.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    done = run("submit", "--batch", file)
    assert (done.code, done.err) == (1, "")
    head, *rows = done.out.splitlines()
    assert head.split() == ["NO", "WORKFLOW", "USER", "OUTCOME", "JOB", "MESSAGE"]
    first, second, third = (row.split() for row in rows)
    assert first[:4] == ["1", "sketch", "ann", "submitted"]
    assert (second[:4], "There is no workflow" in rows[1]) == (["2", "no-such", "ann", "workflow_not_found"], True)
    assert (third[3:5], third[5]) == (["submitted", "before"], first[4])
    live_server.work()


def test_many_jobs_that_are_all_accepted_are_exit_code_0_and_take_what_they_do_not_name_from_the_call(
    live_server: LiveServer, run: Run
) -> None:
    text = "\n".join(json.dumps({"input": {"prompt": word}}) for word in ("dunes", "sea"))
    done = run("submit", "sketch", "--user", "ann", "--batch", "-", "--json", stdin=text)
    assert done.code == 0, done.err
    assert [one["status"] for one in done.json["results"]] == [201, 201]
    assert all(one["idempotency_key"] for one in done.json["results"])
    live_server.work()
    live_server.work()


@pytest.mark.parametrize(("text", "why"), [
    ('{"workflow": "a", "user": "b"}\n{"workflow": "a"', "Line 2 of - is not a valid job"),
    ('{"workflow": "a"}', "Line 1 of - is not a valid job: Object missing required field `user`"),
    ('{"workflow": "a", "user": "b", "imput": 1}',
     "Line 1 of - is not a valid job: Object contains unknown field `imput`"),
    ("[1]", "Line 1 of - is not a valid job"), ("\n\n", "- has no jobs"),
])  # fmt: skip
def test_a_line_that_is_no_job_is_named_and_nothing_is_sent(text: str, why: str) -> None:
    done = invoke_cli("submit", "--batch", "-", "--url", "http://127.0.0.1:1", stdin=text)
    assert (done.code, done.out) == (2, "")
    assert why in " ".join(done.err.replace("│", " ").split())


def test_many_jobs_of_which_nobody_hears_are_one_sentence() -> None:
    with StubServer() as stub:
        stub.responses = [problem(403, "forbidden")]
        done = invoke_cli("submit", "--batch", "-", "--url", stub.url, stdin=json.dumps(DUNES))
    assert (done.code, done.out, done.err) == (1, "", "callsheet: Not now.\n")
