"""Many quick jobs one after another while everything goes wrong: none is lost, none is made twice."""

import random

from callsheet.worker.comfyui import ComfyHandler
from tests.support.comfyui.asgi_server import as_json
from tests.support.comfyui.server import ComfyServer
from tests.worker.comfyui import graphs
from tests.worker.comfyui.recording_context import HandlerThread, task

JOBS = 30


def _disturb(comfy: ComfyServer, dice: random.Random) -> str:
    trouble = dice.choice(["none", "answer lost", "sockets cut", "restart", "trouble", "output gone", "queue silent"])
    if trouble == "answer lost":
        comfy.lost_answers["/prompt"] = 1
    elif trouble == "sockets cut":
        comfy.cut_sockets()
    elif trouble == "restart":
        comfy.restart()
    elif trouble == "trouble":
        comfy.answers["/prompt"] = [as_json({}, 502)]
    elif trouble == "output gone":
        comfy.answers["/view"] = [as_json(None, 404)]
    elif trouble == "queue silent":
        comfy.lost_answers["/queue"] = 2
    return trouble


def test_thirty_jobs_through_random_faults(comfy: ComfyServer, handler: ComfyHandler) -> None:
    dice = random.Random(20_261_116)
    faults = []
    for no in range(JOBS):
        running = HandlerThread(handler, task(graphs.slow(seconds=0.05, steps=2) if no % 2 else graphs.basic()))
        faults.append(_disturb(comfy, dice))
        output = running.wait_for_end()
        assert [one["node"] for one in output["outputs"]] == ["9"], faults[-1]
        assert len(running.ctx.kept) == 1, faults[-1]
        assert len(running.ctx.refs) <= (3 if faults[-1] in {"restart", "output gone"} else 1), faults[-1]
    assert len(set(faults)) > 5
    assert len(set(comfy.runs)) == len(comfy.runs), "no prompt ran twice under its id"
    assert comfy.queue == {"running": [], "pending": []}
    assert comfy.history == {}
