"""Runs, stages, tasks and attempts of a job over HTTP: reading them, approving stages, adding stages and tasks."""

import hashlib
import json
from typing import Any

import httpx
import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import Backoff, RetryPolicy, StageSpec, WorkflowDefinition
from tests.http.job_requests import (
    FILM,
    UNKNOWN_ID,
    claim_lease,
    complete_with_files,
    get_json,
    submit_job,
    workflow,
)
from tests.support.processes.live_server import LiveServer

# -- read


def test_runs_are_listed_oldest_first_with_their_credits(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "runs", price=4))
    live_server.engine.execute(commands.Fail(lease=claim_lease(live_server, "runs"), code="oom", message="No memory."))
    live_server.client("client").post(f"/v1/jobs/{job}/retry").raise_for_status()
    first, second = get_json(live_server, f"/v1/jobs/{job}/runs")["runs"]
    assert (first["no"], first["status"], first["price"], first["consumed"], first["refunded"]) == (
        1,
        "failed",
        4,
        0,
        4,
    )
    assert first["error"] == {"code": "oom", "message": "No memory."}
    assert (second["no"], second["status"], second["refunded"], second["error"]) == (2, "open", 0, None)


def test_stages_and_tasks_are_listed_in_order(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "film", stages=FILM))
    stages = get_json(live_server, f"/v1/jobs/{job}/stages")["stages"]
    assert [(s["no"], s["name"], s["status"], s["approval"], s["tasks_total"]) for s in stages] == [
        (1, "script", "pending", False, 1), (2, "cut", "created", True, 2),
    ]  # fmt: skip
    tasks = get_json(live_server, f"/v1/jobs/{job}/tasks")["tasks"]
    assert [(task["stage_id"], task["no"], task["kind"]) for task in tasks] == [
        (stages[0]["id"], 1, "script"), (stages[1]["id"], 1, "cut"), (stages[1]["id"], 2, "cut"),
    ]  # fmt: skip


def test_attempts_are_listed_without_their_lease_tokens(live_server: LiveServer) -> None:
    retry = RetryPolicy(on="any", backoff=Backoff(base_seconds=0, jitter=0))
    job = submit_job(live_server, workflow(live_server, "attempts", retry=retry))
    first = claim_lease(live_server, "attempts")
    live_server.engine.execute(commands.Requeue(lease=first, reason="spot notice"))
    second = claim_lease(live_server, "attempts")
    path = f"/v1/jobs/{job}/tasks/{first.task_id}/attempts"
    answer = live_server.client("viewer").get(path)
    attempts = answer.json()["attempts"]
    assert [(one["no"], one["outcome"], not one["counted"], one["worker"]) for one in attempts] == [
        (1, "requeued", True, "w1"), (2, None, False, "w1"),
    ]  # fmt: skip
    for lease in (first, second):
        assert lease.token not in answer.text
        assert hashlib.sha256(lease.token.encode()).hexdigest() not in answer.text
    assert live_server.client("user").get(path).status_code == 403


