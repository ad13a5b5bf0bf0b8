"""Workflows with ComfyUI graphs over HTTP: who can read a graph, and which graphs and inputs are refused."""

import hashlib
from typing import Any

import httpx
import pytest

from callsheet.dispatch import task_payloads
from tests.http.upload_requests import upload_file
from tests.http.worker_sandbox import HttpWorker
from tests.support import comfyui_graphs
from tests.support.processes.live_server import LiveServer

SECRET = "canary-model.safetensors"


def definition(**spec: Any) -> dict[str, Any]:
    graph = comfyui_graphs.text_to_image()
    graph["4"]["inputs"]["ckpt_name"] = SECRET
    comfyui = {"graph": graph, "inputs": {"prompt": {"node": "6", "field": "text"}}} | spec
    return {"stages": [{"name": "draw", "kind": "comfyui", "comfyui": comfyui}]}


def test_only_an_operator_can_read_graphs(live_server: LiveServer) -> None:
    put = live_server.client("operator").put("/v1/workflows/poster", json={"definition": definition()})
    assert (put.status_code, put.json()["definition"]["stages"][0]["comfyui"]["inputs"]) == (
        200, {"prompt": {"node": "6", "field": "text"}},
    )  # fmt: skip
    assert SECRET in live_server.client("operator").get("/v1/workflows/poster").text
    for role in ("admin", "client", "viewer", "user"):
        one = live_server.client(role).get("/v1/workflows/poster")
        assert (one.status_code, one.json()["stages"]) == (200, ["draw"])
        listed = live_server.client(role).get("/v1/workflows")
        submitted = live_server.client("client").post(
            "/v1/jobs", json={"workflow": "poster", "user": "ann", "input": {"prompt": "a fox"}}
        )
        assert submitted.status_code == 201
        job = live_server.client(role).get(f"/v1/jobs/{submitted.json()['id']}")
        assert [SECRET in answer.text for answer in (one, listed, submitted, job)] == [False] * 4


def test_a_user_token_cannot_read_the_inputs_of_stages(live_server: LiveServer) -> None:
    stages = [{"name": "draw", "kind": "ink", "inputs": [{"style": SECRET}]}]
    live_server.client("operator").put(
        "/v1/workflows/styled", json={"definition": {"stages": stages}}
    ).raise_for_status()
    for role, seen in (("operator", True), ("client", True), ("user", False)):
        for path in ("/v1/workflows/styled", "/v1/workflows"):
            answer = live_server.client(role).get(path)
            assert (answer.status_code, SECRET in answer.text) == (200, seen), (role, path)


def test_a_graph_is_stored_unchanged(live_server: LiveServer) -> None:
    # R174
    graph = comfyui_graphs.plain() | {"n": comfyui_graphs.node("Own", text='a\x01b\n"\\✨', seed=2**64 - 1, cfg=1.0)}
    operator = live_server.client("operator")
    operator.put("/v1/workflows/odd", json={"definition": definition(graph=graph, inputs={})}).raise_for_status()
    (stage,) = operator.get("/v1/workflows/odd").json()["definition"]["stages"]
    assert stage["comfyui"]["graph"] == graph


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"graph": comfyui_graphs.as_the_editor_saves()}, "choose Workflow > Export (API)"),
        ({"inputs": {"prompt": {"node": "99", "field": "text"}}}, "There is no node '99'."),
        (
            {"graph": {"1": comfyui_graphs.node("ImageInvert", image="x")}, "inputs": {}},
            "must be a link to another node",
        ),
        ({"output_node": "77"}, "The output_node '77' is not in the graph."),
    ],
)
def test_an_invalid_graph_is_refused(live_server: LiveServer, spec: dict[str, Any], message: str) -> None:
    refused = live_server.client("operator").put("/v1/workflows/broken", json={"definition": definition(**spec)})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_graph")
    assert message in refused.json()["message"]


