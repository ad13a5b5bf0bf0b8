"""Outputs, files and previews of a job over HTTP."""

import hashlib
from typing import Any

from callsheet.blobs import object_keys
from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec
from tests.http.job_requests import (
    PNG,
    UNKNOWN_ID,
    claim_lease,
    complete_with_files,
    get_json,
    submit_job,
    workflow,
)
from tests.support.processes.live_server import TENANT, LiveServer


def read_pages(live_server: LiveServer, job: str, **query: Any) -> list[list[tuple[int, int]]]:
    """Read outputs page by page, and return each page's stages and tasks."""
    pages, client = [], live_server.client("client")
    while True:
        answer = client.get(f"/v1/jobs/{job}/outputs", params=query).raise_for_status().json()
        pages.append([(one["stage_no"], one["task_no"]) for one in answer["outputs"]])
        if answer["next"] is None:
            return pages
        query["cursor"] = answer["next"]


def test_outputs_are_paginated_in_order_without_gaps_or_duplicates(live_server: LiveServer) -> None:
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


def test_a_page_of_large_outputs_is_limited_in_size(live_server: LiveServer) -> None:
    stages = [StageSpec(name="draw", kind="large", tasks=6)]
    job = submit_job(live_server, workflow(live_server, "large", stages=stages))
    for _ in range(6):
        complete_with_files(live_server, claim_lease(live_server, "large"), output="x" * 1_000_000)
    assert read_pages(live_server, job) == [[(1, 1), (1, 2), (1, 3), (1, 4)], [(1, 5), (1, 6)]]


def test_outputs_are_listed_with_their_files_in_the_order_of_the_tasks(live_server: LiveServer) -> None:
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


def test_a_file_is_downloaded_unchanged_and_never_executed(live_server: LiveServer) -> None:
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


def test_a_file_of_another_tenant_or_user_is_not_found(live_server: LiveServer) -> None:
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


def test_a_file_without_bytes_or_with_an_unknown_id_is_not_found(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "lost"))
    lease = claim_lease(live_server, "lost")
    complete_with_files(live_server, lease, ("p.png", "image/png", PNG))
    url = get_json(live_server, f"/v1/jobs/{job}/outputs")["outputs"][0]["files"][0]["url"]
    live_server.blobs.path(object_keys.output_key(TENANT, job, lease.task_id, 1, 1)).unlink()
    for path in (url, f"/v1/files/{UNKNOWN_ID}", "/v1/files/..%2F..%2Fsecret.key"):
        answer = live_server.client("client").get(path)
        assert (path, answer.status_code, answer.json()["code"]) == (path, 404, "file_not_found")


def test_the_files_of_a_deleted_job_are_deleted(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "deleted"))
    lease = claim_lease(live_server, "deleted")
    complete_with_files(live_server, lease, ("p.png", "image/png", PNG))
    url = get_json(live_server, f"/v1/jobs/{job}/outputs")["outputs"][0]["files"][0]["url"]
    path = live_server.blobs.path(object_keys.output_key(TENANT, job, lease.task_id, 1, 1))
    assert path.exists()
    live_server.client("client").delete(f"/v1/jobs/{job}").raise_for_status()
    assert live_server.client("client").get(url).status_code == 404
    assert not path.exists()


def test_a_preview_is_the_latest_image_of_the_running_attempt(live_server: LiveServer) -> None:
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
    assert live_server.client("client").get(path).status_code == 404, "the next attempt has no preview yet"
