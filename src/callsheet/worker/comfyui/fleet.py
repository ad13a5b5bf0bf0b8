"""From an address to a worker: which adapter, and a handler for each kind of work."""

from collections.abc import Iterable
from typing import Literal

from callsheet.worker.comfyui import cloud, selfhosted
from callsheet.worker.comfyui.base import Away, Comfy, Declined
from callsheet.worker.comfyui.cloud import CloudV1
from callsheet.worker.comfyui.cloud2 import CloudV2
from callsheet.worker.comfyui.handler import ComfyHandler
from callsheet.worker.comfyui.pace import Pace
from callsheet.worker.comfyui.selfhosted import SelfHosted
from callsheet.worker.errors import Unreachable
from callsheet.worker.worker import Worker

Api = Literal["self-hosted", "cloud", "v2"]


class KeyNeeded(ValueError):  # noqa: N818 - it says what is wrong
    """There is no key for a server that is used with one."""


def comfy_at(api: Api = "self-hosted", url: str | None = None, key: str | None = None) -> Comfy:
    """Return the adapter for a server; without an address, the usual one of its kind."""
    if api == "self-hosted":
        return SelfHosted(url or selfhosted.URL)
    if not key and (api == "cloud" or url is None):  # a v2 server of one's own may need none
        raise KeyNeeded("Comfy Cloud needs a key.")
    return CloudV1(key or "", url or cloud.URL) if api == "cloud" else CloudV2(key or "", url or cloud.URL)


def comfyui_worker(
    comfy: Comfy, kinds: Iterable[str] = ("comfyui",), pace: Pace | None = None, name: str = "comfyui"
) -> Worker:
    """Return a worker whose every kind of work is to run the graph of its task, once it has seen the server."""

    def ready() -> None:
        try:
            comfy.ready()
        except (Away, Declined) as error:
            raise Unreachable(f"{error} Is {comfy.endpoint} the server?") from None

    worker, handler = Worker(name, ready), ComfyHandler(comfy, pace)
    for kind in kinds:
        worker.task(kind)(handler)
    return worker
