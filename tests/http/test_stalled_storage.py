"""A storage that does not answer holds up its own requests, and nobody else's."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from callsheet.blobs.local import LocalBlobs
from callsheet.config import HttpSettings
from callsheet.core import commands
from callsheet.core.comfy import ComfySpec
from callsheet.core.recipe import Recipe, StageSpec
from callsheet.engine import Engine
from callsheet.http.handing import Handing
from tests.support import graphs
from tests.support.served import Served
from tests.support.waiting import wait_until

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


def test_a_server_that_stops_leaves_behind_what_hangs_in_a_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        asked.set()
        go_on.wait(60)
        raise FileNotFoundError

    monkeypatch.setattr(LocalBlobs, "open", hang)
    with Served(tmp_path / "callsheet.db", tmp_path, HttpSettings(stop_seconds=0)) as served:
        grant = served.blobs.grant_get("default/jobs/x/y/1/1", seconds=60, name="film.mp4", media_type="video/mp4")
        with ThreadPoolExecutor(2) as threads:
            reading = threads.submit(served.client().get, grant.url)
            assert asked.wait(30)
            stopping = threads.submit(served.stop)
            try:
                wait_until(stopping.done)
            finally:
                go_on.set()
            assert isinstance(reading.exception(), httpx.TransportError)
