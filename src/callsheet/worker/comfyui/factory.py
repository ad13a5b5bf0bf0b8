"""Creates the backend for a ComfyUI URL and a worker that uses it."""

from collections.abc import Iterable
from typing import Literal

from callsheet.worker.comfyui.adapters import cloud_v1, self_hosted_server
from callsheet.worker.comfyui.adapters.base import ComfyAccessDeniedError, ComfyBackend, ComfyUnreachableError
from callsheet.worker.comfyui.adapters.cloud_v1 import CloudV1
from callsheet.worker.comfyui.adapters.cloud_v2 import CloudV2
from callsheet.worker.comfyui.adapters.self_hosted_server import SelfHosted
from callsheet.worker.comfyui.handler import ComfyHandler
from callsheet.worker.comfyui.timeouts import Timeouts
from callsheet.worker.errors import UnreachableError
from callsheet.worker.worker import Worker

Api = Literal["self-hosted", "cloud", "v2"]


class MissingApiKeyError(ValueError):
    """The API requires a key, and none was passed."""


def create_comfy_backend(api: Api = "self-hosted", url: str | None = None, key: str | None = None) -> ComfyBackend:
    """Return the backend of an API; without a URL, at its default URL."""
    if api == "self-hosted":
        return SelfHosted(url or self_hosted_server.URL)
    if not key and (api == "cloud" or url is None):  # a self-hosted v2 server may need no key
        raise MissingApiKeyError("Comfy Cloud requires an API key.")
    return CloudV1(key or "", url or cloud_v1.URL) if api == "cloud" else CloudV2(key or "", url or cloud_v1.URL)


def comfyui_worker(
    comfy: ComfyBackend, kinds: Iterable[str] = ("comfyui",), timeouts: Timeouts | None = None, name: str = "comfyui"
) -> Worker:
    """Return a worker that runs the graph of each task. It claims no task before the ComfyUI server responds."""

    def check_ready() -> None:
        try:
            comfy.check_ready()
        except (ComfyUnreachableError, ComfyAccessDeniedError) as error:
            raise UnreachableError(f"{error} Check that {comfy.endpoint} is a ComfyUI server.") from None

    worker, handler = Worker(name, check_ready), ComfyHandler(comfy, timeouts)
    for kind in kinds:
        worker.task(kind)(handler)
    return worker
