"""The parts of a job over HTTP: runs, stages, tasks, tries, outputs, files and previews; approving and adding."""

import hashlib
import json
from typing import Any

import httpx
import pytest

from callsheet.blobs import object_keys
from callsheet.core.model import commands
from callsheet.core.model.commands import Lease, OutputFile
from callsheet.core.model.workflow_definition import Backoff, RetryPolicy, StageSpec, WorkflowDefinition
from tests.support.processes.live_server import TENANT, LiveServer

PNG = b"\x89PNG\r\n\x1a\n and then some pixels"
FILM = [StageSpec(name="script", kind="script"), StageSpec(name="cut", kind="cut", approval=True, tasks=2)]
NOBODY = "00000000-0000-7000-8000-000000000000"


def workflow(live_server: LiveServer, name: str, **fields: Any) -> str:
    """Store a free workflow of one task, of a kind that has its name."""
    fields.setdefault("stages", [StageSpec(name="draw", kind=name)])
    live_server.engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name=name, **fields)))
    return name


def submit_job(live_server: LiveServer, name: str, role: str = "client", **more: Any) -> str:
    return str(live_server.submit(role, workflow=name, **more)["id"])


def claim_lease(live_server: LiveServer, kind: str) -> Lease:
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=(kind,)))
    lease: Lease = leased.lease
    return lease


def get_json(live_server: LiveServer, path: str, role: str = "client") -> Any:
    return live_server.client(role).get(path).raise_for_status().json()


def complete_with_files(
    live_server: LiveServer, lease: Lease, *files: tuple[str, str, bytes], output: Any = None
) -> None:
    """Store bytes where a worker would, and complete the task with them."""
    made = []
    for no, (name, media_type, body) in enumerate(files, 1):
        live_server.blobs.put(object_keys.output_key(TENANT, lease.job_id, lease.task_id, lease.attempt, no), body)
        made.append(OutputFile(no, name, media_type, len(body), hashlib.sha256(body).hexdigest()))
    live_server.engine.execute(commands.Complete(lease=lease, output=output, files=tuple(made)))


# -- looking


def test_runs_show_their_money_oldest_first(live_server: LiveServer) -> None:
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


def test_stages_and_tasks_come_in_order(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "film", stages=FILM))
    stages = get_json(live_server, f"/v1/jobs/{job}/stages")["stages"]
    assert [(s["no"], s["name"], s["status"], s["approval"], s["tasks_total"]) for s in stages] == [
        (1, "script", "pending", False, 1), (2, "cut", "created", True, 2),
    ]  # fmt: skip
    tasks = get_json(live_server, f"/v1/jobs/{job}/tasks")["tasks"]
    assert [(task["stage_id"], task["no"], task["kind"]) for task in tasks] == [
        (stages[0]["id"], 1, "script"), (stages[1]["id"], 1, "cut"), (stages[1]["id"], 2, "cut"),
    ]  # fmt: skip


def test_attempts_are_kept_and_shown_without_their_tokens(live_server: LiveServer) -> None:
    retry = RetryPolicy(on="any", backoff=Backoff(base_seconds=0, jitter=0))
    job = submit_job(live_server, workflow(live_server, "tries", retry=retry))
    first = claim_lease(live_server, "tries")
    live_server.engine.execute(commands.Requeue(lease=first, reason="spot notice"))
    second = claim_lease(live_server, "tries")
    path = f"/v1/jobs/{job}/tasks/{first.task_id}/attempts"
    answer = live_server.client("viewer").get(path)
    tries = answer.json()["attempts"]
    assert [(one["no"], one["outcome"], not one["counted"], one["worker"]) for one in tries] == [
        (1, "requeued", True, "w1"), (2, None, False, "w1"),
    ]  # fmt: skip
    for lease in (first, second):
        assert lease.token not in answer.text
        assert hashlib.sha256(lease.token.encode()).hexdigest() not in answer.text
    assert live_server.client("user").get(path).status_code == 403


