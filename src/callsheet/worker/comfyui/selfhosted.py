"""A ComfyUI server of one's own, of any version from 0.7 on.

Its queue and history are in its memory only, its prompt ids are the caller's, and the same id twice runs twice. Its
queue is read before its history: a prompt that ends between the two reads is then found in the second.
"""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from callsheet.worker.comfyui import sentences
from callsheet.worker.comfyui.base import ABSENT, Away, Ended, Graph, Live, Look, Output, Rejected
from callsheet.worker.comfyui.outputs import listed
from callsheet.worker.comfyui.socket import Socket
from callsheet.worker.comfyui.wire import READY_SECONDS, Wire, body_of, good, in_trouble

URL = "http://127.0.0.1:8188"
_BYTES_MAX = 5 << 30
_NO_SUCH_ROUTE = {404, 405}
_MIB = 1 << 20
_PLACES_MIN = 2
"""The id is the second part of an entry of the queue."""


class SelfHosted:
    """One server, by its address."""

    provider = "comfyui"
    sends = repeats = True

    def __init__(self, url: str = URL, *, bytes_max: int = _BYTES_MAX) -> None:
        self._wire = Wire(url, proxied=False, bytes_max=bytes_max)
        self.endpoint = self._wire.url
        self._cancels: bool | None = None
        """Whether the server has a way to cancel by id; it is asked once."""

    def close(self) -> None:
        self._wire.close()

    def ready(self) -> None:
        queue = body_of(good(self._wire.ask("GET", "/queue", timeout=READY_SECONDS)))
        if not isinstance(queue, dict) or "queue_running" not in queue:
            raise Away("There is no ComfyUI server at this address.")

    def named(self, prompt_id: str) -> str | None:
        return prompt_id

    def known_as(self, ref: str) -> str:
        return ref

    # -- bringing work

    def upload(self, name: str, path: Path) -> str:
        self._check_size(path)
        answer = self._wire.bring("/upload/image", "image", name, path, {"type": "input"})
        if answer.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
            raise Rejected("A file is larger than the ComfyUI server takes.", code="file_too_large")
        if answer.status_code == httpx.codes.BAD_REQUEST:
            raise Rejected("The ComfyUI server did not take a file.", code="file_refused")
        kept = body_of(good(answer))
        folder = kept.get("subfolder")
        return f"{folder}/{kept['name']}" if folder else str(kept["name"])

    def _check_size(self, path: Path) -> None:
        features = self._wire.get("/features")
        most = features.get("max_upload_size") if isinstance(features, dict) else None
        if isinstance(most, int) and path.stat().st_size > most:
            raise Rejected(
                f"A file is larger than the {most // _MIB} MiB that the server takes.", code="file_too_large"
            )

    def listen(self, prompt_id: str) -> Live:
        return Socket(f"{self._wire.socket_url}/ws?clientId={quote(prompt_id)}", alone=True, proxied=False)

    def submit(self, prompt_id: str, graph: Graph) -> str:
        """Hand in a graph. The client's id is always sent: without it a cached run of 0.7 reports no outputs."""
        body = {"prompt": graph, "client_id": prompt_id, "prompt_id": prompt_id}
        answer = self._wire.ask("POST", "/prompt", json=body)
        if answer.status_code == httpx.codes.BAD_REQUEST:
            said = body_of(answer)
            raise Rejected(*sentences.rejection(said.get("error"), said.get("node_errors")))
        if in_trouble(answer):
            raise Away("ComfyUI could not read the graph, or is in trouble.")
        taken = body_of(good(answer))
        ref = str(taken.get("prompt_id") or prompt_id)
        if taken.get("node_errors"):  # it runs what is left of the graph, which nobody asked for
            raise Rejected(*sentences.rejection(None, taken["node_errors"]), ref=ref)
        return ref

    # -- looking

    def look(self, ref: str) -> Look:
        place = self._place(ref)
        if place is not None:
            return "waiting" if place == "queue_pending" else "running"
        entry = (self._wire.get(f"/history/{quote(ref)}") or {}).get(ref)
        return ABSENT if entry is None else _ended(entry)

    def _place(self, ref: str) -> str | None:
        queue = self._wire.get("/queue")
        if not isinstance(queue, dict):
            raise Away("There is no ComfyUI server at this address.")
        for place in ("queue_running", "queue_pending"):
            if any(len(item) >= _PLACES_MIN and item[1] == ref for item in queue.get(place, ())):
                return place
        return None

    # -- ending

    def cancel(self, ref: str) -> None:
        """Ask for the end of one prompt. An interrupt without an id, or for one that waits, would stop another's."""
        if self._cancels is not False:
            answer = self._wire.ask("POST", f"/api/jobs/{quote(ref)}/cancel")
            self._cancels = answer.status_code not in _NO_SUCH_ROUTE
            if self._cancels:
                good(answer)
                return
        place = self._place(ref)
        if place == "queue_pending":
            good(self._wire.ask("POST", "/queue", json={"delete": [ref]}))
        elif place == "queue_running":
            good(self._wire.ask("POST", "/interrupt", json={"prompt_id": ref}))

    def fetch(self, output: Output, into: Path) -> str:
        params = {"filename": output.name, "subfolder": output.place, "type": output.kind}
        return self._wire.fetch(output, "/view", params, into)

    def forget(self, ref: str) -> None:
        good(self._wire.ask("POST", "/history", json={"delete": [ref]}))


def _ended(entry: dict[str, Any]) -> Look:
    status = entry.get("status") or {}
    outputs, word = listed(entry.get("outputs")), status.get("status_str")
    events = {
        event[0]: event[1] for event in status.get("messages") or () if isinstance(event, list) and len(event) > 1
    }
    if word == "success":
        return Ended("succeeded", outputs)
    if "execution_interrupted" in events:
        return Ended("canceled", outputs, "The prompt was interrupted at the ComfyUI server.", retryable=True)
    if word != "error":
        return "running"  # an unknown word: it is waited for, up to the limit
    return Ended("failed", outputs, "ComfyUI failed to run the graph.", raised=events.get("execution_error"))
