"""The samples of the reference, pasted into a fresh house: each does what it says, and none does harm."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import httpx
import pytest

from callsheet.api.base import Example
from callsheet.blobs import object_keys
from callsheet.catalog import load
from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.demo.setup import USER, WORKFLOWS, seed_demo
from callsheet.http.openapi.curl import VARIABLES, curl, start
from callsheet.http.openapi.document import document
from callsheet.http.openapi.html_page import ReferencePage
from tests.support.processes.live_server import TENANT, LiveServer

DOCUMENT = document()
OPERATIONS = {
    operation["operationId"]: (method, path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
JOB_ID, TASK_ID = Example.JOB_ID, Example.TASK_ID
PICTURE = b"\x89PNG\r\n\x1a\n picture"
DIGEST = "0" * 64


class SampleRunner:
    """Pastes samples as they are; what an answer says goes into the variables of those that come later."""

    def __init__(self, live_server: LiveServer) -> None:
        self.live_server = live_server
        self.variables = {
            "URL": live_server.url,
            "KEY": live_server.keys["operator"],
            "FLEET": live_server.keys["worker"],
        }
        self.lease: dict[str, str] = {}
        """What stands in the samples of a worker, and what its lease says instead."""
        self.pasted: set[str] = set()

    def paste(self, name: str) -> Any:
        """Send the sample of an operation: it is done, as the description says."""
        operation = OPERATIONS[name]
        text = Template(curl(*operation)).safe_substitute(self.variables)
        for shown, mine in self.lease.items():
            text = text.replace(shown, mine)
        answer = run_curl(text)
        assert answer.status_code < 400, f"{text}\n{answer.text}"
        assert str(answer.status_code) in operation[2]["responses"], name
        self.pasted.add(name)
        return answer.json() if answer.content[:1] == b"{" else answer.content

    def paste_all(self, *names: str) -> None:
        for name in names:
            self.paste(name)


def run_curl(text: str) -> httpx.Response:
    """Do what curl would do."""
    command, *given = shlex.split(text.replace("\\\n", ""))
    assert command == "curl"
    method, headers, body, address = "GET", {}, None, ""
    while given:
        part = given.pop(0)
        if part == "-X":
            method = given.pop(0)
        elif part == "-H":
            name, _, value = given.pop(0).partition(": ")
            headers[name] = value
        elif part == "-d":
            body = given.pop(0)
        else:
            address = part
    return httpx.request(method, address, headers=headers, content=body, timeout=30)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[SampleRunner]:
    """A reader at a house as `callsheet up` makes it: with the demonstration, and nothing for ann."""
    with LiveServer(tmp_path / "callsheet.db", tmp_path, register_worker=False) as live_server:
        for definition in load(WORKFLOWS):
            live_server.engine.execute(commands.PutWorkflow(definition=definition))
        seed_demo(live_server.engine)
        live_server.engine.execute(commands.Adjust(tenant=TENANT, user="ann", amount=-1_000, reason="A fresh house."))
        yield SampleRunner(live_server)


def demo_state(runner: SampleRunner) -> Any:
    """What the demonstration needs: its workflows, its tenant, its user's credits."""
    operator = runner.live_server.client("operator")
    workflows = operator.get("/v1/workflows").json()["workflows"]
    names = {definition.name for definition in load(WORKFLOWS)}
    tenants = operator.get("/v1/admin/tenants").json()["tenants"]
    return (
        [workflow for workflow in workflows if workflow["name"] in names],
        [tenant for tenant in tenants if tenant["id"] == TENANT],
        operator.get(f"/v1/wallets/{USER}").json(),
    )


def test_every_sample_works_when_a_person_pastes_them_and_the_demonstration_stays_as_it_was(
    runner: SampleRunner,
) -> None:
    before = demo_state(runner)
    for chapter in (
        read_routes,
        wallet_routes,
        submit_routes,
        output_routes,
        cancel_routes,
        workflow_routes,
        upload_routes,
        admin_routes,
        worker_routes,
    ):
        chapter(runner)
    assert set(OPERATIONS) - runner.pasted == set(), "paste it too, where a person would"
    assert demo_state(runner) == before


def test_what_is_pasted_first_stands_at_the_top_and_pays_for_the_first_job(runner: SampleRunner) -> None:
    first = start(OPERATIONS["top_up"])
    assert first.split("\n\n")[0].count("=") == 3
    assert ReferencePage(DOCUMENT).html().index("callsheet-data/fleet.key") < ReferencePage(DOCUMENT).html().index(
        'id="submit_job"'
    )
    assert run_curl(Template(first.split("\n\n")[1]).safe_substitute(runner.variables)).json()["balance"] == 100
    assert runner.paste("submit_job")["user"] == "ann"


def test_a_sample_asks_for_nothing_that_only_its_example_has() -> None:
    """An id of an example is in nobody's house."""
    made_up = [name for name, operation in OPERATIONS.items() if JOB_ID in curl(*operation).partition("-d '")[0]]
    assert made_up == []
    assert {name for name in VARIABLES if name.endswith("_id")} == {"job_id", "task_id", "file_id", "key_id"}


# -- what a person does, chapter by chapter


def read_routes(runner: SampleRunner) -> None:
    runner.paste_all("home", "openapi", "reference", "reference_css", "reference_js", "healthz", "readyz", "metrics")
    runner.paste_all("get_me", "get_ops", "get_scale_signals", "list_workflows", "get_workflow")


