"""The worker SDK: write a handler per kind of work, and let it run wherever there is a link to the house.

    worker = Worker("studio")

    @worker.task("upscale")
    def upscale(ctx: Context) -> dict[str, int]:
        picture = ctx.download(ctx.input["picture"])
        for percent, frame in enlarged(picture):
            ctx.progress(percent, "enlarging")
        ctx.upload("large.png", frame, "image/png")
        return {"scale": 4}

A handler that returns completes its task; one that raises fails it, and the workflow's policy says whether it is tried
again. Heartbeats are sent for as long as it runs. `callsheet work` runs it anywhere that reaches the house over HTTP.
"""

from callsheet.api.worker_protocol import InputFile, PreviousOutput
from callsheet.worker.context import Context
from callsheet.worker.errors import (
    InvalidTokenError,
    NonRetryableError,
    RegistrationError,
    RetryableError,
    TaskCanceled,
    TaskLeaseLost,
    TaskStopped,
    UnreachableError,
    WorkerShutdown,
)
from callsheet.worker.files.cache import Cache
from callsheet.worker.files.temp_folders import Scratch
from callsheet.worker.link.base import Link
from callsheet.worker.link.http import HttpLink
from callsheet.worker.runtime.interruption import (
    AwsSpotSource,
    FileSource,
    Interruption,
    InterruptionSource,
    InterruptionWatcher,
    UrlSource,
)
from callsheet.worker.runtime.runner import Shutdown, WorkerOptions, WorkerRun
from callsheet.worker.runtime.scale_in_protection import CommandProtection, ScaleInProtection
from callsheet.worker.worker import Worker

__all__ = [
    "AwsSpotSource",
    "Cache",
    "CommandProtection",
    "Context",
    "FileSource",
    "HttpLink",
    "InputFile",
    "Interruption",
    "InterruptionSource",
    "InterruptionWatcher",
    "InvalidTokenError",
    "Link",
    "NonRetryableError",
    "PreviousOutput",
    "RegistrationError",
    "RetryableError",
    "ScaleInProtection",
    "Scratch",
    "Shutdown",
    "TaskCanceled",
    "TaskLeaseLost",
    "TaskStopped",
    "UnreachableError",
    "UrlSource",
    "Worker",
    "WorkerOptions",
    "WorkerRun",
    "WorkerShutdown",
]  # fmt: skip
