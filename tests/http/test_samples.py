"""The samples of the reference, pasted into a fresh house: each does what it says, and none does harm."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import httpx
import pytest

from callsheet.blobs import keys
from callsheet.catalog import load
from callsheet.core import commands
from callsheet.core.recipe import Recipe, StageSpec
from callsheet.demo.furnish import USER, WORKFLOWS, furnish
from callsheet.http.curl import VARIABLES, curl, start
from callsheet.http.openapi import document
from callsheet.http.page import Page
from callsheet.http.word import JOB_ID, TASK_ID
from tests.support.served import TENANT, Served

DOCUMENT = document()
OPERATIONS = {
    operation["operationId"]: (method, path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
PICTURE = b"\x89PNG\r\n\x1a\n picture"
DIGEST = "0" * 64


class Reader:
    """Pastes samples as they are; what an answer says goes into the variables of those that come later."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.variables = {"URL": served.url, "KEY": served.keys["operator"], "FLEET": served.keys["worker"]}
        self.lease: dict[str, str] = {}
        """What stands in the samples of a worker, and what its lease says instead."""
        self.pasted: set[str] = set()

    def paste(self, name: str) -> Any:
        """Send the sample of an operation: it is done, as the description says."""
        operation = OPERATIONS[name]
        text = Template(curl(*operation)).safe_substitute(self.variables)
        for shown, mine in self.lease.items():
            text = text.replace(shown, mine)
        answer = sent(text)
        assert answer.status_code < 400, f"{text}\n{answer.text}"
        assert str(answer.status_code) in operation[2]["responses"], name
        self.pasted.add(name)
        return answer.json() if answer.content[:1] == b"{" else answer.content

    def paste_all(self, *names: str) -> None:
        for name in names:
            self.paste(name)


def sent(text: str) -> httpx.Response:
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
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader at a house as `callsheet up` makes it: with the demonstration, and nothing for ann."""
    with Served(tmp_path / "callsheet.db", tmp_path, machine=False) as served:
        for recipe in load(WORKFLOWS):
            served.engine.execute(commands.PutWorkflow(recipe=recipe))
        furnish(served.engine)
        served.engine.execute(commands.Adjust(tenant=TENANT, user="ann", amount=-1_000, reason="A fresh house."))
        yield Reader(served)


def house_of(reader: Reader) -> Any:
    """What the demonstration needs: its workflows, its tenant, its user's credits."""
    operator = reader.served.client("operator")
    workflows = operator.get("/v1/workflows").json()["workflows"]
    names = {recipe.name for recipe in load(WORKFLOWS)}
    tenants = operator.get("/v1/admin/tenants").json()["tenants"]
    return (
        [workflow for workflow in workflows if workflow["name"] in names],
        [tenant for tenant in tenants if tenant["id"] == TENANT],
        operator.get(f"/v1/wallets/{USER}").json(),
    )


def test_every_sample_works_when_a_person_pastes_them_and_the_demonstration_stays_as_it_was(reader: Reader) -> None:
    before = house_of(reader)
    for chapter in (looking, paying, asking, making, changing_ones_mind, building, bringing, letting_in, working):
        chapter(reader)
    assert set(OPERATIONS) - reader.pasted == set(), "paste it too, where a person would"
    assert house_of(reader) == before


def test_what_is_pasted_first_stands_at_the_top_and_pays_for_the_first_job(reader: Reader) -> None:
    first = start(OPERATIONS["top_up"])
    assert first.split("\n\n")[0].count("=") == 3
    assert Page(DOCUMENT).html().index("callsheet-data/fleet.key") < Page(DOCUMENT).html().index('id="submit_job"')
    assert sent(Template(first.split("\n\n")[1]).safe_substitute(reader.variables)).json()["balance"] == 100
    assert reader.paste("submit_job")["user"] == "ann"


def test_a_sample_asks_for_nothing_that_only_its_example_has() -> None:
    """An id of an example is in nobody's house."""
    made_up = [name for name, operation in OPERATIONS.items() if JOB_ID in curl(*operation).partition("-d '")[0]]
    assert made_up == []
    assert {name for name in VARIABLES if name.endswith("_id")} == {"job_id", "task_id", "file_id", "key_id"}


# -- what a person does, chapter by chapter


def looking(reader: Reader) -> None:
    reader.paste_all("home", "openapi", "reference", "reference_css", "reference_js", "healthz", "readyz", "metrics")
    reader.paste_all("me", "ops", "scale", "list_workflows", "get_workflow")


def paying(reader: Reader) -> None:
    assert reader.paste("top_up")["balance"] == 100
    reader.paste_all("get_wallet", "get_ledger", "make_quote")


