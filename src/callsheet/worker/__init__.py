"""The worker SDK: write a handler per kind of work, and let it run wherever there is a link to the house.

    worker = Worker("studio")

    @worker.task("upscale")
    def upscale(ctx: Context) -> dict[str, int]:
        for percent, frame in enlarged(ctx.input["picture"]):
            ctx.progress(percent, "enlarging")
        ctx.save("large.png", frame, "image/png")
        return {"scale": 4}

A handler that returns completes its task; one that raises fails it, and the workflow's policy says whether it is tried
again. Heartbeats are sent for as long as it runs.
"""

from callsheet.worker.context import Context
from callsheet.worker.errors import Canceled, GiveUp, Leaving, Lost, Retry, Stop, Unreachable
from callsheet.worker.link import Earlier, Kept, Link, Said
from callsheet.worker.shift import Shift
from callsheet.worker.worker import Worker

__all__ = [
    "Canceled", "Context", "Earlier", "GiveUp", "Kept", "Leaving", "Link", "Lost", "Retry", "Said", "Shift", "Stop",
    "Unreachable", "Worker",
]  # fmt: skip
