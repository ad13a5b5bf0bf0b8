"""Comfy Cloud by its first API, which speaks like a ComfyUI server but not quite.

It names its prompts itself: each is submitted with a mark, as the id of its workflow, by which the list of jobs finds
one whose answer was lost. It has no way to interrupt one prompt that would not stop all of the account's. It points to
storage for files, and storage is told no key.
"""

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from callsheet.worker.comfyui import sentences
from callsheet.worker.comfyui.base import ABSENT, Away, Busy, Declined, Ended, Graph, Live, Look, Output, Rejected
from callsheet.worker.comfyui.outputs import listed
from callsheet.worker.comfyui.socket import Socket
from callsheet.worker.comfyui.wire import READY_SECONDS, Wire, body_of, good, wait_of

URL = "https://cloud.comfy.org"
_BYTES_MAX = 5 << 30
_UPLOAD_BYTES_MAX = 50_000_000
_WAITING = {"submitted", "queued_limited", "queued_waiting", "allocated", "preparing", "pending_execution"}
_RUNNING = {"executing", "executed", "erroring", "cancel_requested", "cancel_pending", "cancelling_preparing"}
_INACTIVE = 429
"""No limit of rate: the subscription is not active, and stays so."""
_MARK = "mark:"


class CloudV1:
    """One account."""

    provider = "comfy-cloud"
    sends, repeats = True, False

    def __init__(
        self, key: str, url: str = URL, *, partner_key: str | None = None, bytes_max: int = _BYTES_MAX
    ) -> None:
        self._wire = Wire(url, {"X-API-Key": key}, proxied=True, bytes_max=bytes_max)
        self.endpoint = self._wire.url
        self._key = key
        self._partner_key = partner_key

    def close(self) -> None:
        self._wire.close()

    def ready(self) -> None:
        body_of(_open(self._wire.ask("GET", "/api/jobs", params={"limit": 1}, timeout=READY_SECONDS)))

    def named(self, prompt_id: str) -> str:
        """Return a mark: the cloud names its prompts itself."""
        return f"{_MARK}{prompt_id}"

    def known_as(self, ref: str) -> str | None:
        """Return the cloud's own id; that of a mark is in the list of jobs, whether or not the list was narrowed."""
        if not ref.startswith(_MARK):
            return ref
        mark = ref.removeprefix(_MARK)
        answer = body_of(_open(self._wire.ask("GET", "/api/jobs", params={"workflow_id": mark})))
        jobs = answer.get("jobs") if isinstance(answer, dict) else None
        found = [job for job in jobs or () if isinstance(job, dict) and job.get("workflow_id") == mark]
        return str(found[0]["id"]) if found else None

    def upload(self, name: str, path: Path) -> str:
        if path.stat().st_size > _UPLOAD_BYTES_MAX:
            raise Rejected("A file is larger than the 50 MB that Comfy Cloud takes.", code="file_too_large")
        answer = self._wire.bring("/api/upload/image", "image", name, path, {"type": "input"})
        if answer.status_code in {httpx.codes.BAD_REQUEST, httpx.codes.REQUEST_ENTITY_TOO_LARGE}:
            raise Rejected("Comfy Cloud did not take a file.", code="file_refused")
        return str(body_of(_open(answer))["name"])

    def listen(self, prompt_id: str) -> Live:
        asked = urlencode({"clientId": prompt_id, "token": self._key})
        return Socket(f"{self._wire.socket_url}/ws?{asked}", alone=False, proxied=True)

    def submit(self, prompt_id: str, graph: Graph) -> str:
        extra: dict[str, Any] = {"extra_pnginfo": {"workflow": {"id": prompt_id}}}
        if self._partner_key:
            extra["api_key_comfy_org"] = self._partner_key
        body = {"prompt": graph, "client_id": prompt_id, "extra_data": extra}
        answer = self._wire.ask("POST", "/api/prompt", json=body)
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            raise Busy("Comfy Cloud takes no work now.", wait_of(answer))
        if answer.status_code == httpx.codes.BAD_REQUEST:
            said = body_of(answer)
            raise Rejected(*sentences.rejection(said.get("error"), said.get("node_errors")))
        taken = body_of(_open(answer))
        ref = str(taken["prompt_id"])
        if taken.get("node_errors"):
            raise Rejected(*sentences.rejection(None, taken["node_errors"]), ref=ref)
        return ref

    def look(self, ref: str) -> Look:
        """Ask for the raw status; an unknown word means that it runs, unless the job's own record says more."""
        known = self.known_as(ref)
        if known is None:
            return ABSENT
        answer = self._wire.ask("GET", f"/api/job/{quote(known)}/status")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return ABSENT
        status = body_of(_open(answer))
        word = status.get("status")
        if word in _WAITING:
            return "waiting"
        if word in _RUNNING:
            return "running"
        return self._ended(known, word)

    def _ended(self, ref: str, word: str) -> Look:
        if word == "lost":
            return Ended("lost", error="Comfy Cloud lost the prompt.", retryable=True)
        job = self._record(ref)
        outputs = listed(job.get("outputs"))
        said = {"success": "completed", "error": "failed", "non_retryable_error": "failed", "cancelled": "cancelled"}
        ending = said.get(word) or job.get("status")
        if ending == "completed":
            return Ended("succeeded", outputs)
        if ending == "cancelled":
            return Ended("canceled", outputs, "The prompt was canceled at Comfy Cloud.", retryable=True)
        if ending != "failed":
            return "running"
        again = word != "non_retryable_error"
        return Ended("failed", outputs, "Comfy Cloud failed to run the graph.", again, job.get("execution_error"))

    def _record(self, ref: str) -> dict[str, Any]:
        """Return the job's record; the history is its old form, kept for servers that have no other."""
        job = self._wire.get(f"/api/jobs/{quote(ref)}")
        if job is None:
            old = self._wire.get(f"/api/history_v2/{quote(ref)}") or {}
            job = old.get(ref) or old
        return job if isinstance(job, dict) else {}

    def cancel(self, ref: str) -> None:
        """Ask for the end of one. `/api/interrupt` would stop every prompt of the account, and is never called."""
        known = self.known_as(ref)
        if known is not None:
            _open(self._wire.ask("POST", "/api/queue", json={"delete": [known]}))

    def fetch(self, output: Output, into: Path) -> str:
        params = {"filename": output.name, "subfolder": output.place, "type": output.kind}
        return self._wire.fetch(output, "/api/view", params, into)

    def forget(self, ref: str) -> None:
        """The cloud keeps its own books."""


def _open(answer: httpx.Response) -> httpx.Response:
    if answer.status_code == _INACTIVE:
        raise Declined("The subscription at Comfy Cloud is not active.")
    try:
        return good(answer)
    except Away as error:
        raise Away(f"Comfy Cloud answered with status {answer.status_code}.") from error
