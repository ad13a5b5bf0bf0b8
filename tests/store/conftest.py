"""Databases of the store tests: an empty one, one after a scenario, and one without constraints."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from callsheet.core.model.rows import ROWS, Event
from callsheet.engine.engine import database_for
from callsheet.settings import Settings
from callsheet.store.connection import Connection
from tests.store.verify.scenario import Names, VerifyingHarness, run_scenario
from tests.support.databases.postgres import Cluster

VERIFY_EVERY = {"sqlite": 1, "postgresql": 10}


class ScenarioDatabase(NamedTuple):
    """A database after the scenario, with the ids of its jobs and tasks."""

    database: str
    database_url: str
    now: int
    names: Names
    steps: int
    found: list[str]


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def blank(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database without rows, so that query plans do not depend on other tests."""
    if request.param == "sqlite":
        return str(tmp_path_factory.mktemp("blank") / "callsheet.db")
    cluster: Cluster = request.getfixturevalue("migrated_postgres")
    return cluster.create_database()


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def scenario_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ScenarioDatabase:
    """A database after the scenario. Tests must only read it, because they share it."""
    if request.param == "sqlite":
        database_url = str(tmp_path_factory.mktemp("scenario") / "callsheet.db")
    else:
        cluster: Cluster = request.getfixturevalue("migrated_postgres")
        database_url = cluster.create_database()
    with VerifyingHarness(database_url, VERIFY_EVERY[request.param]) as harness:
        names = run_scenario(harness)
        return ScenarioDatabase(request.param, database_url, harness.clock.now(), names, harness.steps, harness.found)


@pytest.fixture(scope="session")
def unconstrained_database(scenario_database: ScenarioDatabase) -> Iterator[Connection]:
    """The scenario's database without constraints and indexes, so that any fault can be planted; events keep theirs."""
    connection = database_for(scenario_database.database_url, Settings(transaction_pooling=True)).connect()
    connection.begin()
    for row in ROWS:
        if row is not Event:
            connection.run(f"CREATE TABLE copied AS SELECT * FROM {row.TABLE}")
            connection.run(f"DROP TABLE {row.TABLE}")
            connection.run(f"ALTER TABLE copied RENAME TO {row.TABLE}")
    connection.commit()
    yield connection
    connection.close()