def test_a_task_of_another_job_is_no_task_of_this_one(live_server: LiveServer) -> None:
    name = workflow(live_server, "mixed")
    job, other = submit_job(live_server, name), submit_job(live_server, name)
    (task,) = get_json(live_server, f"/v1/jobs/{other}/tasks")["tasks"]
    for path in ("attempts", "preview"):
        answer = live_server.client("client").get(f"/v1/jobs/{job}/tasks/{task['id']}/{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "task_not_found")


# -- outputs and files


def read_pages(live_server: LiveServer, job: str, **query: Any) -> list[list[tuple[int, int]]]:
    """Read outputs page by page, and return each page's stages and tasks."""
    pages, client = [], live_server.client("client")
    while True:
        answer = client.get(f"/v1/jobs/{job}/outputs", params=query).raise_for_status().json()
        pages.append([(one["stage_no"], one["task_no"]) for one in answer["outputs"]])
        if answer["next"] is None:
            return pages
        query["cursor"] = answer["next"]


def test_outputs_come_in_pages_that_together_hold_each_once_and_in_order(live_server: LiveServer) -> None:
    stages = [StageSpec(name="draw", kind="paged", tasks=3), StageSpec(name="ink", kind="paged", tasks=2)]
    job, other = (
        submit_job(live_server, workflow(live_server, "paged", stages=stages)),
        submit_job(live_server, "paged"),
    )
    assert read_pages(live_server, job) == [[]]
    for _ in range(8):
        complete_with_files(
            live_server, claim_lease(live_server, "paged"), ("a.png", "image/png", PNG), output={"n": 1}
        )
    whole = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    assert [len(page) for page in read_pages(live_server, job, limit=2)] == [2, 2, 1]
    for limit in (1, 2, 4, 5, 50):
        assert [one for page in read_pages(live_server, job, limit=limit) for one in page] == whole
    client = live_server.client("client")
    cursor = client.get(f"/v1/jobs/{job}/outputs", params={"limit": 1}).json()["next"]
    for path, wrong in ((job, cursor[:-2]), (other, cursor)):
        answer = client.get(f"/v1/jobs/{path}/outputs", params={"cursor": wrong})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_cursor")
    assert client.get(f"/v1/jobs/{job}/outputs", params={"limit": 0}).json()["code"] == "invalid_query"


def test_a_page_of_large_outputs_ends_before_it_is_too_large(live_server: LiveServer) -> None:
    stages = [StageSpec(name="draw", kind="large", tasks=6)]
    job = submit_job(live_server, workflow(live_server, "large", stages=stages))
    for _ in range(6):
        complete_with_files(live_server, claim_lease(live_server, "large"), output="x" * 1_000_000)
    assert read_pages(live_server, job) == [[(1, 1), (1, 2), (1, 3), (1, 4)], [(1, 5), (1, 6)]]


def test_outputs_come_with_their_files_in_the_order_of_the_tasks(live_server: LiveServer) -> None:
    job = submit_job(
        live_server, workflow(live_server, "outputs", stages=[StageSpec(name="draw", kind="outputs", tasks=2)])
    )
    complete_with_files(
        live_server,
        claim_lease(live_server, "outputs"),
        ("a.png", "image/png", PNG),
        ("b.bin", "x/y", b"12"),
        output={"n": 1},
    )
    assert [one["task_no"] for one in get_json(live_server, f"/v1/jobs/{job}/outputs")["outputs"]] == [1]
    complete_with_files(live_server, claim_lease(live_server, "outputs"), output=[2])
    outputs = get_json(live_server, f"/v1/jobs/{job}/outputs")["outputs"]
    assert [(one["stage"], one["stage_no"], one["task_no"], one["output"]) for one in outputs] == [
        ("draw", 1, 1, {"n": 1}), ("draw", 1, 2, [2]),
    ]  # fmt: skip
    assert [(file["name"], file["bytes"], file["media_type"]) for file in outputs[0]["files"]] == [
        ("a.png", len(PNG), "image/png"), ("b.bin", 2, "x/y"),
    ]  # fmt: skip
    assert outputs[1]["files"] == []


def test_a_file_is_downloaded_as_it_was_made_and_never_run(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "download"))
    page = b"<script>alert(1)</script>"
    complete_with_files(
        live_server,
        claim_lease(live_server, "download"),
        ("p.png", "image/png", PNG),
        ("x <y>é.html", "text/html", page),
    )
    picture, html = get_json(live_server, f"/v1/jobs/{job}/outputs")["outputs"][0]["files"]
    shown = live_server.client("client").get(picture["url"])
    assert (shown.content, shown.headers["content-type"]) == (PNG, "image/png")
    assert shown.headers["etag"] == f'"{hashlib.sha256(PNG).hexdigest()}"'
    assert shown.headers["content-disposition"] == 'inline; filename="p.png"'
    saved = live_server.client("client").get(html["url"])
    assert (saved.content, saved.headers["content-type"]) == (page, "application/octet-stream")
    assert saved.headers["content-disposition"].startswith('attachment; filename="x')
    for answer in (shown, saved):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]


