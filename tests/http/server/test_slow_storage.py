"""A blob store that does not respond blocks only the requests that use it."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from callsheet.blobs.local import LocalBlobs
from callsheet.core.model import commands
from callsheet.core.model.comfyui_graph import ComfySpec
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.dispatch.task_payloads import TaskPayloads
from callsheet.engine import Engine
from callsheet.settings import HttpSettings
from tests.support import comfyui_graphs
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

THREADS = 40
"""More than asyncio has in its default executor."""


@contextmanager
def block_file_threads() -> Iterator[None]:
    """Block every thread of asyncio's default executor, which serves files."""
    release = threading.Event()
    loop = asyncio.get_running_loop()
    waiting = [loop.run_in_executor(None, release.wait) for _ in range(THREADS)]
    try:
        yield
        assert not any(one.done() for one in waiting)
    finally:
        release.set()


def open_engine(database_url: str, *stages: StageSpec) -> Engine:
    engine = Engine.open(database_url, gates=[lambda _: None])
    engine.execute(commands.PutTenant(tenant="acme"))
    engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name="sketch", stages=list(stages))))
    return engine


SUBMIT = commands.Submit(tenant="acme", user="ann", workflow="sketch")


def test_a_job_is_accepted_by_the_gates_while_file_threads_are_blocked(database_url: str) -> None:
    async def submit(engine: Engine) -> commands.SubmitResult:
        with block_file_threads():
            done: commands.SubmitResult = await asyncio.wait_for(engine.aexecute(SUBMIT), 30)
        return done

    with open_engine(database_url, StageSpec(name="draw", kind="draw")) as engine:
        assert asyncio.run(submit(engine)).status == "queued"


def test_a_task_with_a_graph_is_built_while_file_threads_are_blocked(database_url: str, tmp_path: Path) -> None:
    async def build_task(engine: Engine) -> str:
        tasks = await engine.aexecute(commands.Claim(worker_id="w1", kinds=("comfyui",)))
        with block_file_threads():
            (work,) = await asyncio.wait_for(TaskPayloads(engine, LocalBlobs(tmp_path)).build_payloads(tasks), 30)
        return work.kind

    stage = StageSpec(name="draw", kind="comfyui", comfyui=ComfySpec(graph=comfyui_graphs.text_to_image()))
    with open_engine(database_url, stage) as engine:
        engine.execute(SUBMIT)
        assert asyncio.run(build_task(engine)) == "comfyui"


def test_a_stopping_server_does_not_wait_for_a_blocked_blob_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, release = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        opened.set()
        release.wait(60)
        raise FileNotFoundError

    monkeypatch.setattr(LocalBlobs, "open", hang)
    with LiveServer(tmp_path / "callsheet.db", tmp_path, HttpSettings(shutdown_timeout_seconds=0)) as live_server:
        grant = live_server.blobs.grant_download(
            "default/jobs/x/y/1/1", expires_in_seconds=60, name="film.mp4", media_type="video/mp4"
        )
        with ThreadPoolExecutor(2) as threads:
            reading = threads.submit(live_server.client().get, grant.url)
            assert opened.wait(30)
            stopping = threads.submit(live_server.stop)
            try:
                wait_until(stopping.done)
            finally:
                release.set()
            assert isinstance(reading.exception(), httpx.TransportError)
