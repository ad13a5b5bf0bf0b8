"""A storage that does not answer holds up its own requests, and nobody else's."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from callsheet.blobs.local import LocalBlobs
from callsheet.core import commands
from callsheet.core.comfy import ComfySpec
from callsheet.core.recipe import Recipe, StageSpec
from callsheet.engine import Engine
from callsheet.http.handing import Handing
from tests.support import graphs

THREADS = 40
"""More than there are for files."""


@contextmanager
def stalled() -> Iterator[None]:
    """Let every thread that asyncio has for files wait."""
    go_on = threading.Event()
    loop = asyncio.get_running_loop()
    waiting = [loop.run_in_executor(None, go_on.wait) for _ in range(THREADS)]
    try:
        yield
        assert not any(one.done() for one in waiting)
    finally:
        go_on.set()


def furnished(place: str, *stages: StageSpec) -> Engine:
    engine = Engine.open(place, gates=[lambda _: None])
    engine.execute(commands.PutTenant(tenant="acme"))
    engine.execute(commands.PutWorkflow(recipe=Recipe(name="sketch", stages=list(stages))))
    return engine


SUBMIT = commands.Submit(tenant="acme", user="ann", workflow="sketch")


def test_a_job_that_gates_look_at_is_taken(place: str) -> None:
    async def asked(engine: Engine) -> commands.Submitted:
        with stalled():
            done: commands.Submitted = await asyncio.wait_for(engine.aexecute(SUBMIT), 30)
        return done

    with furnished(place, StageSpec(name="draw", kind="draw")) as engine:
        assert asyncio.run(asked(engine)).status == "queued"


def test_a_task_with_a_graph_is_handed_out(place: str, tmp_path: Path) -> None:
    async def handed(engine: Engine) -> str:
        tasks = await engine.aexecute(commands.Claim(worker_id="w1", kinds=("comfyui",)))
        with stalled():
            (work,) = await asyncio.wait_for(Handing(engine, LocalBlobs(tmp_path)).works(tasks), 30)
        return work.kind

    stage = StageSpec(name="draw", kind="comfyui", comfyui=ComfySpec(graph=graphs.text_to_image()))
    with furnished(place, stage) as engine:
        engine.execute(SUBMIT)
        assert asyncio.run(handed(engine)) == "comfyui"
