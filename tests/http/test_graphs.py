"""Workflows with graphs over HTTP: the house keeps them to itself, and what could not run is refused by name."""

import hashlib
from typing import Any

import httpx
import pytest

from callsheet.http import handing
from tests.http.test_uploads import bring
from tests.http.yard import Machine
from tests.support import graphs
from tests.support.served import Served

SECRET = "canary-model.safetensors"


def recipe(**spec: Any) -> dict[str, Any]:
    graph = graphs.text_to_image()
    graph["4"]["inputs"]["ckpt_name"] = SECRET
    comfyui = {"graph": graph, "inputs": {"prompt": {"node": "6", "field": "text"}}} | spec
    return {"stages": [{"name": "draw", "kind": "comfyui", "comfyui": comfyui}]}


def test_only_the_operator_sees_graphs(served: Served) -> None:
    """Weak point 24 of the original: the whole graph went to the end user."""
    put = served.client("operator").put("/v1/workflows/poster", json={"recipe": recipe()})
    assert (put.status_code, put.json()["recipe"]["stages"][0]["comfyui"]["inputs"]) == (
        200, {"prompt": {"node": "6", "field": "text"}},
    )  # fmt: skip
    assert SECRET in served.client("operator").get("/v1/workflows/poster").text
    for role in ("admin", "client", "viewer", "user"):
        shown = served.client(role).get("/v1/workflows/poster")
        assert (shown.status_code, shown.json()["stages"]) == (200, ["draw"])
        listed = served.client(role).get("/v1/workflows")
        submitted = served.client("client").post(
            "/v1/jobs", json={"workflow": "poster", "user": "ann", "input": {"prompt": "a fox"}}
        )
        assert submitted.status_code == 201
        job = served.client(role).get(f"/v1/jobs/{submitted.json()['id']}")
        assert [SECRET in answer.text for answer in (shown, listed, submitted, job)] == [False] * 4


def test_what_the_house_puts_into_its_stages_goes_to_no_browser(served: Served) -> None:
    stages = [{"name": "draw", "kind": "ink", "inputs": [{"style": SECRET}]}]
    served.client("operator").put("/v1/workflows/styled", json={"recipe": {"stages": stages}}).raise_for_status()
    for role, seen in (("operator", True), ("client", True), ("user", False)):
        for path in ("/v1/workflows/styled", "/v1/workflows"):
            answer = served.client(role).get(path)
            assert (answer.status_code, SECRET in answer.text) == (200, seen), (role, path)


def test_a_graph_is_kept_as_it_came(served: Served) -> None:
    graph = graphs.plain() | {"n": graphs.node("Own", text='a\0b\n"\\✨', seed=2**64 - 1, cfg=1.0)}
    operator = served.client("operator")
    operator.put("/v1/workflows/odd", json={"recipe": recipe(graph=graph, inputs={})}).raise_for_status()
    (stage,) = operator.get("/v1/workflows/odd").json()["recipe"]["stages"]
    assert stage["comfyui"]["graph"] == graph


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"graph": graphs.as_the_editor_saves()}, "choose Workflow > Export (API)"),
        ({"inputs": {"prompt": {"node": "99", "field": "text"}}}, "There is no node '99'."),
        ({"graph": {"1": graphs.node("ImageInvert", image="x")}, "inputs": {}}, "a value where a link"),
        ({"output_node": "77"}, "The output_node '77' is not in the graph."),
    ],
)
def test_a_graph_that_could_not_run_is_refused(served: Served, spec: dict[str, Any], said: str) -> None:
    refused = served.client("operator").put("/v1/workflows/broken", json={"recipe": recipe(**spec)})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_graph")
    assert said in refused.json()["message"]


