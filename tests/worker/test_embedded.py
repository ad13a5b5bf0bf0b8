"""A worker in the house's own process: what its calls cost, and what becomes of them when it goes."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from callsheet.embedded import Desk
from callsheet.store.postgres import PostgresConnection, PostgresDatabase
from callsheet.worker import Context, Worker
from callsheet.worker.errors import Unreachable
from tests.support.places import Places
from tests.support.waiting import wait_until
from tests.worker.floor import Floor


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    made.start()
    yield made
    assert made.stop()


def test_tasks_share_the_connections_of_the_house_however_many_there_are(
    places: Places, tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bool] = []
    connect = PostgresDatabase.connect

    def counted(database: PostgresDatabase, *, reading: bool = False) -> PostgresConnection:
        made.append(reading)
        return connect(database, reading=reading)

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        ctx.upload("note.txt", b"drawn", "text/plain")

    url = places.lend()
    with Floor(url, tmp_path, embedded=True) as floor:
        floor.start(worker)
        assert floor.ended(floor.submit()).status == "completed"
        monkeypatch.setattr(PostgresDatabase, "connect", counted)
        assert {floor.ended(floor.submit()).status for _ in range(9)} == {"completed"}
        assert len(made) <= floor.engine.settings.readers
    places.give_back(url)


def test_a_call_that_is_under_way_when_the_house_closes_hears_so(desk: Desk) -> None:
    heard: list[BaseException] = []
    begun = threading.Event()

    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    def ask() -> None:
        try:
            desk.ask(long())
        except Unreachable as error:
            heard.append(error)

    caller = threading.Thread(target=ask)
    caller.start()
    assert begun.wait(30)
    assert desk.stop()
    caller.join(30)
    assert [str(error) for error in heard] == ["The house has closed."]


def test_nobody_comes_in_behind_the_last_call(desk: Desk) -> None:
    desk.ask_to_stop()
    with closing(asyncio.sleep(0)) as call, pytest.raises(Unreachable):
        desk.ask(call)


def test_a_handler_of_asyncio_asks_while_its_own_loop_stands_still(tmp_path: Path, worker: Worker) -> None:
    @worker.task("draw")
    async def draw(ctx: Context) -> None:
        await asyncio.sleep(0)
        ctx.upload("note.txt", b"drawn", "text/plain")

    with Floor(str(tmp_path / "callsheet.db"), tmp_path, embedded=True) as floor:
        floor.start(worker)
        assert floor.ended(floor.submit()).status == "completed"
        wait_until(lambda: floor.endings)
