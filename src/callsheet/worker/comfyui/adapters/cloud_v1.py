"""Comfy Cloud, first API. It resembles the API of a ComfyUI server, with three differences.

- The cloud assigns prompt ids. Each prompt is submitted with a marker as its workflow id, so that the job list finds it
  after a lost response.
- Its interrupt call stops all prompts of the account, so it is never used.
- Files are redirected to object storage, which must not receive the API key.
"""

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx

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
from callsheet.worker.comfyui.adapters.output_list import parse_outputs
from callsheet.worker.comfyui.adapters.transport import (
    READY_TIMEOUT_SECONDS,
    ComfyHttp,
    json_body,
    require_success,
    retry_after_seconds,
)
from callsheet.worker.comfyui.adapters.websocket_event_stream import WebSocketEventStream

URL = "https://cloud.comfy.org"
_BYTES_MAX = 5 << 30
_UPLOAD_BYTES_MAX = 50_000_000
_WAITING = {"submitted", "queued_limited", "queued_waiting", "allocated", "preparing", "pending_execution"}
_RUNNING = {"executing", "executed", "erroring", "cancel_requested", "cancel_pending", "cancelling_preparing"}
_SUBSCRIPTION_INACTIVE = 429
"""Comfy Cloud uses 429 for an inactive subscription, not for a rate limit."""
_MARKER_PREFIX = "mark:"


class CloudV1:
    """One Comfy Cloud account."""

    provider = "comfy-cloud"
    supports_websocket_pictures, safe_to_resubmit = True, False

    def __init__(
        self, key: str, url: str = URL, *, partner_key: str | None = None, bytes_max: int = _BYTES_MAX
    ) -> None:
        self._http = ComfyHttp(url, {"X-API-Key": key}, use_env_proxy=True, bytes_max=bytes_max)
        self.endpoint = self._http.url
        self._key = key
        self._partner_key = partner_key

    def close(self) -> None:
        self._http.close()

    def check_ready(self) -> None:
        json_body(
            _require_success(self._http.send("GET", "/api/jobs", params={"limit": 1}, timeout=READY_TIMEOUT_SECONDS))
        )

    def planned_ref(self, prompt_id: str) -> str:
        """Return a marker, because the cloud assigns the prompt id."""
        return f"{_MARKER_PREFIX}{prompt_id}"

    def resolve_ref(self, ref: str) -> str | None:
        """Return the cloud's id; for a marker, search the job list, which may ignore the filter."""
        if not ref.startswith(_MARKER_PREFIX):
            return ref
        marker = ref.removeprefix(_MARKER_PREFIX)
        response = json_body(_require_success(self._http.send("GET", "/api/jobs", params={"workflow_id": marker})))
        jobs = response.get("jobs") if isinstance(response, dict) else None
        found = [job for job in jobs or () if isinstance(job, dict) and job.get("workflow_id") == marker]
        return str(found[0]["id"]) if found else None

    def upload(self, name: str, path: Path) -> str:
        if path.stat().st_size > _UPLOAD_BYTES_MAX:
            raise ComfyRejectedError("An input file exceeds the 50 MB limit of Comfy Cloud.", code="file_too_large")
        response = self._http.upload_form("/api/upload/image", "image", name, path, {"type": "input"})
        if response.status_code in {httpx.codes.BAD_REQUEST, httpx.codes.REQUEST_ENTITY_TOO_LARGE}:
            raise ComfyRejectedError("Comfy Cloud rejected an input file.", code="file_refused")
        return str(json_body(_require_success(response))["name"])

    def listen(self, prompt_id: str) -> EventStream:
        query = urlencode({"clientId": prompt_id, "token": self._key})
        return WebSocketEventStream(f"{self._http.socket_url}/ws?{query}", exclusive=False, use_env_proxy=True)

    def submit(self, prompt_id: str, graph: Graph) -> str:
        extra: dict[str, Any] = {"extra_pnginfo": {"workflow": {"id": prompt_id}}}
        if self._partner_key:
            extra["api_key_comfy_org"] = self._partner_key
        body = {"prompt": graph, "client_id": prompt_id, "extra_data": extra}
        response = self._http.send("POST", "/api/prompt", json=body)
        if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            raise ComfyBusyError("Comfy Cloud accepts no prompts at the moment.", retry_after_seconds(response))
        if response.status_code == httpx.codes.BAD_REQUEST:
            mapping = json_body(response)
            raise ComfyRejectedError(*error_text.describe_rejection(mapping.get("error"), mapping.get("node_errors")))
        accepted = json_body(_require_success(response))
        ref = str(accepted["prompt_id"])
        if accepted.get("node_errors"):
            raise ComfyRejectedError(*error_text.describe_rejection(None, accepted["node_errors"]), ref=ref)
        return ref

    def get_status(self, ref: str) -> PromptStatus:
        """Query the status. An unknown status counts as running unless the job record says otherwise."""
        resolved = self.resolve_ref(ref)
        if resolved is None:
            return NOT_FOUND
        response = self._http.send("GET", f"/api/job/{quote(resolved)}/status")
        if response.status_code == httpx.codes.NOT_FOUND:
            return NOT_FOUND
        status = json_body(_require_success(response))
        status_name = status.get("status")
        if status_name in _WAITING:
            return "waiting"
        if status_name in _RUNNING:
            return "running"
        return self._parse_result(resolved, status_name)

    def _parse_result(self, ref: str, status_name: str) -> PromptStatus:
        if status_name == "lost":
            return PromptResult("lost", error="Comfy Cloud lost the prompt.", retryable=True)
        job = self._get_record(ref)
        outputs = parse_outputs(job.get("outputs"))
        mapping = {"success": "completed", "error": "failed", "non_retryable_error": "failed", "cancelled": "cancelled"}
        outcome = mapping.get(status_name) or job.get("status")
        if outcome == "completed":
            return PromptResult("succeeded", outputs)
        if outcome == "cancelled":
            return PromptResult("canceled", outputs, "The prompt was canceled at Comfy Cloud.", retryable=True)
        if outcome != "failed":
            return "running"
        retryable = status_name != "non_retryable_error"
        return PromptResult(
            "failed", outputs, "Comfy Cloud failed to run the graph.", retryable, job.get("execution_error")
        )

    def _get_record(self, ref: str) -> dict[str, Any]:
        """Return the job record, or the legacy history entry of older servers."""
        job = self._http.get(f"/api/jobs/{quote(ref)}")
        if job is None:
            legacy = self._http.get(f"/api/history_v2/{quote(ref)}") or {}
            job = legacy.get(ref) or legacy
        return job if isinstance(job, dict) else {}

    def cancel(self, ref: str) -> None:
        """Cancel one prompt. `/api/interrupt` would stop all prompts of the account and is never called."""
        resolved = self.resolve_ref(ref)
        if resolved is not None:
            _require_success(self._http.send("POST", "/api/queue", json={"delete": [resolved]}))

    def fetch(self, output: Output, into: Path) -> str:
        params = {"filename": output.name, "subfolder": output.location, "type": output.kind}
        return self._http.fetch(output, "/api/view", params, into)

    def forget(self, ref: str) -> None:
        """Do nothing: the cloud manages its own records."""


def _require_success(response: httpx.Response) -> httpx.Response:
    if response.status_code == _SUBSCRIPTION_INACTIVE:
        raise ComfyAccessDeniedError("The Comfy Cloud subscription is not active.")
    try:
        return require_success(response)
    except ComfyUnreachableError as error:
        raise ComfyUnreachableError(f"Comfy Cloud answered with status {response.status_code}.") from error
