"""The embedded link: calls of a worker in the server's own process, and its shutdown."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from callsheet.api.worker_protocol import Claim
from callsheet.blobs.local import LocalBlobs
from callsheet.core.policy.admission import WorkClass
from callsheet.embedded_link import EngineLink, LoopThread
from callsheet.engine import Engine
from callsheet.settings import Settings
from callsheet.store.postgres import PostgresConnection, PostgresDatabase
from callsheet.worker import Context, Worker
from callsheet.worker.errors import UnreachableError
from tests.support.databases.database_pool import DatabasePool
from tests.support.engine.held_lane import hold_lane
from tests.support.wait import wait_until
from tests.worker.worker_harness import WorkerHarness


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    made = LoopThread()
    made.start()
    yield made
    assert made.stop()


def test_tasks_use_the_shared_connections_of_the_server(
    database_pool: DatabasePool, tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[bool] = []
    connect = PostgresDatabase.connect

    def counting_connect(database: PostgresDatabase, *, reading: bool = False) -> PostgresConnection:
        opened.append(reading)
        return connect(database, reading=reading)

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        ctx.upload("note.txt", b"drawn", "text/plain")

    url = database_pool.acquire()
    with WorkerHarness(url, tmp_path, embedded=True) as harness:
        harness.start(worker)
        assert harness.wait_for_end(harness.submit()).status == "completed"
        monkeypatch.setattr(PostgresDatabase, "connect", counting_connect)
        assert {harness.wait_for_end(harness.submit()).status for _ in range(9)} == {"completed"}
        assert len(opened) <= harness.engine.settings.readers
    database_pool.release(url)


def test_an_open_call_gets_an_error_when_the_server_closes(loop_thread: LoopThread) -> None:
    errors: list[BaseException] = []
    started = threading.Event()

    async def long() -> None:
        started.set()
        await asyncio.Event().wait()

    def run() -> None:
        try:
            loop_thread.run(long())
        except UnreachableError as error:
            errors.append(error)

    caller = threading.Thread(target=run)
    caller.start()
    assert started.wait(30)
    assert loop_thread.stop()
    caller.join(30)
    assert [str(error) for error in errors] == ["The server has shut down."]


def test_a_claim_that_an_overloaded_engine_refuses_can_be_retried(database_url: str, tmp_path: Path) -> None:
    settings = Settings(claims_waiting_max=1)
    with Engine.open(database_url, settings) as engine:
        link = EngineLink(engine, LocalBlobs(tmp_path), "w1")
        request = Claim(kinds=["draw"])
        with closing(link), ThreadPoolExecutor(1) as threads:
            with hold_lane(engine):
                waiting = threads.submit(link.claim, request)
                wait_until(lambda: engine.is_overloaded(WorkClass.CLAIM))
                with pytest.raises(UnreachableError, match="more work than it can do"):
                    link.claim(request)
            assert waiting.result(30).tasks == []
            assert link.claim(request).tasks == []


def test_calls_after_the_stop_are_rejected(loop_thread: LoopThread) -> None:
    loop_thread.request_stop()
    with closing(asyncio.sleep(0)) as call, pytest.raises(UnreachableError):
        loop_thread.run(call)


def test_an_async_handler_may_make_blocking_calls(tmp_path: Path, worker: Worker) -> None:
    @worker.task("draw")
    async def draw(ctx: Context) -> None:
        await asyncio.sleep(0)
        ctx.upload("note.txt", b"drawn", "text/plain")

    with WorkerHarness(str(tmp_path / "callsheet.db"), tmp_path, embedded=True) as harness:
        harness.start(worker)
        assert harness.wait_for_end(harness.submit()).status == "completed"
        wait_until(lambda: harness.attempt_endings)
