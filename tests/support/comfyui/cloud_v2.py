"""The Comfy API v2: jobs with idempotency keys, assets with ids, events as a stream."""

import asyncio
import base64
import json
import mimetypes
import uuid
from pathlib import Path
from typing import Any

from tests.support.comfyui import sample_files
from tests.support.comfyui.asgi_server import Receive, Request, Response, Scope, Send, as_json, read_request, respond
from tests.support.comfyui.server import ComfyServer
from tests.support.comfyui.server_state import NEW

KEY = "bearer-of-the-account"
_STEP_SECONDS = 0.02
_ROOT = "/api/v2/"


def refusal(code: str, status: int, message: str = "no", **details: Any) -> Response:
    return as_json({"error": {"code": code, "message": message, "details": details or None}}, status)


class CloudV2Server(ComfyServer):
    """One deployment."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, NEW)
        self.keys: set[str] = set()
        self.assets: dict[str, Path] = {}
        self.canceling: set[str] = set()
        self.storage_url: str | None = None
        """The host that downloads are redirected to."""
        self.streams = 0

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/events"):
            self._loop = asyncio.get_running_loop()
            await self._events(scope["path"].split("/")[-2], await read_request(scope, receive), send)
            return
        await super()._app(scope, receive, send)

    async def _events(self, job_id: str, request: Request, send: Send) -> None:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            await respond(send, refusal("unauthorized", 401))
            return
        self.streams += 1
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        stop, sent = asyncio.Event(), 0
        while True:
            job = self._job(job_id) or {"status": "expired"}
            await send({"type": "http.response.body", "body": _frames(job, sent), "more_body": True})
            sent += 1
            if job["status"] in {"succeeded", "failed", "canceled", "expired"}:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            try:
                await asyncio.wait_for(stop.wait(), _STEP_SECONDS)
            except TimeoutError:
                continue

    def _answer(self, request: Request, path: str) -> Response:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return refusal("unauthorized", 401)
        resource, *rest = request.path.removeprefix(_ROOT).split("/")
        if resource == "assets":
            return self._asset(request, rest)
        if resource != "jobs":
            return super()._answer(request, path)
        if request.method == "POST" and not rest:
            return self._submit_job(request)
        job = self._job(rest[0])
        if job is None:
            return refusal("not_found", 404)
        if rest[1:] == ["cancel"]:
            self.canceling.add(rest[0])
            self._canceled(rest[0])
        return as_json(self._job(rest[0]) or job | {"status": "canceled"})

    def _submit_job(self, request: Request) -> Response:
        key = request.headers.get("idempotency-key", "")
        if key in self.keys:
            return refusal("idempotency_key_reuse", 422, "This Idempotency-Key has already been used.")
        graph = request.json()["workflow"]
        if "nodes" in graph:
            return refusal("workflow_format_ui", 422)
        for body in graph.values():
            for name, value in body["inputs"].items():
                if isinstance(value, dict):
                    known = self.assets.get(value["info"]["id"])
                    if value.get("__type") != "core/ASSET" or known is None or not known.is_file():
                        return refusal("missing_asset", 422, "An asset is missing.")
                    body["inputs"][name] = known.name
        inner = as_json({"prompt": graph, "client_id": key, "prompt_id": str(uuid.uuid4())}).body
        accepted = self._post_prompt(request._replace(body=inner), "/prompt")
        response = json.loads(accepted.body)
        if accepted.status != 200 or response["node_errors"]:
            return refusal("invalid_workflow", 422, "Node 2 is not valid.", node_errors=response["node_errors"])
        self.keys.add(key)
        return as_json(self._job(response["prompt_id"]), 201)

    def _asset(self, request: Request, rest: list[str]) -> Response:
        if request.method == "POST":
            form = request.form()
            asset, name = str(uuid.uuid4()), form["file_path"][1].decode()
            self.assets[asset] = self.disk.root / "input" / name
            self.assets[asset].write_bytes(form["file"][1])
            return as_json({"id": asset, "hash": None, "file_path": name, "size_bytes": len(form["file"][1])}, 201)
        path = self.assets.get(rest[0])
        if path is None or not path.is_file():
            return refusal("not_found", 404)
        if self.storage_url is not None:
            return Response(302, b"", (("location", f"{self.storage_url}/{path.relative_to(self.disk.root)}"),))
        media = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return Response(200, path.read_bytes(), (("content-type", media),))

    def _job(self, job_id: str) -> dict[str, Any] | None:
        entry, queue = self.history.get(job_id), self.queue
        if job_id in queue["pending"]:
            return self._job_body(job_id, "queued")
        if job_id in queue["running"]:
            return self._job_body(job_id, "canceling" if job_id in self.canceling else "running")
        if entry is None:
            return self._job_body(job_id, "canceled") if job_id in self.canceling else None
        response = dict(entry["status"]["messages"])
        if entry["status"]["completed"]:
            return self._job_body(job_id, "succeeded", entry["outputs"])
        if "execution_interrupted" in response:
            return self._job_body(job_id, "canceled")
        raised = response["execution_error"]
        error = {"code": "node_execution_error", "message": raised["exception_message"]}
        error |= {"node_id": raised["node_id"], "class_type": raised["node_type"], "traceback": "<traceback lines>"}
        return self._job_body(job_id, "failed", entry["outputs"], error)

    def _job_body(
        self, job_id: str, status: str, outputs: dict[str, Any] | None = None, error: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        files = [self._output(job_id, node, one) for node, ui in (outputs or {}).items() for one in _files(ui)]
        done = len(self.reached)
        progress = {"value": min(done / 4, 1.0), "nodes_done": done, "nodes_total": 4, "current_node": None}
        body = {"id": job_id, "status": status, "progress": progress if status == "running" else None}
        return body | {"outputs": files, "error": error, "queue_position": None}

    def _output(self, job_id: str, node: str, file: dict[str, str]) -> dict[str, Any]:
        path = self.disk.root / file["type"] / file["subfolder"] / file["filename"]
        asset = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{job_id}/{path}"))
        self.assets[asset] = path
        about = {"node_id": node, "name": path.name, "type": "image", "size_bytes": 0, "id": asset}  # as the proxy does
        return about | {"content_type": "application/octet-stream", "url": f"{self.url}/api/v2/assets/{asset}/content"}


def _files(ui: dict[str, Any]) -> list[dict[str, str]]:
    return [one for outputs in ui.values() for one in outputs if isinstance(one, dict)]


def _frames(job: dict[str, Any], no: int) -> bytes:
    events = [("status", {"status": job["status"], "queue_position": None})]
    if job.get("progress"):
        events.append(("progress", job["progress"]))
        picture = base64.b64encode(sample_files.JPEG).decode()
        events.append(("preview", {"node_id": "2", "content_type": "image/jpeg", "data_base64": picture}))
    body = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)
    return (body if no else f": hello\n\n{body}").encode()