def test_an_input_that_does_not_fit_the_graph_is_refused_at_submit(live_server: LiveServer) -> None:
    live_server.client("operator").put("/v1/workflows/poster", json={"definition": definition()}).raise_for_status()
    body = {"workflow": "poster", "user": "ann", "input": {"prompt": ["4", 0]}}
    refused = live_server.client("client").post("/v1/jobs", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    assert refused.json()["message"].startswith("prompt: must be")


def test_a_task_has_its_graph_although_the_cache_of_definitions_is_full(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache evicts definitions above its limit, but never those of the tasks of the current claim."""
    monkeypatch.setattr(task_payloads, "_DEFINITIONS_MAX", 1)
    names = ["poster-a", "poster-b"]
    for name in names:
        own = definition()
        own["stages"][0]["kind"] = "posters"
        live_server.client("operator").put(f"/v1/workflows/{name}", json={"definition": own}).raise_for_status()
    http_worker = HttpWorker(live_server, "posters", "posters", concurrency=4)
    live_server.submit(workflow="poster-a", input={"prompt": "a fox"})
    assert [task["comfyui"] is None for task in http_worker.claim()] == [False]
    for name in names:
        live_server.submit(workflow=name, input={"prompt": "a fox"})
    assert [task["comfyui"] is None for task in http_worker.claim(count=2)] == [False, False]


def put_styled_workflow(live_server: LiveServer, style: str, tenant: str = "default") -> httpx.Response:
    """Store a workflow whose graph has its own file."""
    comfyui = {
        "graph": {"1": {"class_type": "LoadImage", "inputs": {"image": "a.png"}}},
        "inputs": {"style": {"node": "1", "field": "image"}}, "defaults": {"style": {"$file": style}},
    }  # fmt: skip
    own = {"definition": {"stages": [{"name": "draw", "kind": "own-style", "comfyui": comfyui}]}}
    return live_server.client("operator", {"callsheet-tenant": tenant}).put("/v1/workflows/own-style", json=own)


def test_a_file_of_a_workflow_must_exist_and_cannot_be_deleted(live_server: LiveServer) -> None:
    style = upload_file(live_server)
    for name, tenant in (("nowhere", "default"), (style["id"], "other"), ("a\x01b", "default")):
        refused = put_styled_workflow(live_server, name, tenant)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_workflow")
        assert "'own-style' refers to the file" in refused.json()["message"]
    put_styled_workflow(live_server, style["id"]).raise_for_status()
    page = live_server.client("client")
    refused = page.delete(f"/v1/files/{style['id']}")
    assert (refused.status_code, refused.json()["code"]) == (409, "file_in_use")
    assert "the workflow 'own-style'" in refused.json()["message"]
    plain = {"definition": {"stages": [{"name": "draw", "kind": "own-style"}]}}
    live_server.client("operator").put("/v1/workflows/own-style", json=plain).raise_for_status()
    assert page.delete(f"/v1/files/{style['id']}").json()["files"] == 1


def test_a_claimed_task_carries_its_graph_and_its_files_with_their_true_digests(live_server: LiveServer) -> None:
    """R174, R215, R237: a wrong digest in the workflow would fetch another file from the worker's cache."""
    mine, fixed = upload_file(live_server), upload_file(live_server, b"\x89PNG\r\n\x1a\n" + b"of the workflow" * 9)
    graph = {
        "1": {"class_type": "LoadImage", "inputs": {"image": "a.png"}},
        "2": {"class_type": "LoadImage", "inputs": {"image": "b.png"}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    }
    comfyui = {
        "graph": graph,
        "output_node": "9",
        "inputs": {"picture": {"node": "1", "field": "image"}, "style": {"node": "2", "field": "image"}},
        "defaults": {"style": {"$file": fixed["id"], "sha256": "0" * 64}},
    }
    own = {"stages": [{"name": "draw", "kind": "styles", "comfyui": comfyui}]}
    live_server.client("operator").put("/v1/workflows/styled", json={"definition": own}).raise_for_status()
    live_server.submit(workflow="styled", input={"picture": {"$file": mine["id"]}})
    http_worker = HttpWorker(live_server, "styles", "styles")
    (task,) = http_worker.claim()
    assert {slot["node"]: slot["sha256"] for slot in task["comfyui"]["assets"]} == {
        "1": mine["sha256"], "2": fixed["sha256"],
    }  # fmt: skip
    assert (task["comfyui"]["graph"]["9"], task["comfyui"]["output_node"]) == (graph["9"], "9")
    by_id = {file["id"]: file for file in task["files"]}
    assert set(by_id) == {mine["id"], fixed["id"]}
    fresh = http_worker.post_lease("files", task, downloads=[fixed["id"], mine["id"]]).json()["downloads"]
    for file in (*task["files"], *fresh):
        get = file["download"]
        body = http_worker.http.request(get["method"], get["url"], headers=get["headers"]).content
        assert hashlib.sha256(body).hexdigest() == file["sha256"] == by_id[file["id"]]["sha256"]