def test_a_file_is_its_own_tenants_and_users(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "private"), user="pat")
    complete_with_files(live_server, claim_lease(live_server, "private"), ("p.png", "image/png", PNG))
    url = get_json(live_server, f"/v1/jobs/{job}/outputs")["outputs"][0]["files"][0]["url"]
    assert live_server.client("client").get(url).status_code == 200
    for role in ("other client", "other admin", "user"):
        answer = live_server.client(role).get(url)
        assert (role, answer.status_code) == (role, 404)
        assert answer.json()["code"] in {"file_not_found", "job_not_found"}
        assert job not in answer.text
    assert live_server.client(None).get(url).status_code == 401
    assert live_server.client("worker").get(url).status_code == 403


def test_a_file_whose_bytes_are_gone_or_that_never_was_is_not_found(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "lost"))
    lease = claim_lease(live_server, "lost")
    complete_with_files(live_server, lease, ("p.png", "image/png", PNG))
    url = get_json(live_server, f"/v1/jobs/{job}/outputs")["outputs"][0]["files"][0]["url"]
    live_server.blobs.path(object_keys.output_key(TENANT, job, lease.task_id, 1, 1)).unlink()
    for path in (url, f"/v1/files/{NOBODY}", "/v1/files/..%2F..%2Fsecret.key"):
        answer = live_server.client("client").get(path)
        assert (path, answer.status_code, answer.json()["code"]) == (path, 404, "file_not_found")


def test_a_deleted_jobs_files_are_gone(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "deleted"))
    lease = claim_lease(live_server, "deleted")
    complete_with_files(live_server, lease, ("p.png", "image/png", PNG))
    url = get_json(live_server, f"/v1/jobs/{job}/outputs")["outputs"][0]["files"][0]["url"]
    path = live_server.blobs.path(object_keys.output_key(TENANT, job, lease.task_id, 1, 1))
    assert path.exists()
    live_server.client("client").delete(f"/v1/jobs/{job}").raise_for_status()
    assert live_server.client("client").get(url).status_code == 404
    assert not path.exists()


def test_a_preview_is_the_newest_picture_of_the_running_attempt(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "preview"))
    lease = claim_lease(live_server, "preview")
    path = f"/v1/jobs/{job}/tasks/{lease.task_id}/preview"
    none = live_server.client("client").get(path)
    assert (none.status_code, none.json()["code"]) == (404, "preview_not_found")
    for body in (b"one", PNG):
        live_server.blobs.put(object_keys.preview_key(TENANT, job, lease.task_id, lease.attempt), body, overwrite=True)
    shown = live_server.client("user").get(path)
    assert (shown.content, shown.headers["content-type"]) == (PNG, "image/png")
    live_server.engine.execute(commands.Requeue(lease=lease, reason="spot"))
    claim_lease(live_server, "preview")
    assert live_server.client("client").get(path).status_code == 404, "the next try has made none yet"