def test_a_task_of_another_job_is_not_found(live_server: LiveServer) -> None:
    name = workflow(live_server, "mixed")
    job, other = submit_job(live_server, name), submit_job(live_server, name)
    (task,) = get_json(live_server, f"/v1/jobs/{other}/tasks")["tasks"]
    for path in ("attempts", "preview"):
        answer = live_server.client("client").get(f"/v1/jobs/{job}/tasks/{task['id']}/{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "task_not_found")


# -- approve and add


def submit_waiting_for_approval(live_server: LiveServer, name: str) -> str:
    job = submit_job(live_server, workflow(live_server, name, stages=[StageSpec(name="first", kind=name), StageSpec(
        name="second", kind=f"{name}-cut", approval=True)]))  # fmt: skip
    complete_with_files(live_server, claim_lease(live_server, name))
    return job


@pytest.mark.parametrize("by", ["2", "second"])
def test_a_stage_is_approved_by_its_number_or_its_name(live_server: LiveServer, by: str) -> None:
    job = submit_waiting_for_approval(live_server, f"approve-{by}")
    body = {"approver": "bea"}
    answer = live_server.client("client").post(f"/v1/jobs/{job}/stages/{by}/approve", json=body)
    assert (answer.status_code, answer.json()["status"], answer.json()["approved_by"]) == (200, "pending", "bea")
    again = live_server.client("client").post(f"/v1/jobs/{job}/stages/{by}/approve", json={"approver": "cy"})
    assert (again.status_code, again.json()["approved_by"]) == (200, "bea")


def test_a_job_that_waits_for_approval_has_that_phase_and_is_listed_by_it(live_server: LiveServer) -> None:
    job = submit_waiting_for_approval(live_server, "awaiting")
    other = submit_job(live_server, "awaiting")
    client, user = live_server.client("client"), live_server.client("user")
    mine = {"phase": "approval", "workflow": "awaiting"}

    def list_waiting(caller: httpx.Client, **more: str) -> list[str]:
        return [one["id"] for one in caller.get("/v1/jobs", params={**mine, **more}).json()["jobs"]]

    assert (get_json(live_server, f"/v1/jobs/{job}")["phase"], get_json(live_server, f"/v1/jobs/{other}")["phase"]) == (
        "approval",
        None,
    )
    assert list_waiting(client) == list_waiting(client, user="ann") == list_waiting(user) == [job]
    assert list_waiting(client, status="queued") == list_waiting(client, user="bea") == []
    client.post(f"/v1/jobs/{job}/pause")
    assert (get_json(live_server, f"/v1/jobs/{job}")["status"], list_waiting(client)) == ("paused", [job])
    client.post(f"/v1/jobs/{job}/resume")
    client.post(f"/v1/jobs/{job}/stages/second/approve", json={"approver": "bea"})
    assert (get_json(live_server, f"/v1/jobs/{job}")["phase"], list_waiting(client), list_waiting(user)) == (
        None,
        [],
        [],
    )


def test_a_canceled_job_no_longer_waits_for_approval(live_server: LiveServer) -> None:
    job = submit_waiting_for_approval(live_server, "ended")
    ended = live_server.client("client").post(f"/v1/jobs/{job}/cancel", json={}).json()
    assert (ended["status"], ended["phase"]) == ("canceled", None)
    assert get_json(live_server, "/v1/jobs?phase=approval&workflow=ended")["jobs"] == []


def test_a_list_cannot_be_filtered_by_other_phases(live_server: LiveServer) -> None:
    answer = live_server.client("client").get("/v1/jobs", params={"phase": "scheduled"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_query")
    assert answer.json()["message"] == "phase must be approval; use status for other filters."


@pytest.mark.parametrize(
    ("stage", "body", "status", "code"),
    [
        ("2", {"approver": " "}, 422, "approver_required"), ("2", {}, 422, "invalid_body"),
        ("9", {"approver": "x"}, 404, "stage_not_found"), ("1", {"approver": "x"}, 409, "illegal_transition"),
    ],
)  # fmt: skip
def test_an_invalid_approval_is_refused(
    live_server: LiveServer, stage: str, body: dict[str, str], status: int, code: str
) -> None:
    job = submit_waiting_for_approval(live_server, "unapproved")
    answer = live_server.client("client").post(f"/v1/jobs/{job}/stages/{stage}/approve", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert get_json(live_server, f"/v1/jobs/{job}/stages")["stages"][1]["status"] == "waiting"


def test_tasks_are_added_to_an_open_stage_with_their_own_inputs(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "grown"))
    answer = live_server.client("client").post(
        f"/v1/jobs/{job}/stages/draw/tasks", json={"inputs": [{"n": 2}, {"n": 3}]}
    )
    added = answer.json()
    assert (answer.status_code, added["stage_no"], added["first_task_no"], len(added["task_ids"])) == (201, 1, 2, 2)
    leased = live_server.engine.execute(commands.Claim(worker_id="w", kinds=("grown",), count=9))
    assert [one.input for one in leased][1:] == ['{"n":2}', '{"n":3}']


def test_a_stage_is_added_after_the_others(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "longer", inline=True))
    answer = live_server.client("client").post(
        f"/v1/jobs/{job}/stages", json={"stage": {"name": "post", "kind": "post", "tasks": 2}}
    )
    assert (answer.status_code, answer.json()["stage_no"], len(answer.json()["task_ids"])) == (201, 2, 2)
    assert [stage["name"] for stage in get_json(live_server, f"/v1/jobs/{job}/stages")["stages"]] == ["draw", "post"]


def test_nothing_is_added_to_an_ended_job(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "over"))
    complete_with_files(live_server, claim_lease(live_server, "over"))
    client = live_server.client("client")
    tasks = client.post(f"/v1/jobs/{job}/stages/1/tasks", json={"inputs": [1]})
    stage = client.post(f"/v1/jobs/{job}/stages", json={"stage": {"name": "post", "kind": "post"}})
    for answer in (tasks, stage):
        assert (answer.status_code, answer.json()["code"] in {"job_ended", "stage_ended"}) == (409, True)
    bad = client.post(f"/v1/jobs/{job}/stages", json={"stage": {"name": "post", "kind": "post", "colour": 1}})
    assert (bad.status_code, bad.json()["code"]) == (422, "invalid_body")


# -- access


PARTS = ("runs", "stages", "tasks", "outputs", "events", f"tasks/{UNKNOWN_ID}/attempts", f"tasks/{UNKNOWN_ID}/preview")


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_job_of_another_tenant_look_like_those_of_an_unknown_job(live_server: LiveServer, part: str) -> None:
    theirs = submit_job(live_server, "sketch", "other client")
    seen = [live_server.client("client").get(f"/v1/jobs/{job}/{part}") for job in (theirs, UNKNOWN_ID)]
    assert [(answer.status_code, answer.json()["code"]) for answer in seen] == [(404, "job_not_found")] * 2
    texts = [answer.text.replace(job, "…") for answer, job in zip(seen, (theirs, UNKNOWN_ID), strict=True)]
    bodies = [json.loads(text) | {"request_id": ""} for text in texts]
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize(
    ("path", "body"),
    [("stages/1/approve", {"approver": "x"}), ("stages/1/tasks", {"inputs": [1]}),
     ("stages", {"stage": {"name": "a", "kind": "a"}})],
)  # fmt: skip
def test_other_tenants_and_viewers_cannot_change_a_job(live_server: LiveServer, path: str, body: Any) -> None:
    theirs = submit_job(live_server, "sketch", "other client")
    before = live_server.client("other client").get(f"/v1/jobs/{theirs}").content
    answer = live_server.client("client").post(f"/v1/jobs/{theirs}/{path}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")
    for role in ("viewer", "worker", "user", "other viewer"):
        assert live_server.client(role).post(f"/v1/jobs/{theirs}/{path}", json=body).status_code == 403
    assert live_server.client("other client").get(f"/v1/jobs/{theirs}").content == before


def test_the_number_of_a_stage_has_precedence_over_the_name_of_another(live_server: LiveServer) -> None:
    stages = [StageSpec(name="2", kind="numbered", approval=True), StageSpec(name="x", kind="numbered", approval=True)]
    live_server.engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name="numbered", stages=stages)))
    job = live_server.submit(workflow="numbered")
    approved = live_server.client("client").post(f"/v1/jobs/{job['id']}/stages/1/approve", json={"approver": "eve"})
    assert (approved.json()["no"], approved.json()["name"]) == (1, "2")
    other = live_server.client("client").post(f"/v1/jobs/{job['id']}/stages/2/approve", json={"approver": "eve"})
    assert other.status_code == 409, "stage 2 does not wait yet; the path does not mean the stage named 2"


