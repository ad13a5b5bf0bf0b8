"""A database that answers and accepts no writes: commands are answered at once, and it is found out without them."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from callsheet.core.model.commands import PutTenant
from callsheet.engine import Engine, Unavailable
from callsheet.engine import lane as lane_module
from callsheet.engine.command_queue import Submission
from callsheet.engine.lane import NO_ANSWER, WritesRefused
from callsheet.engine.loops.write_check import WriteCheck
from callsheet.settings import Settings
from callsheet.store.connection import READ_ONLY, StoreError
from tests.support.databases.database_pool import DatabasePool
from tests.support.databases.faulty_database import FaultPoint, faulty_engine
from tests.support.databases.postgres import Cluster
from tests.support.databases.refused_writes import FAULTS, RefusingDatabase
from tests.support.engine.engine_harness import EngineHarness, OpenHarness
from tests.support.wait import wait_until

LONG_RETRY = Settings(database_retry_seconds=3_600, write_check_seconds=0)
"""A retry would never end, and every write check writes."""
WRITTEN = [PutTenant(tenant=f"t{number}") for number in range(20)]


@pytest.fixture(params=FAULTS)
def refusing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RefusingDatabase]:
    with FAULTS[request.param](request, tmp_path) as database:
        yield database


def test_commands_are_answered_at_once_with_the_reason_until_the_database_accepts_writes(
    refusing: RefusingDatabase,
) -> None:
    with Engine.open(refusing.url, LONG_RETRY) as engine:
        engine.execute(PutTenant(tenant="before"))
        refusing.fail()
        answers = engine.execute_many(WRITTEN)
        assert {(type(answer), str(answer)) for answer in answers} == {(WritesRefused, refusing.reason)}
        assert engine.write_error == refusing.reason
        refusing.repair()
        assert [engine.execute(command).id for command in WRITTEN] == [command.tenant for command in WRITTEN]
        assert engine.write_error is None


def test_a_write_check_finds_out_without_a_command(refusing: RefusingDatabase) -> None:
    with Engine.open(refusing.url, LONG_RETRY) as engine:
        check = WriteCheck(engine)
        check.run_once(0)
        refusing.fail()
        with pytest.raises(WritesRefused):
            check.run_once(0)
        assert engine.write_error == refusing.reason
        refusing.repair()
        check.run_once(0)
        assert engine.write_error is None


def test_a_start_on_a_database_that_refuses_writes_fails_with_a_sentence(refusing: RefusingDatabase) -> None:
    Engine.open(refusing.url).close()
    refusing.fail()
    with pytest.raises((StoreError, WritesRefused)) as raised, Engine.open(refusing.url) as engine:
        engine.execute(PutTenant(tenant="new"))  # SQLite notices at the first write
    assert str(raised.value) == refusing.reason
    refusing.repair()


def test_only_lanes_that_wrote_nothing_are_checked(open_harness: OpenHarness) -> None:
    harness = open_harness(Settings(write_check_seconds=3_600))
    harness.engine.check_writes()
    assert not harness.engine.reads.fetch("recorded_values", ids=["write_check"])


def test_a_standby_refuses_writes_until_it_is_promoted() -> None:
    """The connection was lost with the old server, and the new one answers, but is in recovery."""
    with Cluster(report=lambda _: None) as cluster, Engine.open(cluster.create_database(), LONG_RETRY) as engine:
        engine.execute(PutTenant(tenant="before"))
        cluster.stop()
        cluster.start(standby=True)
        (answer,) = engine.execute_many([PutTenant(tenant="after")])
        assert (type(answer), str(answer), engine.write_error) == (WritesRefused, READ_ONLY, READ_ONLY)
        cluster.promote()
        assert engine.execute(PutTenant(tenant="after")).id == "after"
        assert engine.write_error is None


def test_a_write_that_waits_too_long_is_reported_until_it_ends(database_pool: DatabasePool) -> None:
    url = database_pool.acquire()
    with Engine.open(url, Settings(write_check_seconds=0.1)) as engine, psycopg.connect(url) as other:
        other.execute("LOCK TABLE tenant IN SHARE MODE")
        engine._lanes[0].send(Submission([PutTenant(tenant="waits")], lambda _: None))  # noqa: SLF001
        wait_until(lambda: engine.write_error)
        assert engine.write_error == NO_ANSWER
        other.rollback()
        wait_until(lambda: engine.write_error is None)
    database_pool.release(url)


def test_an_outage_that_has_lasted_is_not_waited_for_again(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read of the clock takes four seconds, and commands are retried for ten."""
    seconds, attempts = iter(range(0, 10_000, 4)), count()

    def fail_every_commit() -> FaultPoint:
        next(attempts)
        return "before"

    monkeypatch.setattr(lane_module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    with faulty_engine(harness.database, fail_every_commit, Settings(database_retry_seconds=10)) as engine:
        attempts_so_far = 0
        for attempts_max in (4, 2):
            assert {type(answer) for answer in engine.execute_many(WRITTEN)} == {Unavailable}
            attempts_so_far, before = next(attempts), attempts_so_far
            assert attempts_so_far - before <= attempts_max + 1