def asking(reader: Reader) -> None:
    reader.variables["JOB"] = reader.paste("submit_job")["id"]
    reader.paste_all("list_jobs", "get_job", "change_job", "get_input", "list_runs", "list_stages", "get_why")
    reader.variables["TASK"] = reader.paste("list_tasks")["tasks"][0]["id"]
    reader.paste_all("job_events", "tenant_events", "pause_job", "resume_job")


def making(reader: Reader) -> None:
    """The demonstration's worker takes the job, shows it and ends it."""
    engine, blobs = reader.served.engine, reader.served.blobs
    (leased,) = engine.execute(commands.Claim(worker_id="demo", kinds=("sketch",)))
    lease = leased.lease
    place = (leased.tenant, lease.job_id, lease.task_id, lease.attempt)
    blobs.put(keys.preview(*place), PICTURE)
    reader.paste_all("list_attempts", "get_preview")
    blobs.put(keys.made(*place, 1), PICTURE)
    made = commands.Made(1, "sketch.png", "image/png", len(PICTURE), DIGEST)
    engine.execute(commands.Complete(lease=lease, files=(made,)))
    reader.variables["FILE"] = reader.paste("list_outputs")["outputs"][0]["files"][0]["id"]
    assert reader.paste("get_file") == PICTURE
    grant = blobs.grant_get(keys.made(*place, 1), seconds=60, name="sketch.png", media_type="image/png")
    reader.variables["SIGNED"] = grant.url.rpartition("/")[2]
    assert reader.paste("get_blob") == PICTURE
    reader.paste_all("refund_job", "adjust", "delete_job")


def changing_ones_mind(reader: Reader) -> None:
    reader.variables["JOB"] = reader.paste("submit_jobs")["results"][0]["job_id"]
    reader.paste("cancel_job")
    reader.variables["JOB"] = reader.paste("submit_jobs")["results"][0]["job_id"]
    (leased,) = reader.served.engine.execute(commands.Claim(worker_id="demo", kinds=("sketch",)))
    reader.served.engine.execute(commands.Fail(lease=leased.lease, message="It broke."))
    reader.paste_all("retry_job", "cancel_job")


def building(reader: Reader) -> None:
    engine = reader.served.engine
    reader.paste("put_workflow")
    poster = {"workflow": "poster", "user": "ann", "input": {"prompt": "a pier"}}
    job = reader.served.client("operator").post("/v1/jobs", json=poster).raise_for_status().json()
    (leased,) = engine.execute(commands.Claim(worker_id="demo", kinds=("sketch",)))
    assert leased.lease.job_id == job["id"]  # the demonstration's worker does what the sample makes
    gated = [StageSpec(name="sketch", kind="sketch", gate=True)]
    for recipe in (Recipe(name="gated", stages=gated), Recipe(name="open", inline=True)):
        engine.execute(commands.PutWorkflow(recipe=recipe))
        submitted = engine.execute(commands.Submit(tenant=TENANT, user="ann", workflow=recipe.name))
        reader.variables["JOB"] = submitted.job_id
        reader.paste_all(*(["add_stage", "add_tasks"] if recipe.inline else ["approve_stage"]))


def bringing(reader: Reader) -> None:
    announced = reader.paste("announce_file")
    reader.variables["FILE"] = announced["file"]["id"]
    reader.variables["SIGNED"] = announced["upload"]["url"].rpartition("/")[2]
    reader.paste_all("put_blob", "finish_file", "get_file_info", "get_file")
    assert [file["id"] for file in reader.paste("list_files")["files"]] == [reader.variables["FILE"]]
    reader.paste("delete_file")


def letting_in(reader: Reader) -> None:
    reader.paste_all("list_tenants", "put_tenant", "list_keys", "create_token")
    reader.variables["KEY_ID"] = reader.paste("create_key")["key"]["id"]
    reader.paste_all("revoke_key", "list_audit")


def working(reader: Reader) -> None:
    engine = reader.served.engine
    engine.execute(commands.PutWorkflow(recipe=Recipe(name="painting", stages=[StageSpec(name="draw", kind="draw")])))
    for _ in range(3):
        engine.execute(commands.Submit(tenant=TENANT, user="ann", workflow="painting"))
    reader.variables["TOKEN"] = reader.paste("register_worker")["token"]
    reader.paste_all("list_workers", "get_worker")
    claim(reader)
    reader.paste_all("beat", "grant_files", "list_earlier", "note_submitted", "complete_task")
    claim(reader)
    reader.paste("fail_task")
    claim(reader)
    reader.paste_all("requeue_task", "change_worker")
    reader.variables["TOKEN"] = reader.paste("rotate_worker")["token"]
    reader.paste_all("deregister_worker", "revoke_worker")


def claim(reader: Reader) -> None:
    (task,) = reader.paste("claim_tasks")["tasks"]
    lease = task["lease"]
    reader.lease = {JOB_ID: lease["job_id"], TASK_ID: lease["task_id"], "the-secret-of-this-lease": lease["token"]}
