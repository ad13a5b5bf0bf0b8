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
from callsheet.core.model import commands
from callsheet.core.model.comfyui_graph import ComfySpec
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.dispatch.task_payloads import TaskPayloads
from callsheet.engine import Engine
from tests.support import comfyui_graphs
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

THREADS = 40
"""More than there are for files."""


@contextmanager
def block_file_threads() -> Iterator[None]:
    """Let every thread that asyncio has for files wait."""
    go_on = threading.Event()
    loop = asyncio.get_running_loop()
    waiting = [loop.run_in_executor(None, go_on.wait) for _ in range(THREADS)]
    try:
        yield
        assert not any(one.done() for one in waiting)
    finally:
        go_on.set()


def open_engine(database_url: str, *stages: StageSpec) -> Engine:
    engine = Engine.open(database_url, gates=[lambda _: None])
    engine.execute(commands.PutTenant(tenant="acme"))
    engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name="sketch", stages=list(stages))))
    return engine


SUBMIT = commands.Submit(tenant="acme", user="ann", workflow="sketch")


def test_a_job_that_gates_look_at_is_taken(database_url: str) -> None:
    async def asked(engine: Engine) -> commands.SubmitResult:
        with block_file_threads():
            done: commands.SubmitResult = await asyncio.wait_for(engine.aexecute(SUBMIT), 30)
        return done

    with open_engine(database_url, StageSpec(name="draw", kind="draw")) as engine:
        assert asyncio.run(asked(engine)).status == "queued"


def test_a_task_with_a_graph_is_leased(database_url: str, tmp_path: Path) -> None:
    async def handed(engine: Engine) -> str:
        tasks = await engine.aexecute(commands.Claim(worker_id="w1", kinds=("comfyui",)))
        with block_file_threads():
            (work,) = await asyncio.wait_for(TaskPayloads(engine, LocalBlobs(tmp_path)).build_payloads(tasks), 30)
        return work.kind

    stage = StageSpec(name="draw", kind="comfyui", comfyui=ComfySpec(graph=comfyui_graphs.text_to_image()))
    with open_engine(database_url, stage) as engine:
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
    with LiveServer(tmp_path / "callsheet.db", tmp_path, HttpSettings(shutdown_timeout_seconds=0)) as live_server:
        grant = live_server.blobs.grant_download(
            "default/jobs/x/y/1/1", expires_in_seconds=60, name="film.mp4", media_type="video/mp4"
        )
        with ThreadPoolExecutor(2) as threads:
            reading = threads.submit(live_server.client().get, grant.url)
            assert asked.wait(30)
            stopping = threads.submit(live_server.stop)
            try:
                wait_until(stopping.done)
            finally:
                go_on.set()
            assert isinstance(reading.exception(), httpx.TransportError)
