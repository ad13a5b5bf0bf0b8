"""A reading connection to PostgreSQL says what it was asked and nothing besides, and tells the time of now.

Statements are planned once, whoever says them.
"""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from callsheet.store.postgres import PostgresConnection, PostgresDatabase
from tests.support.databases.postgres import Cluster


@pytest.fixture(scope="module")
def url(migrated_postgres: Cluster) -> Iterator[str]:
    made = migrated_postgres.create_database()
    yield made
    migrated_postgres.drop(made)


@pytest.fixture
def reader(url: str) -> Iterator[PostgresConnection]:
    with closing(PostgresDatabase(url).connect(reading=True)) as made:
        yield made


def test_a_read_is_the_last_thing_that_the_server_was_asked(reader: PostgresConnection, url: str) -> None:
    assert list(reader.fetch("jobs_unlocked", ids=["nothing"])) == []
    with psycopg.connect(url) as other:
        said = other.execute(
            "SELECT query FROM pg_stat_activity WHERE application_name = 'callsheet' AND datname = current_database()"
        ).fetchall()
    assert len(said) == 1
    assert "FROM job j WHERE" in said[0][0]


def test_its_time_is_asked_anew_and_not_that_of_a_read_long_ago(reader: PostgresConnection) -> None:
    first = reader.now()
    ((between,),) = reader.fetch("clock")
    assert first < between < reader.now()


@pytest.mark.parametrize("reading", [True, False])
def test_a_statement_is_planned_once_and_not_each_time(url: str, *, reading: bool) -> None:
    with closing(PostgresDatabase(url).connect(reading=reading)) as connection:
        connection.begin()
        for _ in range(3):
            connection.fetch("tasks", ids=["nothing"])
        planned = connection.run(
            "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE '%FROM task t%'"
        )
        connection.rollback()
    assert [tuple(row) for row in planned] == [(3, 0)]


def test_a_plan_made_while_a_table_was_empty_still_looks_rows_up_by_their_key(reader: PostgresConnection) -> None:
    reader.run("PREPARE seen (text[]) AS SELECT 1 FROM job j WHERE j.id = ANY($1)")
    plan = "\n".join(row[0] for row in reader.run("EXPLAIN EXECUTE seen('{a,b}')"))
    assert "job_pkey" in plan
