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

from callsheet.protocol import Earlier, Given
from callsheet.worker.cache import Cache
from callsheet.worker.context import Context
from callsheet.worker.errors import (
    Barred,
    Canceled,
    Dismissed,
    GiveUp,
    Leaving,
    Lost,
    Retry,
    Stop,
    Unreachable,
)
from callsheet.worker.httplink import HttpLink
from callsheet.worker.link import Link
from callsheet.worker.notice import FileNotice, Lookout, Notice, Noticed, SpotNotice, UrlNotice
from callsheet.worker.protection import CommandProtection, Protection
from callsheet.worker.scratch import Scratch
from callsheet.worker.shift import Going, Kit, Shift
from callsheet.worker.worker import Worker

__all__ = [
    "Barred", "Cache", "Canceled", "CommandProtection", "Context", "Dismissed", "Earlier", "FileNotice", "GiveUp",
    "Given", "Going", "HttpLink", "Kit", "Leaving", "Link", "Lookout", "Lost", "Notice", "Noticed", "Protection",
    "Retry", "Scratch", "Shift", "SpotNotice", "Stop", "Unreachable", "UrlNotice", "Worker",
]  # fmt: skip
