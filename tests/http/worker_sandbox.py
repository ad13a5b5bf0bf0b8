"""Workers that speak plain HTTP, with their own kind and names on a shared server."""

import hashlib
import itertools
from typing import Any

import httpx

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.support.processes.live_server import LiveServer

PNG = b"\x89PNG\r\n\x1a\n" + b"a picture" * 10


def expect_json(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


class WorkerSandbox:
    """A kind of work and worker names that no other test on this server uses."""

    def __init__(self, live_server: LiveServer) -> None:
        self.live_server = live_server
        self.suffix = f"y{next(_numbers)}"
        self.kind = f"draw-{self.suffix}"
        self.workflow(self.kind)

    def workflow(self, kind: str) -> str:
        definition = WorkflowDefinition(name=kind, price=3, stages=[StageSpec(name="draw", kind=kind)])
        self.live_server.engine.execute(commands.PutWorkflow(definition=definition))
        return kind

    def submit(self, **fields: Any) -> dict[str, Any]:
        return self.live_server.submit(**{"workflow": self.kind, **fields})

    def name(self, worker: str) -> str:
        return f"{worker}-{self.suffix}"

    def http_worker(self, name: str = "w1", *kinds: str, **fields: Any) -> "HttpWorker":
        return HttpWorker(self.live_server, self.name(name), *(kinds or (self.kind,)), **fields)

    def update_worker(self, name: str, **change: Any) -> Any:
        """Change a worker as an operator."""
        return expect_json(
            self.live_server.client("operator").patch(f"/v1/admin/workers/{self.name(name)}", json=change)
        )

    def task_of(self, job: dict[str, Any]) -> dict[str, Any]:
        (task,) = expect_json(self.live_server.client("client").get(f"/v1/jobs/{job['id']}/tasks"))["tasks"]
        row: dict[str, Any] = task
        return row


_numbers = itertools.count(1)


class HttpWorker:
    """A worker that sends plain HTTP requests."""

    def __init__(self, live_server: LiveServer, name: str = "w1", *kinds: str, **fields: Any) -> None:
        self.registration = live_server.register(name, *kinds, **fields)
        self.http = live_server.client(name)
        self.live_server = live_server

    def claim(self, **fields: Any) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = expect_json(self.http.post("/v1/worker/claim", json=fields))["tasks"]
        return tasks

    def post_lease(self, call: str, task: dict[str, Any], **fields: Any) -> httpx.Response:
        return self.http.post(f"/v1/worker/{call}", json={"lease": task["lease"], **fields})

    def heartbeat(self, *tasks: dict[str, Any], **fields: Any) -> dict[str, Any]:
        heartbeats = [{"lease": task["lease"], **fields} for task in tasks]
        answer: dict[str, Any] = expect_json(self.http.post("/v1/worker/heartbeat", json={"heartbeats": heartbeats}))
        return answer

    def put(self, task: dict[str, Any], body: bytes, no: int = 1) -> dict[str, Any]:
        made = output_file_of(body, no)
        grants = expect_json(self.post_lease("files", task, uploads=[made]))
        grant = grants["uploads"][0]["upload"]
        answer = self.http.request(grant["method"], grant["url"], content=body, headers=grant["headers"])
        assert answer.is_success, answer.text
        return made


def output_file_of(body: bytes, no: int = 1) -> dict[str, Any]:
    digest = hashlib.sha256(body).hexdigest()
    return {"no": no, "name": "picture.png", "media_type": "image/png", "bytes": len(body), "sha256": digest}


def get_job(live_server: LiveServer, job: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = expect_json(live_server.client("client").get(f"/v1/jobs/{job['id']}"))
    return row
