"""`callsheet submit`: one job from options, or many jobs from a file."""

import json
import re
from pathlib import Path

import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.cli.conftest import Run, invoke_cli
from tests.cli.sketch_jobs import submit_job, work_in_thread
from tests.client.stub_server import JOB, ScriptedResponse, StubServer, problem
from tests.support.processes.live_server import LiveServer

JOB_ID = re.compile(r"[0-9a-f-]{36}")
DUNES = {"workflow": "sketch", "user": "ann", "input": {"prompt": "dunes"}}


def test_a_submitted_job_is_described_in_one_sentence(live_server: LiveServer, run: Run) -> None:
    done = run("submit", "sketch", "--user", "ann", "--input", '{"prompt": "dunes"}', "--label", "a=b", role="client")
    assert done.code == 0
    assert re.fullmatch(r"[0-9a-f-]{36} is queued, for 3 credits\.\n", done.out)
    live_server.work()


def test_a_repeated_idempotency_key_prints_the_first_job(live_server: LiveServer, run: Run) -> None:
    job = submit_job(run, "--idempotency-key", "once")
    assert submit_job(run, "--idempotency-key", "once") == job
    live_server.work()
    words = ["--user", "ann", "--input", "prompt=dunes", "--idempotency-key", "once"]
    assert run("submit", "sketch", *words).out == f"{job} was submitted before and is completed.\n"
    assert run("submit", "sketch", *words, "--json").json["replay"] is True


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (['{"a": 1}'], {"a": 1}),
        (["prompt=a = b", "seed:=7", "tags:=[1]"], {"prompt": "a = b", "seed": 7, "tags": [1]}),
        (["@FILE"], {"from": "file"}),
        (["@-"], {"from": "stdin"}),
        (["@FILE", "from=here"], {"from": "here"}),
    ],
)
def test_an_input_is_json_a_file_or_fields(
    live_server: LiveServer, run: Run, tmp_path: Path, words: list[str], expected: object
) -> None:
    file = tmp_path / "input.json"
    file.write_text('{"from": "file"}')
    options = [part for word in words for part in ("--input", word.replace("FILE", str(file)))]
    done = run("submit", "sketch", "--user", "ann", "--json", *options, stdin='{"from": "stdin"}')
    assert done.code == 0, done.err
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
    assert json.loads(leased.input) == expected
    live_server.engine.execute(commands.Complete(lease=leased.lease))


@pytest.mark.parametrize("words", [["dunes"], ["{"], ["a:=x"], ["@absent.json"], ["[1]", "a=b"], ["{}", "{}"]])
def test_an_invalid_input_is_a_usage_error(run: Run, words: list[str]) -> None:
    options = [part for word in words for part in ("--input", word)]
    done = run("submit", "sketch", "--user", "ann", *options)
    assert (done.code, done.out) == (2, "")
    assert "--input takes JSON" in " ".join(done.err.split()) or "cannot be read" in done.err


def test_submit_with_wait_prints_the_progress_and_the_end(live_server: LiveServer, run: Run) -> None:
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
def test_submit_with_wait_exits_with_1_if_the_job_fails(live_server: LiveServer, run: Run, more: list[str]) -> None:
    thread = work_in_thread(live_server, fail=True)
    done = run("submit", "sketch", "--user", "ann", "--input", "{}", "--wait", *more)
    thread.join()
    assert done.code == 1
    assert (done.json["error"]["code"] if more else "is failed: No ink. (no_ink)" in done.out) == (
        "no_ink" if more else True
    )


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_submit_without_required_input_names_the_missing_fields(
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


def test_every_option_is_sent_to_the_server(tmp_path: Path) -> None:
    (tmp_path / "stages.json").write_text('[{"name": "draw", "kind": "draw"}]')
    with StubServer() as stub:
        stub.responses = [ScriptedResponse(201, JOB)]
        done = invoke_cli(
            "submit", "sketch", "--user", "ann", "--deadline", "600", "--metadata", '{"shot": 7}', "--quote", "q1",
            "--stages", f"@{tmp_path / 'stages.json'}", "--label", "a=b", "--url", stub.url,
        )  # fmt: skip
    assert (done.code, done.out) == (0, "j1 is queued, for 3 credits.\n")
    sent = {name: value for name, value in stub.requests[0].body.items() if name != "idempotency_key"}
    assert sent == {
        "workflow": "sketch", "user": "ann", "deadline_seconds": 600, "metadata": {"shot": 7}, "quote": "q1",
        "stages": [{"name": "draw", "kind": "draw"}], "labels": {"a": "b"}, "start_in_seconds": 0,
    }  # fmt: skip


def test_a_job_is_submitted_with_its_own_stages_and_metadata(live_server: LiveServer, run: Run) -> None:
    live_server.engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name="free", stages=[], inline=True)))
    stages = '[{"name": "etch", "kind": "etch", "tasks": 2}]'
    done = run("submit", "free", "--user", "ann", "--stages", stages, "--metadata", '{"a": 1}', "--deadline", "600",
               "--json")  # fmt: skip
    assert done.code == 0, done.err
    assert (done.json["metadata"], done.json["stages_total"], bool(done.json["deadline_at"])) == ({"a": 1}, 1, True)
    run("jobs", "cancel", done.json["id"])


