"""Comfy Cloud's first API: raw statuses, downloads by redirect, and an interrupt that stops all jobs."""

import uuid
from pathlib import Path
from typing import Any

from tests.support.comfyui.asgi_server import (
    Receive,
    Request,
    Response,
    RestartableServer,
    Scope,
    Send,
    as_json,
    read_request,
    respond,
)
from tests.support.comfyui.server import ComfyServer
from tests.support.comfyui.server_state import NEW

KEY = "comfy-key-of-the-account"


class StorageServer:
    """A storage host that records the credentials of requests."""

    def __init__(self, folder: Path) -> None:
        self.requests: list[Request] = []
        self._folder = folder
        self._port = RestartableServer(self._app)
        self.url = self._port.url
        self.up, self.down = self._port.up, self._port.down

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await read_request(scope, receive)
        self.requests.append(request)
        file = self._folder / request.path.strip("/")
        await respond(send, Response(200, file.read_bytes()) if file.is_file() else Response(404))


class CloudV1Server(ComfyServer):
    """The account's view of the cloud."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, NEW)
        self.storage = StorageServer(folder)
        self.raw_statuses: dict[str, str] = {}
        """The raw status that is returned instead of the real one, by prompt."""
        self.no_jobs = False
        """Return no job at /api/jobs/{id}, only in the old history."""
        self.hide_workflow_ids = False
        """List jobs without the ids of their workflows."""

    def up(self) -> None:
        self.storage.up()
        super().up()

    def down(self) -> None:
        self.storage.down()
        super().down()

    def _answer(self, request: Request, path: str) -> Response:
        if request.headers.get("x-api-key") != KEY:
            return as_json({"message": "unauthorized"}, 401)
        head, _, rest = request.path.removeprefix("/api/").partition("/")
        if head == "prompt":
            return self._submit_prompt(request)
        if head == "job":
            return self._job_status(rest.removesuffix("/status"))
        if head == "jobs" and not rest:
            return self._list_jobs(request.query.get("workflow_id"))
        if head == "jobs" and self.no_jobs:
            return Response(404)
        if head == "history_v2":
            return super()._answer(request._replace(path=f"/history/{rest}"), f"/history/{rest}")
        if head == "view":
            where = Path(request.query["type"]) / request.query.get("subfolder", "") / request.query["filename"]
            return Response(302, b"", (("location", f"{self.storage.url}/{where}"),))
        if head == "interrupt":
            self._interrupt(None)
            return Response()
        return super()._answer(request, path)

    def _submit_prompt(self, request: Request) -> Response:
        body = request.json() | {"prompt_id": str(uuid.uuid4())}  # the cloud ignores the client's id
        return super()._post_prompt(request._replace(body=_encoded(body)), "/prompt")

    def _list_jobs(self, wanted: str | None) -> Response:
        """List jobs, the newest first, each with the id of the workflow that its extra data names."""
        with self._lock:
            items = [*(entry["prompt"] for entry in self._ram.history.values()), *self._ram.running, *self._ram.pending]
        jobs = []
        for _, prompt_id, _, extra, _ in reversed(items):
            workflow = None if self.hide_workflow_ids else extra.get("extra_pnginfo", {}).get("workflow", {}).get("id")
            if wanted in {None, workflow}:
                jobs.append({"id": prompt_id, "status": "in_progress", "create_time": 0, "workflow_id": workflow})
        page = {"offset": 0, "limit": 100, "total": len(jobs), "has_more": False}
        return as_json({"jobs": jobs, "pagination": page})

    def _job_status(self, prompt_id: str) -> Response:
        entry = self.history.get(prompt_id)
        queue = self.queue
        if prompt_id in self.raw_statuses:
            status = self.raw_statuses[prompt_id]
        elif prompt_id in queue["running"]:
            status = "executing"
        elif prompt_id in queue["pending"]:
            status = "queued_waiting"
        elif entry is None:
            return as_json({"message": "not found"}, 404)
        else:
            message_types = {kind for kind, _ in entry["status"]["messages"]}
            status = "success" if entry["status"]["completed"] else "error"
            status = "cancelled" if "execution_interrupted" in message_types else status
        return as_json({"id": prompt_id, "status": status})


def _encoded(body: Any) -> bytes:
    return as_json(body).body
