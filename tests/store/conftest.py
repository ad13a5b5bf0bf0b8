"""One busy life per database, lived once; and the same database with everything taken away that forbids a fault."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from callsheet.config import Settings
from callsheet.core.rows import ROWS, Event
from callsheet.engine.engine import database_of
from callsheet.store.connection import Connection
from tests.store.busy import Names, WatchedStudio, live
from tests.support.postgres import Cluster

LOOK_EVERY = {"sqlite": 1, "postgresql": 10}


class Lived(NamedTuple):
    """What a life leaves behind."""

    database: str
    place: str
    now: int
    names: Names
    steps: int
    found: list[str]


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def blank(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database that nothing was ever written to: what a planner knows of a used one depends on who used it."""
    if request.param == "sqlite":
        return str(tmp_path_factory.mktemp("blank") / "callsheet.db")
    cluster: Cluster = request.getfixturevalue("migrated_postgres")
    return cluster.create_database()


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """A database after a busy life; whoever only reads it may share it."""
    if request.param == "sqlite":
        place = str(tmp_path_factory.mktemp("lived") / "callsheet.db")
    else:
        cluster: Cluster = request.getfixturevalue("migrated_postgres")
        place = cluster.create_database()
    with WatchedStudio(place, LOOK_EVERY[request.param]) as studio:
        names = live(studio)
        return Lived(request.param, place, studio.clock.now(), names, studio.steps, studio.found)


@pytest.fixture(scope="session")
def unguarded(lived: Lived) -> Iterator[Connection]:
    """The lived database without keys, checks and indexes, so that any fault can be planted; events keep theirs."""
    connection = database_of(lived.place, Settings(pooled=True)).connect()
    connection.begin()
    for row in ROWS:
        if row is not Event:
            connection.run(f"CREATE TABLE copied AS SELECT * FROM {row.TABLE}")
            connection.run(f"DROP TABLE {row.TABLE}")
            connection.run(f"ALTER TABLE copied RENAME TO {row.TABLE}")
    connection.commit()
    yield connection
    connection.close()