# -- approving and adding


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


def test_a_job_that_waits_for_approval_says_so_and_is_found_by_it(live_server: LiveServer) -> None:
    # R303
    job = submit_waiting_for_approval(live_server, "uploading")
    other = submit_job(live_server, "uploading")
    client, user = live_server.client("client"), live_server.client("user")
    mine = {"phase": "approval", "workflow": "uploading"}

    def listed(caller: httpx.Client, **more: str) -> list[str]:
        return [one["id"] for one in caller.get("/v1/jobs", params={**mine, **more}).json()["jobs"]]

    assert (get_json(live_server, f"/v1/jobs/{job}")["phase"], get_json(live_server, f"/v1/jobs/{other}")["phase"]) == (
        "approval",
        None,
    )
    assert listed(client) == listed(client, user="ann") == listed(user) == [job]
    assert listed(client, status="queued") == listed(client, user="bea") == []
    client.post(f"/v1/jobs/{job}/pause")
    assert (get_json(live_server, f"/v1/jobs/{job}")["status"], listed(client)) == ("paused", [job])
    client.post(f"/v1/jobs/{job}/resume")
    client.post(f"/v1/jobs/{job}/stages/second/approve", json={"approver": "bea"})
    assert (get_json(live_server, f"/v1/jobs/{job}")["phase"], listed(client), listed(user)) == (None, [], [])


def test_a_job_that_ends_while_it_waits_waits_no_more(live_server: LiveServer) -> None:
    job = submit_waiting_for_approval(live_server, "ended")
    ended = live_server.client("client").post(f"/v1/jobs/{job}/cancel", json={}).json()
    assert (ended["status"], ended["phase"]) == ("canceled", None)
    assert get_json(live_server, "/v1/jobs?phase=approval&workflow=ended")["jobs"] == []


def test_a_phase_that_nobody_can_ask_for_is_refused(live_server: LiveServer) -> None:
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
def test_an_approval_that_cannot_be_is_refused(
    live_server: LiveServer, stage: str, body: dict[str, str], status: int, code: str
) -> None:
    job = submit_waiting_for_approval(live_server, "unapproved")
    answer = live_server.client("client").post(f"/v1/jobs/{job}/stages/{stage}/approve", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert get_json(live_server, f"/v1/jobs/{job}/stages")["stages"][1]["status"] == "waiting"


def test_tasks_are_added_to_an_open_stage_with_inputs_of_their_own(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "grown"))
    answer = live_server.client("client").post(
        f"/v1/jobs/{job}/stages/draw/tasks", json={"inputs": [{"n": 2}, {"n": 3}]}
    )
    added = answer.json()
    assert (answer.status_code, added["stage_no"], added["first_task_no"], len(added["task_ids"])) == (201, 1, 2, 2)
    leased = live_server.engine.execute(commands.Claim(worker_id="w", kinds=("grown",), count=9))
    assert [one.input for one in leased][1:] == ['{"n":2}', '{"n":3}']


def test_a_stage_is_added_behind_the_others(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "longer", inline=True))
    answer = live_server.client("client").post(
        f"/v1/jobs/{job}/stages", json={"stage": {"name": "post", "kind": "post", "tasks": 2}}
    )
    assert (answer.status_code, answer.json()["stage_no"], len(answer.json()["task_ids"])) == (201, 2, 2)
    assert [stage["name"] for stage in get_json(live_server, f"/v1/jobs/{job}/stages")["stages"]] == ["draw", "post"]