def test_only_its_own_tenant_and_user_read_the_input_of_a_job(live_server: LiveServer) -> None:
    job_input = {"prompt": "a lighthouse", "large": 2**60, "deep": [{"a": None}]}
    job = live_server.submit(input=job_input)["id"]
    assert live_server.client("user").get(f"/v1/jobs/{job}/input").json() == {"input": job_input}
    assert live_server.client("other client").get(f"/v1/jobs/{job}/input").json()["code"] == "job_not_found"
    live_server.work()
    live_server.client("client").delete(f"/v1/jobs/{job}").raise_for_status()
    assert live_server.client("client").get(f"/v1/jobs/{job}/input").status_code == 404


def test_tasks_are_listed_in_order_page_by_page(live_server: LiveServer) -> None:
    stages = [StageSpec(name="plan", kind="plan", tasks=3), StageSpec(name="draw", kind="paged", tasks=4)]
    live_server.engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name="paged", stages=stages)))
    job = live_server.submit(workflow="paged")["id"]
    client, path = live_server.client("viewer"), f"/v1/jobs/{job}/tasks"
    whole = client.get(path).json()
    assert (len(whole["tasks"]), whole["next"]) == (7, None)
    page = client.get(path, params={"limit": 2}).json()
    seen = [page["tasks"]]
    while page["next"]:
        page = client.get(path, params={"limit": 2, "cursor": page["next"]}).json()
        seen.append(page["tasks"])
    assert [len(tasks) for tasks in seen] == [2, 2, 2, 1]
    assert [task for tasks in seen for task in tasks] == whole["tasks"]
    another = live_server.submit(workflow="paged")["id"]
    first = client.get(path, params={"limit": 2}).json()["next"]
    foreign = client.get(f"/v1/jobs/{another}/tasks", params={"cursor": first})
    assert (foreign.status_code, foreign.json()["code"]) == (422, "invalid_cursor")
