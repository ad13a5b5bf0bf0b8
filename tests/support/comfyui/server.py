"""A double of ComfyUI 0.7.0 and 0.33.0: the queue and the history are in memory, the files on disk."""

import asyncio
import json
import mimetypes
import re
import uuid
from pathlib import Path
from typing import Any

from tests.support.comfyui.asgi_server import (
    Receive,
    Request,
    Response,
    Scope,
    Send,
    as_json,
    as_text,
    read_request,
    respond,
    wait_for_event,
)
from tests.support.comfyui.execution import ms
from tests.support.comfyui.nodes import NODES, object_info
from tests.support.comfyui.server_state import NEW, OLD, ServerState, job_of
from tests.support.comfyui.validation import Invalid, error, validate_graph

UPLOAD_BYTES_MAX = 104_857_600
_CANONICAL = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_TROUBLE = as_text("500 Internal Server Error\n\nServer got itself in trouble", 500)
_NOT_CANONICAL = (
    "prompt_id must be a UUID string in canonical lowercase hyphenated form; omit it to let the server generate one"
)


class ComfyServer(ServerState):
    """One server in threads of this process. It records its requests and runs."""

    # -- HTTP and WebSocket

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._loop = asyncio.get_running_loop()
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
            return
        request = await read_request(scope, receive)
        self.requests.append(request)
        path = request.path.removeprefix("/api") if not request.path.startswith("/api/jobs") else request.path
        if gate := self.gates.get(path):
            await wait_for_event(gate, 30.0)
        answer = self.answers[path].pop(0) if self.answers.get(path) else self._answer(request, path)
        if self.lost_answers.get(path):
            self.lost_answers[path] -= 1
            answer = answer._replace(cut=True)
        await respond(send, answer)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = dict(part.split("=", 1) for part in scope["query_string"].decode().split("&") if "=" in part)
        client = query.get("clientId") or uuid.uuid4().hex
        flags: dict[str, Any] = {}
        await receive()
        if self.refuse_websockets:
            await send({"type": "websocket.close"})
            return
        await send({"type": "websocket.accept"})
        known = (send, flags)
        self._sockets[client], closing = known, asyncio.Event()
        self._closing[client] = closing
        self._send_message(client, "status", {"status": self._info(), "sid": client})
        running = self._ram.execution
        if running is not None and running.client_id == client and running.node:
            self._send_message(client, "executing", {"node": running.node})  # after a reconnect, without the prompt id
        cut = asyncio.ensure_future(closing.wait())
        try:
            while not closing.is_set():
                received = asyncio.ensure_future(receive())
                await asyncio.wait({received, cut}, return_when=asyncio.FIRST_COMPLETED)
                if not received.done():
                    received.cancel()
                    async with self._send_lock:
                        await send({"type": "websocket.close", "code": 1011})
                elif received.result()["type"] != "websocket.receive":
                    return
                else:
                    self._on_message(client, flags, received.result())
        finally:
            cut.cancel()
            if self._sockets.get(client) is known:
                del self._sockets[client], self._closing[client]

    def _on_message(self, client: str, flags: dict[str, Any], message: dict[str, Any]) -> None:
        message_data = json.loads(message.get("text") or "null")
        if (
            isinstance(message_data, dict)
            and message_data.get("type") == "feature_flags"
            and not self.ignore_feature_flags
        ):
            flags.update(message_data["data"])
            self._send_message(client, "feature_flags", self._features())

    def _features(self) -> dict[str, Any]:
        features: dict[str, Any] = {"supports_preview_metadata": True, "max_upload_size": UPLOAD_BYTES_MAX}
        features["extension"] = {"manager": {"supports_v4": True}}
        if self.version == NEW:
            features |= {"supports_model_type_tags": True, "node_replacements": True, "assets": False}
        return features

    def _answer(self, request: Request, path: str) -> Response:
        if request.headers.get("origin"):
            return Response(403)
        handler = getattr(self, f"_{request.method.lower()}_{path.strip('/').split('/')[0]}", None)
        if path.startswith("/api/jobs"):
            handler = self._jobs
        if handler is None:
            return as_text("405: Method Not Allowed" if request.method == "POST" else "404: Not Found", 405)
        answer: Response = handler(request, path)
        return answer

    def _get_features(self, _request: Request, _path: str) -> Response:
        return as_json(self._features())

    def _get_system_stats(self, _request: Request, _path: str) -> Response:
        return as_json({"system": {"comfyui_version": self.version}, "devices": []})

    def _get_object_info(self, _request: Request, path: str) -> Response:
        name = path.removeprefix("/object_info").strip("/")
        names = [name] if name else list(NODES)
        return as_json({one: object_info(one) for one in names if one in NODES})

    def _get_prompt(self, _request: Request, _path: str) -> Response:
        return as_json(self._info())

    def _post_prompt(self, request: Request, _path: str) -> Response:
        try:
            body = request.json()
            graph, prompt_id = body.get("prompt"), str(body.get("prompt_id") or uuid.uuid4())
        except (ValueError, AttributeError):
            return _TROUBLE
        if graph is None:
            message_data = error("no_prompt", "No prompt provided", "No prompt provided")
            return as_json({"error": message_data, "node_errors": {}}, 400)
        if self.version == NEW and not _CANONICAL.match(prompt_id):
            message_data = error("invalid_prompt_id", "prompt_id must be a valid UUID", _NOT_CANONICAL)
            return as_json({"error": message_data, "node_errors": {}}, 400)
        try:
            outputs, node_errors = validate_graph(
                graph, self.version, lambda name: (self.disk.root / "input" / name).is_file()
            )
        except Invalid as invalid:
            return _TROUBLE if invalid.trouble else as_json(invalid.body, 400)
        extra = dict(body.get("extra_data") or {})
        if "client_id" in body:
            extra["client_id"] = body["client_id"]
        extra["create_time"] = ms()
        with self._work:
            number = -self._ram.number if body.get("front") else self._ram.number
            self._ram.number += 1
            self._ram.pending.append([number, prompt_id, graph, extra, outputs])
            self._work.notify_all()
        self._status()
        return as_json({"prompt_id": prompt_id, "number": number, "node_errors": node_errors})

    def _get_queue(self, _request: Request, _path: str) -> Response:
        with self._lock:
            pending = sorted(self._ram.pending, key=lambda item: item[0])
            return as_json({"queue_running": self._ram.running, "queue_pending": pending})

    def _post_queue(self, request: Request, _path: str) -> Response:
        body = request.json()
        with self._lock:
            deleted = {item[1] for item in self._ram.pending} if body.get("clear") else set(body.get("delete", ()))
            self._ram.pending = [item for item in self._ram.pending if item[1] not in deleted]
        self._status()
        return Response()

    def _post_interrupt(self, request: Request, _path: str) -> Response:
        prompt_id = request.json().get("prompt_id") if request.body else None
        self._interrupt(prompt_id)
        return Response()

    def _post_free(self, _request: Request, _path: str) -> Response:
        self._ram.cache.clear()
        return Response()

    def _get_history(self, request: Request, path: str) -> Response:
        name = path.removeprefix("/history").strip("/")
        with self._lock:
            kept = self._ram.history
            if name:
                return as_json({name: kept[name]} if name in kept else {})
            most = int(request.query.get("max_items") or len(kept))
            return as_json(dict(list(kept.items())[-most:]))

    def _post_history(self, request: Request, _path: str) -> Response:
        with self._lock:
            for name in request.json().get("delete", ()):
                self._ram.history.pop(name, None)
        return Response()

    def _get_view(self, request: Request, _path: str) -> Response:
        name, folder = request.query.get("filename"), request.query.get("subfolder", "")
        kind = request.query.get("type", "output")
        if not name:
            return Response(404)
        if name.startswith("/") or ".." in name or kind not in {"input", "output", "temp"}:
            return Response(400)
        path = self.disk.root / kind / folder / Path(name).name
        if ".." in folder:
            return Response(403)
        if not path.is_file():
            return Response(404)
        media = mimetypes.guess_type(name)[0] or "application/octet-stream"
        headers = (("content-type", media), ("content-disposition", f'filename="{name}"'), ("accept-ranges", "bytes"))
        return Response(200, path.read_bytes(), headers)

    def _post_upload(self, request: Request, _path: str) -> Response:
        if len(request.body) > UPLOAD_BYTES_MAX:
            return as_text(f"Maximum request body size {UPLOAD_BYTES_MAX} exceeded.", 413)
        form = request.form()
        name, body = form.get("image", (None, b""))
        kind, folder = (form.get(part, (None, b""))[1].decode() for part in ("type", "subfolder"))
        if kind not in {"", "input", "temp", "output"}:
            return _TROUBLE
        if not name or ".." in folder or ".." in name:
            return Response(400)
        place = self.disk.root / (kind or "input") / folder
        place.mkdir(parents=True, exist_ok=True)
        path, no = place / name, 0
        while (
            path.exists() and path.read_bytes() != body and form.get("overwrite", (None, b""))[1] not in {b"true", b"1"}
        ):
            no += 1
            path = place / f"{Path(name).stem} ({no}){Path(name).suffix}"
        path.write_bytes(body)
        return as_json({"name": path.name, "subfolder": folder, "type": kind or "input"})

    def _jobs(self, request: Request, path: str) -> Response:
        name = path.removeprefix("/api/jobs").strip("/")
        if request.method == "POST":
            if self.version == OLD or not name.endswith("/cancel"):
                return as_text("405: Method Not Allowed", 405)
            return as_json({"cancelled": self._canceled(name.removesuffix("/cancel"))})
        with self._lock:
            entry = self._ram.history.get(name)
            item = next((one for one in self._ram.running + self._ram.pending if one[1] == name), None)
            known: list[Any] | None = item or (entry["prompt"] if entry else None)
            if known is None:
                return as_json({"error": "Job not found"}, 404)
            return as_json(job_of(self.version, known, entry, running=known in self._ram.running))
