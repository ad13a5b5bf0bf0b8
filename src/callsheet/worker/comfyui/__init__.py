"""Graphs of ComfyUI as tasks: one handler, and one adapter for each way that a graph can be run.

worker = comfyui_worker(comfy_at("self-hosted", "http://127.0.0.1:8188"), kinds=["comfyui"])
"""

from callsheet.worker.comfyui.assets import Assets
from callsheet.worker.comfyui.base import Away, Busy, Comfy, Declined, Ended, Gone, Output, Rejected
from callsheet.worker.comfyui.cloud import CloudV1
from callsheet.worker.comfyui.cloud2 import CloudV2
from callsheet.worker.comfyui.fleet import Api, KeyNeeded, comfy_at, comfyui_worker
from callsheet.worker.comfyui.handler import ComfyHandler
from callsheet.worker.comfyui.pace import Pace
from callsheet.worker.comfyui.selfhosted import SelfHosted

__all__ = [
    "Api", "Assets", "Away", "Busy", "CloudV1", "CloudV2", "Comfy", "ComfyHandler", "Declined", "Ended", "Gone",
    "KeyNeeded", "Output", "Pace", "Rejected", "SelfHosted", "comfy_at", "comfyui_worker",
]  # fmt: skip
