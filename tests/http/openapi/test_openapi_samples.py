"""The curl samples of the reference page, run against a new server: each works, and the demo stays unchanged."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import httpx
import pytest

from callsheet.api.shared_fields import Example
from callsheet.blobs import object_keys
from callsheet.catalog import load
from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.demo.setup import USER, WORKFLOWS, seed_demo
from callsheet.http.openapi.curl import VARIABLES, curl, start
from callsheet.http.openapi.html_page import ReferencePage
from callsheet.http.openapi.native_document import document
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
    """Runs samples unchanged and puts values of their responses into the variables of later ones."""

    def __init__(self, live_server: LiveServer) -> None:
        self.live_server = live_server
        self.variables = {
            "URL": live_server.url,
            "KEY": live_server.keys["operator"],
            "FLEET": live_server.keys["worker"],
        }
        self.lease: dict[str, str] = {}
        """Texts in the samples of a worker, and the values of the real lease."""
        self.used: set[str] = set()

    def run(self, name: str) -> Any:
        """Run the sample of an operation; its response must be a declared success."""
        operation = OPERATIONS[name]
        text = Template(curl(*operation)).safe_substitute(self.variables)
        for sample, real in self.lease.items():
            text = text.replace(sample, real)
        answer = run_curl(text)
        assert answer.status_code < 400, f"{text}\n{answer.text}"
        assert str(answer.status_code) in operation[2]["responses"], name
        self.used.add(name)
        return answer.json() if answer.content[:1] == b"{" else answer.content

    def run_all(self, *names: str) -> None:
        for name in names:
            self.run(name)


def run_curl(text: str) -> httpx.Response:
    """Send the request of a curl command."""
    command, *arguments = shlex.split(text.replace("\\\n", ""))
    assert command == "curl"
    method, headers, body, url = "GET", {}, None, ""
    while arguments:
        part = arguments.pop(0)
        if part == "-X":
            method = arguments.pop(0)
        elif part == "-H":
            name, _, value = arguments.pop(0).partition(": ")
            headers[name] = value
        elif part == "-d":
            body = arguments.pop(0)
        else:
            url = part
    return httpx.request(method, url, headers=headers, content=body, timeout=30)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[SampleRunner]:
    """A runner for a server as `callsheet up` creates it: with the demo, and without credits for ann."""
    with LiveServer(tmp_path / "callsheet.db", tmp_path, register_worker=False) as live_server:
        for definition in load(WORKFLOWS):
            live_server.engine.execute(commands.PutWorkflow(definition=definition))
        seed_demo(live_server.engine)
        live_server.engine.execute(
            commands.Adjust(tenant=TENANT, user="ann", amount=-1_000, reason="Start without credits.")
        )
        yield SampleRunner(live_server)


def demo_state(runner: SampleRunner) -> Any:
    """Return what the demo needs: its workflows, its tenant and the credits of its user."""
    operator = runner.live_server.client("operator")
    workflows = operator.get("/v1/workflows").json()["workflows"]
    names = {definition.name for definition in load(WORKFLOWS)}
    tenants = operator.get("/v1/admin/tenants").json()["tenants"]
    return (
        [workflow for workflow in workflows if workflow["name"] in names],
        [tenant for tenant in tenants if tenant["id"] == TENANT],
        operator.get(f"/v1/wallets/{USER}").json(),
    )


def test_every_sample_works_and_the_demo_stays_unchanged(
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
    assert set(OPERATIONS) - runner.used == set(), "run it in one of the chapters"
    assert demo_state(runner) == before


def test_the_samples_at_the_top_pay_for_the_first_job(runner: SampleRunner) -> None:
    first = start(OPERATIONS["top_up"])
    assert first.split("\n\n")[0].count("=") == 3
    assert ReferencePage(DOCUMENT).html().index("callsheet-data/fleet.key") < ReferencePage(DOCUMENT).html().index(
        'id="submit_job"'
    )
    assert run_curl(Template(first.split("\n\n")[1]).safe_substitute(runner.variables)).json()["balance"] == 100
    assert runner.run("submit_job")["user"] == "ann"


def test_no_sample_contains_the_id_of_an_example() -> None:
    """The ids of the examples exist on no server."""
    made_up = [name for name, operation in OPERATIONS.items() if JOB_ID in curl(*operation).partition("-d '")[0]]
    assert made_up == []
    assert {name for name in VARIABLES if name.endswith("_id")} == {"job_id", "task_id", "file_id", "key_id"}


# -- chapters


def read_routes(runner: SampleRunner) -> None:
    runner.run_all("home", "openapi", "reference", "reference_css", "reference_js", "healthz", "readyz", "metrics")
    runner.run_all("get_me", "get_ops", "get_scale_signals", "list_workflows", "get_workflow")


def wallet_routes(runner: SampleRunner) -> None:
    assert runner.run("top_up")["balance"] == 100
    runner.run_all("get_wallet", "get_ledger", "create_quote")


def submit_routes(runner: SampleRunner) -> None:
    runner.variables["JOB"] = runner.run("submit_job")["id"]
    runner.run_all("list_jobs", "get_job", "update_job", "get_input", "list_runs", "list_stages", "get_why")
    runner.variables["TASK"] = runner.run("list_tasks")["tasks"][0]["id"]
    runner.run_all("job_events", "tenant_events", "pause_job", "resume_job")


def output_routes(runner: SampleRunner) -> None:
    """The demo worker claims the job, uploads a preview and completes it."""
    engine, blobs = runner.live_server.engine, runner.live_server.blobs
    (leased,) = engine.execute(commands.Claim(worker_id="demo", kinds=("sketch",)))
    lease = leased.lease
    attempt_key = (leased.tenant, lease.job_id, lease.task_id, lease.attempt)
    blobs.put(object_keys.preview_key(*attempt_key), PICTURE)
    runner.run_all("list_attempts", "get_preview")
    blobs.put(object_keys.output_key(*attempt_key, 1), PICTURE)
    made = commands.OutputFile(1, "sketch.png", "image/png", len(PICTURE), DIGEST)
    engine.execute(commands.Complete(lease=lease, files=(made,)))
    runner.variables["FILE"] = runner.run("list_outputs")["outputs"][0]["files"][0]["id"]
    assert runner.run("get_file") == PICTURE
    grant = blobs.grant_download(
        object_keys.output_key(*attempt_key, 1), expires_in_seconds=60, name="sketch.png", media_type="image/png"
    )
    runner.variables["SIGNED"] = grant.url.rpartition("/")[2]
    assert runner.run("get_blob") == PICTURE
    runner.run_all("refund_job", "adjust_balance", "delete_job")


def cancel_routes(runner: SampleRunner) -> None:
    runner.variables["JOB"] = runner.run("submit_jobs")["results"][0]["job_id"]
    runner.run("cancel_job")
    runner.variables["JOB"] = runner.run("submit_jobs")["results"][0]["job_id"]
    (leased,) = runner.live_server.engine.execute(commands.Claim(worker_id="demo", kinds=("sketch",)))
    runner.live_server.engine.execute(commands.Fail(lease=leased.lease, message="It broke."))
    runner.run_all("retry_job", "cancel_job")


def workflow_routes(runner: SampleRunner) -> None:
    engine = runner.live_server.engine
    runner.run("put_workflow")
    poster = {"workflow": "poster", "user": "ann", "input": {"prompt": "a pier"}}
    job = runner.live_server.client("operator").post("/v1/jobs", json=poster).raise_for_status().json()
    (leased,) = engine.execute(commands.Claim(worker_id="demo", kinds=("sketch",)))
    assert leased.lease.job_id == job["id"]  # the demo worker can run the workflow of the sample
    gated = [StageSpec(name="sketch", kind="sketch", approval=True)]
    for definition in (WorkflowDefinition(name="gated", stages=gated), WorkflowDefinition(name="open", inline=True)):
        engine.execute(commands.PutWorkflow(definition=definition))
        submitted = engine.execute(commands.Submit(tenant=TENANT, user="ann", workflow=definition.name))
        runner.variables["JOB"] = submitted.job_id
        runner.run_all(*(["add_stage", "add_tasks"] if definition.inline else ["approve_stage"]))


def upload_routes(runner: SampleRunner) -> None:
    created = runner.run("create_upload")
    runner.variables["FILE"] = created["file"]["id"]
    runner.variables["SIGNED"] = created["upload"]["url"].rpartition("/")[2]
    runner.run_all("put_blob", "finish_upload", "get_file_info", "get_file")
    assert [file["id"] for file in runner.run("list_files")["files"]] == [runner.variables["FILE"]]
    runner.run("delete_file")


def admin_routes(runner: SampleRunner) -> None:
    runner.run_all("list_tenants", "put_tenant", "get_tenant", "list_keys", "create_token")
    runner.variables["KEY_ID"] = runner.run("create_key")["key"]["id"]
    runner.run_all("revoke_key", "list_audit")


def worker_routes(runner: SampleRunner) -> None:
    engine = runner.live_server.engine
    engine.execute(
        commands.PutWorkflow(
            definition=WorkflowDefinition(name="painting", stages=[StageSpec(name="draw", kind="draw")])
        )
    )
    for _ in range(3):
        engine.execute(commands.Submit(tenant=TENANT, user="ann", workflow="painting"))
    runner.variables["TOKEN"] = runner.run("register_worker")["token"]
    runner.run_all("list_workers", "get_worker")
    claim(runner)
    runner.run_all("heartbeat", "grant_files", "list_previous_outputs", "record_submission", "complete_task")
    claim(runner)
    runner.run("fail_task")
    claim(runner)
    runner.run_all("requeue_task", "update_worker")
    runner.variables["TOKEN"] = runner.run("rotate_worker")["token"]
    runner.run_all("deregister_worker", "revoke_worker")


def claim(runner: SampleRunner) -> None:
    (task,) = runner.run("claim_tasks")["tasks"]
    lease = task["lease"]
    runner.lease = {JOB_ID: lease["job_id"], TASK_ID: lease["task_id"], "the-secret-of-this-lease": lease["token"]}
