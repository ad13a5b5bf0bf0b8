"""The Comfy API v2: Comfy Cloud, serverless deployments, and the proxy in front of a server of one's own.

A submission has an idempotency key, so a lost answer is asked for again; a key that the server knows already, without
saying for which job, ends the task. Files are assets with ids; the bearer's token goes to no other host.
"""

import uuid
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from callsheet.core.redact import clean
from callsheet.worker.comfyui import sentences
from callsheet.worker.comfyui.base import ABSENT, Away, Busy, Declined, Ended, Graph, Live, Look, Output, Rejected
from callsheet.worker.comfyui.media import HEAD_BYTES, media_type
from callsheet.worker.comfyui.stream import Stream
from callsheet.worker.comfyui.wire import READY_SECONDS, Wire, body_of, good, in_trouble, wait_of

URL = "https://cloud.comfy.org"
_BYTES_MAX = 5 << 30
_ROOT = "/api/v2"
_TRIES = 3
_CHARS_MAX = 300
_WAITING, _ENDED = {"queued"}, {"succeeded", "failed", "canceled", "expired"}
_INVALID = {"invalid_workflow", "workflow_format_ui", "missing_asset", "hash_mismatch"}
_UPSTREAM = "upstream_unreachable"
"""The proxy's own word: the ComfyUI is one's own too, so nothing is paid twice."""
_DENIED = {"insufficient_credits", "unauthorized", "forbidden", "deployment_stopped"}


class CloudV2:
    """One account, or one deployment."""

    provider = "comfy-v2"
    sends = repeats = False

    def __init__(
        self, key: str, url: str = URL, *, partner_key: str | None = None, bytes_max: int = _BYTES_MAX
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._wire = Wire(url, headers, proxied=True, bytes_max=bytes_max)
        self.endpoint = self._wire.url
        self._partner_key = partner_key

    def close(self) -> None:
        self._wire.close()

    def ready(self) -> None:
        """Look for a job that there is not: a server that speaks this API says so in JSON."""
        answer = self._wire.ask("GET", f"{_ROOT}/jobs/{uuid.uuid4()}", timeout=READY_SECONDS)
        if answer.status_code != httpx.codes.NOT_FOUND:
            good(answer)
        body_of(answer)

    def named(self, prompt_id: str) -> str | None:  # noqa: ARG002 - the server names its jobs itself
        return None

    def known_as(self, ref: str) -> str:
        return ref

    def upload(self, name: str, path: Path) -> dict[str, Any]:
        with path.open("rb") as file:
            kind = media_type(file.read(HEAD_BYTES), name=name)
        answer = self._wire.bring(f"{_ROOT}/assets", "file", name, path, {"content_type": kind, "file_path": name})
        if answer.is_client_error:
            _refuse(answer)
        asset = body_of(good(answer))
        info = {field: asset[field] for field in ("id", "hash", "file_path") if asset.get(field) is not None}
        return {"__type": "core/ASSET", "info": info}

    def listen(self, prompt_id: str) -> Live:  # noqa: ARG002 - a job has a stream once it has a name
        return Stream(self._events)

    def _events(self, ref: str) -> AbstractContextManager[httpx.Response]:
        return self._wire.stream(f"{_ROOT}/jobs/{quote(ref)}/events")

    def submit(self, prompt_id: str, graph: Graph) -> str:
        """Submit under a key of one's own; a lost answer is asked for again under the same."""
        body: dict[str, Any] = {"workflow": graph}
        if self._partner_key:
            body["extra_data"] = {"api_key_comfy_org": self._partner_key}
        for left in reversed(range(_TRIES)):
            try:
                answer = self._wire.ask("POST", f"{_ROOT}/jobs", json=body, headers={"Idempotency-Key": prompt_id})
            except Away:
                if not left:
                    raise
                continue
            if answer.is_client_error:
                _refuse(answer)
            if in_trouble(answer) and _code_of(answer) == _UPSTREAM:
                raise Busy("The ComfyUI behind the server does not answer.", wait_of(answer))
            if in_trouble(answer) and left:
                continue
            return str(body_of(good(answer))["id"])
        raise AssertionError("not reached")

    def look(self, ref: str) -> Look:
        job = self._wire.get(f"{_ROOT}/jobs/{quote(ref)}")
        if job is None:
            return ABSENT
        word = job.get("status")
        if word in _ENDED:
            return _ended(word, job)
        return "waiting" if word in _WAITING else "running"

    def cancel(self, ref: str) -> None:
        answer = self._wire.ask("POST", f"{_ROOT}/jobs/{quote(ref)}/cancel")
        if answer.status_code != httpx.codes.NOT_FOUND:
            good(answer)

    def fetch(self, output: Output, into: Path) -> str:
        return self._wire.fetch(output, f"{_ROOT}/assets/{quote(output.place)}/content", {}, into)

    def forget(self, ref: str) -> None:
        """Jobs expire by themselves."""


def _ended(word: str, job: dict[str, Any]) -> Ended:
    outputs = tuple(
        Output(str(made.get("node_id") or ""), str(made.get("name") or "file"), str(made["id"]))
        for made in job.get("outputs") or ()
        if isinstance(made, dict) and made.get("id")
    )
    if word == "succeeded":
        return Ended("succeeded", outputs)
    if word == "canceled":
        return Ended("canceled", outputs, "The job was canceled at the server.", retryable=True)
    if word == "expired":
        return Ended("failed", outputs, "The job expired at the server before it ran.", retryable=True)
    error = job.get("error") or {}
    raised = {"node_id": error.get("node_id"), "node_type": error.get("class_type")}
    raised |= {"exception_type": error.get("code"), "exception_message": error.get("message")}
    return Ended("failed", outputs, raised=raised)


def _code_of(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def _refuse(answer: httpx.Response) -> None:
    """Raise what a refusal means; its code says that, not its status."""
    try:
        error = answer.json()["error"]
        code, said = str(error["code"]), clean(str(error["message"]), _CHARS_MAX)
    except (ValueError, KeyError, TypeError):
        good(answer)
        raise AssertionError("not reached") from None
    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise Busy(f"The server takes no more now ({code}).", wait_of(answer))
    if code in _DENIED:
        raise Declined(said)
    if code == "idempotency_key_reuse":
        raise Away("The server has taken the job, but its answer was lost.")
    if code in _INVALID:
        words, nodes = sentences.rejection(error, (error.get("details") or {}).get("node_errors"))
        raise Rejected(words, nodes, "missing_asset" if code == "missing_asset" else "invalid_graph")
    good(answer)
