"""From an address to a worker: which adapter, and a handler for each kind of work."""

from collections.abc import Iterable
from typing import Literal

from callsheet.worker.comfyui import cloud, selfhosted
from callsheet.worker.comfyui.base import Comfy
from callsheet.worker.comfyui.cloud import CloudV1
from callsheet.worker.comfyui.cloud2 import CloudV2
from callsheet.worker.comfyui.handler import ComfyHandler
from callsheet.worker.comfyui.pace import Pace
from callsheet.worker.comfyui.selfhosted import SelfHosted
from callsheet.worker.worker import Worker

Api = Literal["self-hosted", "cloud", "v2"]


def comfy_at(api: Api = "self-hosted", url: str | None = None, key: str | None = None) -> Comfy:
    """Return the adapter for a server; without an address, the usual one of its kind."""
    if api == "self-hosted":
        return SelfHosted(url or selfhosted.URL)
    if api == "cloud":
        if not key:
            raise ValueError("Comfy Cloud needs a key.")
        return CloudV1(key, url or cloud.URL)
    return CloudV2(key or "", url or cloud.URL)


def comfyui_worker(
    comfy: Comfy, kinds: Iterable[str] = ("comfyui",), pace: Pace | None = None, name: str = "comfyui"
) -> Worker:
    """Return a worker whose every kind of work is to run the graph of its task."""
    worker, handler = Worker(name), ComfyHandler(comfy, pace)
    for kind in kinds:
        worker.task(kind)(handler)
    return worker
