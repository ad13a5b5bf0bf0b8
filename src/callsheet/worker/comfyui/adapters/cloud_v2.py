"""Comfy API v2: Comfy Cloud, serverless deployments and the proxy in front of a self-hosted server.

Submissions have an idempotency key, so a submission whose response was lost is repeated. If the server answers that it
already knows the key without naming the job, the task fails. Files are assets with ids. The API key is sent to no other
host.
"""

import uuid
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from callsheet.core.policy.redaction import redact_error
from callsheet.worker.comfyui.adapters import error_text
from callsheet.worker.comfyui.adapters.base import (
    NOT_FOUND,
    ComfyAccessDeniedError,
    ComfyBusyError,
    ComfyRejectedError,
    ComfyUnreachableError,
    EventStream,
    Graph,
    Output,
    PromptResult,
    PromptStatus,
)
from callsheet.worker.comfyui.adapters.sse_event_stream import SseEventStream
from callsheet.worker.comfyui.adapters.transport import (
    READY_TIMEOUT_SECONDS,
    ComfyHttp,
    is_server_error,
    json_body,
    require_success,
    retry_after_seconds,
)
from callsheet.worker.comfyui.media_type import HEAD_BYTES, detect_media_type

URL = "https://cloud.comfy.org"
_BYTES_MAX = 5 << 30
_API_ROOT = "/api/v2"
_SUBMIT_ATTEMPTS = 3
_MESSAGE_CHARS_MAX = 300
_WAITING, _ENDED = {"queued"}, {"succeeded", "failed", "canceled", "expired"}
_INVALID = {"invalid_workflow", "workflow_format_ui", "missing_asset", "hash_mismatch"}
_UPSTREAM_UNREACHABLE = "upstream_unreachable"
"""Error code of the proxy. Its ComfyUI is self-hosted, so a retry is not billed twice."""
_DENIED = {"insufficient_credits", "unauthorized", "forbidden", "deployment_stopped"}


class CloudV2:
    """One Comfy Cloud account, deployment or proxy."""

    provider = "comfy-v2"
    supports_websocket_pictures = safe_to_resubmit = False

    def __init__(
        self, key: str, url: str = URL, *, partner_key: str | None = None, bytes_max: int = _BYTES_MAX
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = ComfyHttp(url, headers, use_env_proxy=True, bytes_max=bytes_max)
        self.endpoint = self._http.url
        self._partner_key = partner_key

    def close(self) -> None:
        self._http.close()

    def check_ready(self) -> None:
        """Request a job that does not exist: a server with this API answers 404 with JSON."""
        response = self._http.send("GET", f"{_API_ROOT}/jobs/{uuid.uuid4()}", timeout=READY_TIMEOUT_SECONDS)
        if response.status_code != httpx.codes.NOT_FOUND:
            require_success(response)
        json_body(response)

    def planned_ref(self, prompt_id: str) -> str | None:  # noqa: ARG002 - the server assigns job ids
        return None

    def resolve_ref(self, ref: str) -> str:
        return ref

    def upload(self, name: str, path: Path) -> dict[str, Any]:
        with path.open("rb") as file:
            kind = detect_media_type(file.read(HEAD_BYTES), name=name)
        response = self._http.upload_form(
            f"{_API_ROOT}/assets", "file", name, path, {"content_type": kind, "file_path": name}
        )
        if response.is_client_error:
            _raise_refusal(response)
        asset = json_body(require_success(response))
        info = {field: asset[field] for field in ("id", "hash", "file_path") if asset.get(field) is not None}
        return {"__type": "core/ASSET", "info": info}

    def listen(self, prompt_id: str) -> EventStream:  # noqa: ARG002 - the stream needs the job id
        return SseEventStream(self._open_events)

    def _open_events(self, ref: str) -> AbstractContextManager[httpx.Response]:
        return self._http.stream(f"{_API_ROOT}/jobs/{quote(ref)}/events")

    def submit(self, prompt_id: str, graph: Graph) -> str:
        """Submit with an idempotency key; repeat with the same key after a lost response."""
        body: dict[str, Any] = {"workflow": graph}
        if self._partner_key:
            body["extra_data"] = {"api_key_comfy_org": self._partner_key}
        for attempts_left in reversed(range(_SUBMIT_ATTEMPTS)):
            try:
                response = self._http.send(
                    "POST", f"{_API_ROOT}/jobs", json=body, headers={"Idempotency-Key": prompt_id}
                )
            except ComfyUnreachableError:
                if not attempts_left:
                    raise
                continue
            if response.is_client_error:
                _raise_refusal(response)
            if is_server_error(response) and _error_code(response) == _UPSTREAM_UNREACHABLE:
                raise ComfyBusyError(
                    "The ComfyUI server behind the proxy does not respond.", retry_after_seconds(response)
                )
            if is_server_error(response) and attempts_left:
                continue
            return str(json_body(require_success(response))["id"])
        raise AssertionError("not reached")

    def get_status(self, ref: str) -> PromptStatus:
        job = self._http.get(f"{_API_ROOT}/jobs/{quote(ref)}")
        if job is None:
            return NOT_FOUND
        status_name = job.get("status")
        if status_name in _ENDED:
            return _parse_result(status_name, job)
        return "waiting" if status_name in _WAITING else "running"

    def cancel(self, ref: str) -> None:
        response = self._http.send("POST", f"{_API_ROOT}/jobs/{quote(ref)}/cancel")
        if response.status_code != httpx.codes.NOT_FOUND:
            require_success(response)

    def fetch(self, output: Output, into: Path) -> str:
        return self._http.fetch(output, f"{_API_ROOT}/assets/{quote(output.location)}/content", {}, into)

    def forget(self, ref: str) -> None:
        """Do nothing: jobs expire by themselves."""


def _parse_result(status_name: str, job: dict[str, Any]) -> PromptResult:
    outputs = tuple(
        Output(str(entry.get("node_id") or ""), str(entry.get("name") or "file"), str(entry["id"]))
        for entry in job.get("outputs") or ()
        if isinstance(entry, dict) and entry.get("id")
    )
    if status_name == "succeeded":
        return PromptResult("succeeded", outputs)
    if status_name == "canceled":
        return PromptResult("canceled", outputs, "The job was canceled on the server.", retryable=True)
    if status_name == "expired":
        return PromptResult("failed", outputs, "The job expired on the server before it ran.", retryable=True)
    error = job.get("error") or {}
    node_error = {"node_id": error.get("node_id"), "node_type": error.get("class_type")}
    node_error |= {"exception_type": error.get("code"), "exception_message": error.get("message")}
    return PromptResult("failed", outputs, node_error=node_error)


def _error_code(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def _raise_refusal(response: httpx.Response) -> None:
    """Raise the error of a rejected request. The error code decides, not the status."""
    try:
        error = response.json()["error"]
        code, message = str(error["code"]), redact_error(str(error["message"]), _MESSAGE_CHARS_MAX)
    except (ValueError, KeyError, TypeError):
        require_success(response)
        raise AssertionError("not reached") from None
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise ComfyBusyError(f"The server accepts no more jobs at the moment ({code}).", retry_after_seconds(response))
    if code in _DENIED:
        raise ComfyAccessDeniedError(message)
    if code == "idempotency_key_reuse":
        raise ComfyUnreachableError("The server accepted the job, but its response was lost.")
    if code in _INVALID:
        description, nodes = error_text.describe_rejection(error, (error.get("details") or {}).get("node_errors"))
        raise ComfyRejectedError(description, nodes, "missing_asset" if code == "missing_asset" else "invalid_graph")
    require_success(response)
