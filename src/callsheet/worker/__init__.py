"""The worker SDK: write one handler per kind of task and run it on any machine that can reach the server.

    from callsheet.worker import Context, Worker

    worker = Worker("studio")

    @worker.task("upscale")
    def upscale(ctx: Context) -> dict[str, int]:
        image = ctx.download(ctx.input["image"])
        for percent, result in enlarge(image, scale=4):
            ctx.progress(percent, "upscaling")
        ctx.upload("large.png", result, "image/png")
        return {"scale": 4}

Run it with `callsheet worker studio:worker --url https://callsheet.example.com`, or call `worker.start(HttpLink(...))`.

- If the handler returns, the task is completed with the returned JSON and the uploaded files.
- If it raises, the attempt fails. The retry policy of the workflow decides whether there is another attempt; raise
  `RetryableError` or `NonRetryableError` to decide it yourself.
- While it runs, the SDK sends heartbeats. If the job is canceled or the lease is lost, the next call of the context
  raises a `TaskStopped`.
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
from callsheet.worker.runtime.interruption_notices import (
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
