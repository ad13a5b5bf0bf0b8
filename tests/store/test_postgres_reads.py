"""Read connections to PostgreSQL: no extra statements, the current time, and plans that are reused."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from callsheet.store.postgres import PostgresConnection, PostgresDatabase
from tests.support.databases.postgres import Cluster


@pytest.fixture(scope="module")
def url(migrated_postgres: Cluster) -> Iterator[str]:
    database_url = migrated_postgres.create_database()
    yield database_url
    migrated_postgres.drop(database_url)


@pytest.fixture
def reader(url: str) -> Iterator[PostgresConnection]:
    with closing(PostgresDatabase(url).connect(reading=True)) as connection:
        yield connection


def test_a_read_sends_no_statement_after_its_query(reader: PostgresConnection, url: str) -> None:
    assert list(reader.fetch("jobs_unlocked", ids=["missing"])) == []
    with psycopg.connect(url) as other:
        last_statements = other.execute(
            "SELECT query FROM pg_stat_activity WHERE application_name = 'callsheet' AND datname = current_database()"
        ).fetchall()
    assert len(last_statements) == 1
    assert "FROM job j WHERE" in last_statements[0][0]


def test_the_time_is_read_anew_each_time(reader: PostgresConnection) -> None:
    first = reader.now()
    ((between,),) = reader.fetch("clock")
    assert first < between < reader.now()


@pytest.mark.parametrize("reading", [True, False])
def test_a_statement_is_planned_once(url: str, *, reading: bool) -> None:
    with closing(PostgresDatabase(url).connect(reading=reading)) as connection:
        connection.begin()
        for _ in range(3):
            connection.fetch("tasks", ids=["missing"])
        planned = connection.run(
            "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE '%FROM task t%'"
        )
        connection.rollback()
    assert [tuple(row) for row in planned] == [(3, 0)]


def test_a_plan_for_an_empty_table_uses_the_primary_key(reader: PostgresConnection) -> None:
    reader.run("PREPARE seen (text[]) AS SELECT 1 FROM job j WHERE j.id = ANY($1)")
    plan = "\n".join(row[0] for row in reader.run("EXPLAIN EXECUTE seen('{a,b}')"))
    assert "job_pkey" in plan
