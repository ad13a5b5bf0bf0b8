"""Workers that a person types by hand, with a kind of work and names of their own on a shared server."""

import hashlib
import itertools
from typing import Any

import httpx

from callsheet.core import commands
from callsheet.core.recipe import Recipe, StageSpec
from tests.support.served import Served

PNG = b"\x89PNG\r\n\x1a\n" + b"a picture" * 10


def said(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


class Yard:
    """A kind of work and names of workers that nobody else on this server uses."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.mark = f"y{next(_numbers)}"
        self.kind = f"draw-{self.mark}"
        self.workflow(self.kind)

    def workflow(self, kind: str) -> str:
        recipe = Recipe(name=kind, price=3, stages=[StageSpec(name="draw", kind=kind)])
        self.served.engine.execute(commands.PutWorkflow(recipe=recipe))
        return kind

    def submit(self, **more: Any) -> dict[str, Any]:
        return self.served.submit(**{"workflow": self.kind, **more})

    def name(self, worker: str) -> str:
        return f"{worker}-{self.mark}"

    def machine(self, name: str = "w1", *kinds: str, **more: Any) -> "Machine":
        return Machine(self.served, self.name(name), *(kinds or (self.kind,)), **more)

    def worker(self, name: str, **change: Any) -> Any:
        """Let an operator change a worker."""
        return said(self.served.client("operator").patch(f"/v1/admin/workers/{self.name(name)}", json=change))

    def task_of(self, job: dict[str, Any]) -> dict[str, Any]:
        (task,) = said(self.served.client("client").get(f"/v1/jobs/{job['id']}/tasks"))["tasks"]
        found: dict[str, Any] = task
        return found


_numbers = itertools.count(1)


class Machine:
    """A worker that a person types by hand."""

    def __init__(self, served: Served, name: str = "w1", *kinds: str, **more: Any) -> None:
        self.told = served.register(name, *kinds, **more)
        self.http = served.client(name)
        self.served = served

    def claim(self, **more: Any) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = said(self.http.post("/v1/worker/claim", json=more))["tasks"]
        return tasks

    def say(self, verb: str, task: dict[str, Any], **more: Any) -> httpx.Response:
        return self.http.post(f"/v1/worker/{verb}", json={"lease": task["lease"], **more})

    def beat(self, *tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
        beats = [{"lease": task["lease"], **more} for task in tasks]
        answer: dict[str, Any] = said(self.http.post("/v1/worker/heartbeat", json={"beats": beats}))
        return answer

    def put(self, task: dict[str, Any], body: bytes, no: int = 1) -> dict[str, Any]:
        made = made_of(body, no)
        grants = said(self.say("files", task, puts=[made]))
        put = grants["puts"][0]["put"]
        answer = self.http.request(put["method"], put["url"], content=body, headers=put["headers"])
        assert answer.is_success, answer.text
        return made


def made_of(body: bytes, no: int = 1) -> dict[str, Any]:
    digest = hashlib.sha256(body).hexdigest()
    return {"no": no, "name": "picture.png", "media_type": "image/png", "bytes": len(body), "sha256": digest}


def job_of(served: Served, job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = said(served.client("client").get(f"/v1/jobs/{job['id']}"))
    return found