def test_an_input_that_does_not_fit_the_graph_is_refused_at_submit(served: Served) -> None:
    served.client("operator").put("/v1/workflows/poster", json={"recipe": recipe()}).raise_for_status()
    body = {"workflow": "poster", "user": "ann", "input": {"prompt": ["4", 0]}}
    refused = served.client("client").post("/v1/jobs", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    assert refused.json()["message"].startswith("prompt: must be")


def test_a_task_has_its_graph_however_many_workflows_there_are(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes that were read are kept up to a number; those of the tasks in hand are not among what is let go."""
    monkeypatch.setattr(handing, "_RECIPES_MAX", 1)
    names = ["poster-a", "poster-b"]
    for name in names:
        own = recipe()
        own["stages"][0]["kind"] = "posters"
        served.client("operator").put(f"/v1/workflows/{name}", json={"recipe": own}).raise_for_status()
    machine = Machine(served, "posters", "posters", concurrency=4)
    served.submit(workflow="poster-a", input={"prompt": "a fox"})
    assert [task["comfyui"] is None for task in machine.claim()] == [False]
    for name in names:
        served.submit(workflow=name, input={"prompt": "a fox"})
    assert [task["comfyui"] is None for task in machine.claim(count=2)] == [False, False]


def styled(served: Served, style: str, tenant: str = "default") -> httpx.Response:
    """Put a workflow whose graph has a file of its own."""
    comfyui = {
        "graph": {"1": {"class_type": "LoadImage", "inputs": {"image": "a.png"}}},
        "inputs": {"style": {"node": "1", "field": "image"}}, "defaults": {"style": {"$file": style}},
    }  # fmt: skip
    own = {"recipe": {"stages": [{"name": "draw", "kind": "own-style", "comfyui": comfyui}]}}
    return served.client("operator", {"callsheet-tenant": tenant}).put("/v1/workflows/own-style", json=own)


def test_a_file_of_a_workflow_is_there_when_it_is_put_and_stays(served: Served) -> None:
    style = bring(served)
    for name, tenant in (("nowhere", "default"), (style["id"], "other"), ("a\0b", "default")):
        refused = styled(served, name, tenant)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_workflow")
        assert "'own-style' names the file" in refused.json()["message"]
    styled(served, style["id"]).raise_for_status()
    page = served.client("client")
    kept = page.delete(f"/v1/files/{style['id']}")
    assert (kept.status_code, kept.json()["code"]) == (409, "file_in_use")
    assert "the workflow 'own-style'" in kept.json()["message"]
    plain = {"recipe": {"stages": [{"name": "draw", "kind": "own-style"}]}}
    served.client("operator").put("/v1/workflows/own-style", json=plain).raise_for_status()
    assert page.delete(f"/v1/files/{style['id']}").json()["files"] == 1


def test_a_file_of_a_graph_is_told_with_its_own_digest_whatever_the_workflow_says(served: Served) -> None:
    """R174, R215, R218, R237, weak point 22 of the original: a wrong digest brings another's file out of the cache."""
    mine, fixed = bring(served), bring(served, b"\x89PNG\r\n\x1a\n" + b"of the house" * 9)
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
    served.client("operator").put("/v1/workflows/styled", json={"recipe": own}).raise_for_status()
    served.submit(workflow="styled", input={"picture": {"$file": mine["id"]}})
    machine = Machine(served, "styles", "styles")
    (task,) = machine.claim()
    assert {slot["node"]: slot["sha256"] for slot in task["comfyui"]["assets"]} == {
        "1": mine["sha256"], "2": fixed["sha256"],
    }  # fmt: skip
    assert (task["comfyui"]["graph"]["9"], task["comfyui"]["output_node"]) == (graph["9"], "9")
    by_id = {given["id"]: given for given in task["files"]}
    assert set(by_id) == {mine["id"], fixed["id"]}
    fresh = machine.say("files", task, gets=[fixed["id"], mine["id"]]).json()["gets"]
    for given in (*task["files"], *fresh):
        get = given["get"]
        body = machine.http.request(get["method"], get["url"], headers=get["headers"]).content
        assert hashlib.sha256(body).hexdigest() == given["sha256"] == by_id[given["id"]]["sha256"]
