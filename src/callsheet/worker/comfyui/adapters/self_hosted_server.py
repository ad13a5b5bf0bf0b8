"""A self-hosted ComfyUI server, version 0.7 or later.

The server keeps queue and history in memory only. The client chooses the prompt id, and submitting the same id twice
runs it twice. The queue is read before the history, so that a prompt that ends in between is found in the history.
"""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from callsheet.worker.comfyui.adapters import error_text
from callsheet.worker.comfyui.adapters.base import (
    NOT_FOUND,
    ComfyRejectedError,
    ComfyUnreachableError,
    EventStream,
    Graph,
    Output,
    PromptResult,
    PromptStatus,
)
from callsheet.worker.comfyui.adapters.output_list import parse_outputs
from callsheet.worker.comfyui.adapters.transport import (
    READY_TIMEOUT_SECONDS,
    ComfyHttp,
    is_server_error,
    json_body,
    require_success,
)
from callsheet.worker.comfyui.adapters.websocket_event_stream import WebSocketEventStream

URL = "http://127.0.0.1:8188"
_BYTES_MAX = 5 << 30
_NO_SUCH_ROUTE = {404, 405}
_MIB = 1 << 20
_QUEUE_ITEM_PARTS_MIN = 2
"""The prompt id is the second element of a queue entry."""


class SelfHosted:
    """One ComfyUI server."""

    provider = "comfyui"
    supports_websocket_pictures = safe_to_resubmit = True

    def __init__(self, url: str = URL, *, bytes_max: int = _BYTES_MAX) -> None:
        self._http = ComfyHttp(url, use_env_proxy=False, bytes_max=bytes_max)
        self.endpoint = self._http.url
        self._supports_cancel_by_id: bool | None = None
        """Whether the server can cancel by id; None until the first cancel."""

    def close(self) -> None:
        self._http.close()

    def check_ready(self) -> None:
        queue = json_body(require_success(self._http.send("GET", "/queue", timeout=READY_TIMEOUT_SECONDS)))
        if not isinstance(queue, dict) or "queue_running" not in queue:
            raise ComfyUnreachableError("There is no ComfyUI server at this URL.")

    def planned_ref(self, prompt_id: str) -> str | None:
        return prompt_id

    def resolve_ref(self, ref: str) -> str:
        return ref

    # -- submit

    def upload(self, name: str, path: Path) -> str:
        self._check_size(path)
        response = self._http.upload_form("/upload/image", "image", name, path, {"type": "input"})
        if response.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
            raise ComfyRejectedError(
                "An input file exceeds the upload limit of the ComfyUI server.", code="file_too_large"
            )
        if response.status_code == httpx.codes.BAD_REQUEST:
            raise ComfyRejectedError("The ComfyUI server rejected an input file.", code="file_refused")
        stored = json_body(require_success(response))
        folder = stored.get("subfolder")
        return f"{folder}/{stored['name']}" if folder else str(stored["name"])

    def _check_size(self, path: Path) -> None:
        features = self._http.get("/features")
        upload_bytes_max = features.get("max_upload_size") if isinstance(features, dict) else None
        if isinstance(upload_bytes_max, int) and path.stat().st_size > upload_bytes_max:
            raise ComfyRejectedError(
                f"An input file exceeds the {upload_bytes_max // _MIB} MiB upload limit of the server.",
                code="file_too_large",
            )

    def listen(self, prompt_id: str) -> EventStream:
        return WebSocketEventStream(
            f"{self._http.socket_url}/ws?clientId={quote(prompt_id)}", exclusive=True, use_env_proxy=False
        )

    def submit(self, prompt_id: str, graph: Graph) -> str:
        """Submit a graph. The client id is always sent: without it, version 0.7 reports no outputs of cached nodes."""
        body = {"prompt": graph, "client_id": prompt_id, "prompt_id": prompt_id}
        response = self._http.send("POST", "/prompt", json=body)
        if response.status_code == httpx.codes.BAD_REQUEST:
            problem = json_body(response)
            raise ComfyRejectedError(*error_text.describe_rejection(problem.get("error"), problem.get("node_errors")))
        if is_server_error(response):
            raise ComfyUnreachableError("ComfyUI answered with a server error; the graph may be malformed.")
        accepted = json_body(require_success(response))
        ref = str(accepted.get("prompt_id") or prompt_id)
        if accepted.get("node_errors"):  # the server runs the rest of the graph: the caller cancels it
            raise ComfyRejectedError(*error_text.describe_rejection(None, accepted["node_errors"]), ref=ref)
        return ref

    # -- status

    def get_status(self, ref: str) -> PromptStatus:
        location = self._queue_location(ref)
        if location is not None:
            return "waiting" if location == "queue_pending" else "running"
        entry = (self._http.get(f"/history/{quote(ref)}") or {}).get(ref)
        return NOT_FOUND if entry is None else _parse_result(entry)

    def _queue_location(self, ref: str) -> str | None:
        queue = self._http.get("/queue")
        if not isinstance(queue, dict):
            raise ComfyUnreachableError("There is no ComfyUI server at this URL.")
        for location in ("queue_running", "queue_pending"):
            if any(len(item) >= _QUEUE_ITEM_PARTS_MIN and item[1] == ref for item in queue.get(location, ())):
                return location
        return None

    # -- cancel and collect

    def cancel(self, ref: str) -> None:
        """Cancel one prompt. An interrupt without an id, or for a queued prompt, would stop another one."""
        if self._supports_cancel_by_id is not False:
            response = self._http.send("POST", f"/api/jobs/{quote(ref)}/cancel")
            self._supports_cancel_by_id = response.status_code not in _NO_SUCH_ROUTE
            if self._supports_cancel_by_id:
                require_success(response)
                return
        location = self._queue_location(ref)
        if location == "queue_pending":
            require_success(self._http.send("POST", "/queue", json={"delete": [ref]}))
        elif location == "queue_running":
            require_success(self._http.send("POST", "/interrupt", json={"prompt_id": ref}))

    def fetch(self, output: Output, into: Path) -> str:
        params = {"filename": output.name, "subfolder": output.location, "type": output.kind}
        return self._http.fetch(output, "/view", params, into)

    def forget(self, ref: str) -> None:
        require_success(self._http.send("POST", "/history", json={"delete": [ref]}))


def _parse_result(entry: dict[str, Any]) -> PromptStatus:
    status = entry.get("status") or {}
    outputs, status_name = parse_outputs(entry.get("outputs")), status.get("status_str")
    events = {
        event[0]: event[1] for event in status.get("messages") or () if isinstance(event, list) and len(event) > 1
    }
    if status_name == "success":
        return PromptResult("succeeded", outputs)
    if "execution_interrupted" in events:
        return PromptResult("canceled", outputs, "The prompt was interrupted on the ComfyUI server.", retryable=True)
    if status_name != "error":
        return "running"  # unknown status: wait until the timeout
    return PromptResult("failed", outputs, "ComfyUI failed to run the graph.", node_error=events.get("execution_error"))