def wallet_routes(runner: SampleRunner) -> None:
    assert runner.paste("top_up")["balance"] == 100
    runner.paste_all("get_wallet", "get_ledger", "create_quote")


def submit_routes(runner: SampleRunner) -> None:
    runner.variables["JOB"] = runner.paste("submit_job")["id"]
    runner.paste_all("list_jobs", "get_job", "update_job", "get_input", "list_runs", "list_stages", "get_why")
    runner.variables["TASK"] = runner.paste("list_tasks")["tasks"][0]["id"]
    runner.paste_all("job_events", "tenant_events", "pause_job", "resume_job")


def output_routes(runner: SampleRunner) -> None:
    """The demonstration's worker takes the job, shows it and ends it."""
    engine, blobs = runner.live_server.engine, runner.live_server.blobs
    (leased,) = engine.execute(commands.Claim(worker_id="demo", kinds=("sketch",)))
    lease = leased.lease
    place = (leased.tenant, lease.job_id, lease.task_id, lease.attempt)
    blobs.put(object_keys.preview_key(*place), PICTURE)
    runner.paste_all("list_attempts", "get_preview")
    blobs.put(object_keys.output_key(*place, 1), PICTURE)
    made = commands.OutputFile(1, "sketch.png", "image/png", len(PICTURE), DIGEST)
    engine.execute(commands.Complete(lease=lease, files=(made,)))
    runner.variables["FILE"] = runner.paste("list_outputs")["outputs"][0]["files"][0]["id"]
    assert runner.paste("get_file") == PICTURE
    grant = blobs.grant_download(
        object_keys.output_key(*place, 1), expires_in_seconds=60, name="sketch.png", media_type="image/png"
    )
    runner.variables["SIGNED"] = grant.url.rpartition("/")[2]
    assert runner.paste("get_blob") == PICTURE
    runner.paste_all("refund_job", "adjust_balance", "delete_job")


def cancel_routes(runner: SampleRunner) -> None:
    runner.variables["JOB"] = runner.paste("submit_jobs")["results"][0]["job_id"]
    runner.paste("cancel_job")
    runner.variables["JOB"] = runner.paste("submit_jobs")["results"][0]["job_id"]
    (leased,) = runner.live_server.engine.execute(commands.Claim(worker_id="demo", kinds=("sketch",)))
    runner.live_server.engine.execute(commands.Fail(lease=leased.lease, message="It broke."))
    runner.paste_all("retry_job", "cancel_job")


def workflow_routes(runner: SampleRunner) -> None:
    engine = runner.live_server.engine
    runner.paste("put_workflow")
    poster = {"workflow": "poster", "user": "ann", "input": {"prompt": "a pier"}}
    job = runner.live_server.client("operator").post("/v1/jobs", json=poster).raise_for_status().json()
    (leased,) = engine.execute(commands.Claim(worker_id="demo", kinds=("sketch",)))
    assert leased.lease.job_id == job["id"]  # the demonstration's worker does what the sample makes
    gated = [StageSpec(name="sketch", kind="sketch", approval=True)]
    for definition in (WorkflowDefinition(name="gated", stages=gated), WorkflowDefinition(name="open", inline=True)):
        engine.execute(commands.PutWorkflow(definition=definition))
        submitted = engine.execute(commands.Submit(tenant=TENANT, user="ann", workflow=definition.name))
        runner.variables["JOB"] = submitted.job_id
        runner.paste_all(*(["add_stage", "add_tasks"] if definition.inline else ["approve_stage"]))


def upload_routes(runner: SampleRunner) -> None:
    announced = runner.paste("create_upload")
    runner.variables["FILE"] = announced["file"]["id"]
    runner.variables["SIGNED"] = announced["upload"]["url"].rpartition("/")[2]
    runner.paste_all("put_blob", "finish_upload", "get_file_info", "get_file")
    assert [file["id"] for file in runner.paste("list_files")["files"]] == [runner.variables["FILE"]]
    runner.paste("delete_file")


def admin_routes(runner: SampleRunner) -> None:
    runner.paste_all("list_tenants", "put_tenant", "list_keys", "create_token")
    runner.variables["KEY_ID"] = runner.paste("create_key")["key"]["id"]
    runner.paste_all("revoke_key", "list_audit")


def worker_routes(runner: SampleRunner) -> None:
    engine = runner.live_server.engine
    engine.execute(
        commands.PutWorkflow(
            definition=WorkflowDefinition(name="painting", stages=[StageSpec(name="draw", kind="draw")])
        )
    )
    for _ in range(3):
        engine.execute(commands.Submit(tenant=TENANT, user="ann", workflow="painting"))
    runner.variables["TOKEN"] = runner.paste("register_worker")["token"]
    runner.paste_all("list_workers", "get_worker")
    claim(runner)
    runner.paste_all("heartbeat", "grant_files", "list_previous_outputs", "record_submission", "complete_task")
    claim(runner)
    runner.paste("fail_task")
    claim(runner)
    runner.paste_all("requeue_task", "update_worker")
    runner.variables["TOKEN"] = runner.paste("rotate_worker")["token"]
    runner.paste_all("deregister_worker", "revoke_worker")


def claim(runner: SampleRunner) -> None:
    (task,) = runner.paste("claim_tasks")["tasks"]
    lease = task["lease"]
    runner.lease = {JOB_ID: lease["job_id"], TASK_ID: lease["task_id"], "the-secret-of-this-lease": lease["token"]}