def test_nothing_is_added_to_what_has_ended(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "over"))
    complete_with_files(live_server, claim_lease(live_server, "over"))
    client = live_server.client("client")
    tasks = client.post(f"/v1/jobs/{job}/stages/1/tasks", json={"inputs": [1]})
    stage = client.post(f"/v1/jobs/{job}/stages", json={"stage": {"name": "post", "kind": "post"}})
    for answer in (tasks, stage):
        assert (answer.status_code, answer.json()["code"] in {"job_ended", "stage_ended"}) == (409, True)
    bad = client.post(f"/v1/jobs/{job}/stages", json={"stage": {"name": "post", "kind": "post", "colour": 1}})
    assert (bad.status_code, bad.json()["code"]) == (422, "invalid_body")


# -- whose


PARTS = ("runs", "stages", "tasks", "outputs", "events", f"tasks/{NOBODY}/attempts", f"tasks/{NOBODY}/preview")


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_foreign_job_look_as_absent_as_those_of_none(live_server: LiveServer, part: str) -> None:
    theirs = submit_job(live_server, "sketch", "other client")
    seen = [live_server.client("client").get(f"/v1/jobs/{job}/{part}") for job in (theirs, NOBODY)]
    assert [(answer.status_code, answer.json()["code"]) for answer in seen] == [(404, "job_not_found")] * 2
    texts = [answer.text.replace(job, "…") for answer, job in zip(seen, (theirs, NOBODY), strict=True)]
    bodies = [json.loads(text) | {"request_id": ""} for text in texts]
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize(
    ("path", "body"),
    [("stages/1/approve", {"approver": "x"}), ("stages/1/tasks", {"inputs": [1]}),
     ("stages", {"stage": {"name": "a", "kind": "a"}})],
)  # fmt: skip
def test_nobody_changes_a_foreign_job_and_viewers_change_none(live_server: LiveServer, path: str, body: Any) -> None:
    theirs = submit_job(live_server, "sketch", "other client")
    before = live_server.client("other client").get(f"/v1/jobs/{theirs}").content
    answer = live_server.client("client").post(f"/v1/jobs/{theirs}/{path}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")
    for role in ("viewer", "worker", "user", "other viewer"):
        assert live_server.client(role).post(f"/v1/jobs/{theirs}/{path}", json=body).status_code == 403
    assert live_server.client("other client").get(f"/v1/jobs/{theirs}").content == before


def test_a_stages_number_goes_before_another_ones_name(live_server: LiveServer) -> None:
    stages = [StageSpec(name="2", kind="numbered", approval=True), StageSpec(name="x", kind="numbered", approval=True)]
    live_server.engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name="numbered", stages=stages)))
    job = live_server.submit(workflow="numbered")
    approved = live_server.client("client").post(f"/v1/jobs/{job['id']}/stages/1/approve", json={"approver": "eve"})
    assert (approved.json()["no"], approved.json()["name"]) == (1, "2")
    other = live_server.client("client").post(f"/v1/jobs/{job['id']}/stages/2/approve", json={"approver": "eve"})
    assert other.status_code == 409, "stage 2 does not wait yet; the stage named 2 is not meant"


def test_a_job_s_input_can_be_read_back_by_its_own_and_nobody_else(live_server: LiveServer) -> None:
    asked = {"prompt": "a lighthouse", "large": 2**60, "deep": [{"a": None}]}
    job = live_server.submit(input=asked)["id"]
    assert live_server.client("user").get(f"/v1/jobs/{job}/input").json() == {"input": asked}
    assert live_server.client("other client").get(f"/v1/jobs/{job}/input").json()["code"] == "job_not_found"
    live_server.work()
    live_server.client("client").delete(f"/v1/jobs/{job}").raise_for_status()
    assert live_server.client("client").get(f"/v1/jobs/{job}/input").status_code == 404


def test_tasks_come_page_by_page_in_order(live_server: LiveServer) -> None:
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
