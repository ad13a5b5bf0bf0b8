"""Runs ComfyUI graphs as tasks: one handler, and one backend per ComfyUI API.

Example: `worker = comfyui_worker(create_comfy_backend("self-hosted", "http://127.0.0.1:8188"), kinds=["comfyui"])`.
"""

from callsheet.worker.comfyui.adapters.base import (
    ComfyAccessDeniedError,
    ComfyBackend,
    ComfyBusyError,
    ComfyRejectedError,
    ComfyUnreachableError,
    Output,
    OutputNotFoundError,
    PromptResult,
)
from callsheet.worker.comfyui.adapters.cloud_v1 import CloudV1
from callsheet.worker.comfyui.adapters.cloud_v2 import CloudV2
from callsheet.worker.comfyui.adapters.self_hosted_server import SelfHosted
from callsheet.worker.comfyui.asset_cache import AssetCache
from callsheet.worker.comfyui.factory import Api, MissingApiKeyError, comfyui_worker, create_comfy_backend
from callsheet.worker.comfyui.handler import ComfyHandler
from callsheet.worker.comfyui.timeouts import Timeouts

__all__ = [
    "Api",
    "AssetCache",
    "CloudV1",
    "CloudV2",
    "ComfyAccessDeniedError",
    "ComfyBackend",
    "ComfyBusyError",
    "ComfyHandler",
    "ComfyRejectedError",
    "ComfyUnreachableError",
    "MissingApiKeyError",
    "Output",
    "OutputNotFoundError",
    "PromptResult",
    "SelfHosted",
    "Timeouts",
    "comfyui_worker",
    "create_comfy_backend",
]  # fmt: skip
