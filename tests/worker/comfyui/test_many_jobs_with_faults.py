"""Many short jobs under random faults: none is lost, and none runs twice."""

import random

from callsheet.worker.comfyui import ComfyHandler
from tests.support.comfyui.asgi_server import as_json
from tests.support.comfyui.server import ComfyServer
from tests.worker.comfyui import graphs
from tests.worker.comfyui.recording_context import HandlerThread, task

JOBS = 30


def _inject_fault(comfy: ComfyServer, rng: random.Random) -> str:
    fault = rng.choice(
        [
            "none",
            "response lost",
            "websockets closed",
            "restart",
            "bad gateway",
            "output missing",
            "queue not answering",
        ]
    )
    if fault == "response lost":
        comfy.lost_answers["/prompt"] = 1
    elif fault == "websockets closed":
        comfy.cut_sockets()
    elif fault == "restart":
        comfy.restart()
    elif fault == "bad gateway":
        comfy.answers["/prompt"] = [as_json({}, 502)]
    elif fault == "output missing":
        comfy.answers["/view"] = [as_json(None, 404)]
    elif fault == "queue not answering":
        comfy.lost_answers["/queue"] = 2
    return fault


def test_thirty_jobs_complete_under_random_faults(comfy: ComfyServer, handler: ComfyHandler) -> None:
    rng = random.Random(20_261_116)
    faults = []
    for no in range(JOBS):
        running = HandlerThread(handler, task(graphs.slow(seconds=0.05, steps=2) if no % 2 else graphs.basic()))
        faults.append(_inject_fault(comfy, rng))
        output = running.result()
        assert [one["node"] for one in output["outputs"]] == ["9"], faults[-1]
        assert len(running.ctx.uploads) == 1, faults[-1]
        assert len(running.ctx.refs) <= (3 if faults[-1] in {"restart", "output missing"} else 1), faults[-1]
    assert len(set(faults)) > 5
    assert len(set(comfy.runs)) == len(comfy.runs), "no prompt ran twice under its id"
    assert comfy.queue == {"running": [], "pending": []}
    assert comfy.history == {}
