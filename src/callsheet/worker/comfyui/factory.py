"""From an address to a worker: which adapter, and a handler for each kind of work."""

from collections.abc import Iterable
from typing import Literal

from callsheet.worker.comfyui.adapters import cloud_v1, selfhosted
from callsheet.worker.comfyui.adapters.base import ComfyAccessDeniedError, ComfyBackend, ComfyUnreachableError
from callsheet.worker.comfyui.adapters.cloud_v1 import CloudV1
from callsheet.worker.comfyui.adapters.cloud_v2 import CloudV2
from callsheet.worker.comfyui.adapters.selfhosted import SelfHosted
from callsheet.worker.comfyui.handler import ComfyHandler
from callsheet.worker.comfyui.timeouts import Timeouts
from callsheet.worker.errors import UnreachableError
from callsheet.worker.worker import Worker

Api = Literal["self-hosted", "cloud", "v2"]


class MissingApiKeyError(ValueError):
    """There is no key for a server that is used with one."""


def create_comfy_backend(api: Api = "self-hosted", url: str | None = None, key: str | None = None) -> ComfyBackend:
    """Return the adapter for a server; without an address, the usual one of its kind."""
    if api == "self-hosted":
        return SelfHosted(url or selfhosted.URL)
    if not key and (api == "cloud" or url is None):  # a v2 server of one's own may need none
        raise MissingApiKeyError("Comfy Cloud needs a key.")
    return CloudV1(key or "", url or cloud_v1.URL) if api == "cloud" else CloudV2(key or "", url or cloud_v1.URL)


def comfyui_worker(
    comfy: ComfyBackend, kinds: Iterable[str] = ("comfyui",), timeouts: Timeouts | None = None, name: str = "comfyui"
) -> Worker:
    """Return a worker whose every kind of work is to run the graph of its task, once it has seen the server."""

    def check_ready() -> None:
        try:
            comfy.check_ready()
        except (ComfyUnreachableError, ComfyAccessDeniedError) as error:
            raise UnreachableError(f"{error} Is {comfy.endpoint} the server?") from None

    worker, handler = Worker(name, check_ready), ComfyHandler(comfy, timeouts)
    for kind in kinds:
        worker.task(kind)(handler)
    return worker