@pytest.mark.parametrize(("words", "message"), [
    (["sketch"], "Missing --user"), (["--user", "ann"], "Missing WORKFLOW"),
    (["sketch", "--user", "ann", "--metadata", "[1]"], "--metadata takes JSON, or @FILE: Expected `object`"),
    (["sketch", "--user", "ann", "--metadata", "{"], "--metadata takes JSON, or @FILE"),
    (["sketch", "--user", "ann", "--stages", "@absent.json"], "Cannot read the file absent.json"),
    (["--batch", "absent.jsonl"], "Cannot read the file absent.jsonl"),
    (["--batch", "-", "--wait", "--label", "a=b"], "--batch cannot be combined with --wait, --label"),
])  # fmt: skip
def test_invalid_options_are_a_usage_error_and_nothing_is_sent(words: list[str], message: str) -> None:
    done = invoke_cli("submit", *words, "--url", "http://127.0.0.1:1")
    assert (done.code, done.out) == (2, "")
    assert message in " ".join(done.err.replace("│", " ").split())


def test_jobs_of_a_batch_file_are_listed_with_their_outcomes(live_server: LiveServer, run: Run, tmp_path: Path) -> None:
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


def test_a_batch_uses_the_workflow_and_user_of_the_options_and_exits_with_0_if_all_are_accepted(
    live_server: LiveServer, run: Run
) -> None:
    text = "\n".join(json.dumps({"input": {"prompt": word}}) for word in ("dunes", "sea"))
    done = run("submit", "sketch", "--user", "ann", "--batch", "-", "--json", stdin=text)
    assert done.code == 0, done.err
    assert [one["status"] for one in done.json["results"]] == [201, 201]
    assert all(one["idempotency_key"] for one in done.json["results"])
    live_server.work()
    live_server.work()


@pytest.mark.parametrize(("text", "message"), [
    ('{"workflow": "a", "user": "b"}\n{"workflow": "a"', "Line 2 of - is not a valid job"),
    ('{"workflow": "a"}', "Line 1 of - is not a valid job: Object missing required field `user`"),
    ('{"workflow": "a", "user": "b", "imput": 1}',
     "Line 1 of - is not a valid job: Object contains unknown field `imput`"),
    ("[1]", "Line 1 of - is not a valid job"), ("\n\n", "- has no jobs"),
])  # fmt: skip
def test_an_invalid_line_of_a_batch_is_named_and_nothing_is_sent(text: str, message: str) -> None:
    done = invoke_cli("submit", "--batch", "-", "--url", "http://127.0.0.1:1", stdin=text)
    assert (done.code, done.out) == (2, "")
    assert message in " ".join(done.err.replace("│", " ").split())


def test_a_batch_that_the_server_rejects_is_reported_in_one_sentence() -> None:
    with StubServer() as stub:
        stub.responses = [problem(403, "forbidden")]
        done = invoke_cli("submit", "--batch", "-", "--url", stub.url, stdin=json.dumps(DUNES))
    assert (done.code, done.out, done.err) == (1, "", "callsheet: Not now.\n")
