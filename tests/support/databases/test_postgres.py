"""The PostgreSQL of the suite: databases are separate, and committed data survives a kill."""

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.support.databases.postgres import Cluster
from tests.support.wait import wait_until


def run(url: str, *statements: str) -> Any:
    """Execute statements in one connection; return the first value of the last one."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements[:-1]:
            connection.execute(statement.encode())
        cursor = connection.execute(statements[-1].encode())
        return cursor.fetchall()[0][0] if cursor.description else None


def make_table(url: str) -> None:
    run(url, "CREATE TABLE fact (name text)", "INSERT INTO fact VALUES ('from the template')")


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """A cluster of this module, which its tests may kill and give a template."""
    with Cluster() as cluster:
        yield cluster


def test_two_databases_are_independent(postgres: Cluster) -> None:
    one, other = postgres.create_database(), postgres.create_database()
    run(one, "CREATE TABLE only_in_one (n int)", "SELECT 1")
    assert run(one, "SELECT to_regclass('only_in_one') IS NOT NULL")
    assert run(other, "SELECT to_regclass('only_in_one') IS NULL")
    postgres.drop(one)
    postgres.drop(other)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        run(one, "SELECT 1")


def test_a_database_that_the_cluster_did_not_create_is_not_dropped(postgres: Cluster) -> None:
    with pytest.raises(ValueError, match="not a database of this cluster"):
        postgres.drop(postgres.url("postgres"))


def test_every_database_starts_as_a_copy_of_the_template(own: Cluster) -> None:
    prepared = []

    def prepare(url: str) -> None:
        prepared.append(url)
        make_table(url)

    own.template(prepare)
    one, other = own.create_database(), own.create_database()
    run(one, "DELETE FROM fact", "SELECT 1")
    assert run(other, "SELECT name FROM fact") == "from the template"
    assert len(prepared) == 1


def test_a_database_can_be_created_while_an_event_loop_runs(own: Cluster) -> None:
    async def scenario() -> str:
        return own.create_database()

    assert run(asyncio.run(scenario()), "SELECT 1") == 1


@pytest.mark.parametrize("end", [Cluster.kill, Cluster.stop])
def test_committed_data_survives_the_end_of_the_server(own: Cluster, end: Any) -> None:
    url = own.create_database()
    run(url, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (7)")
    end(own)
    with pytest.raises(psycopg.OperationalError, match="refused"):
        run(url, "SELECT 1")
    own.start()
    assert run(url, "SELECT n FROM kept") == 7


def test_a_kill_ends_open_connections(own: Cluster) -> None:
    connection = psycopg.connect(own.create_database())
    own.kill()
    own.start()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()
    assert run(own.create_database(), "SHOW fsync") == "on"


def test_the_server_listens_on_the_loopback_only(own: Cluster) -> None:
    assert urlsplit(own.url("postgres")).hostname == "127.0.0.1"
    assert run(own.url("postgres"), "SHOW listen_addresses") == "127.0.0.1"


def test_a_server_named_by_its_url_cannot_be_killed() -> None:
    with Cluster("postgresql://tester@example.invalid/postgres") as cluster:
        assert cluster.url("other") == "postgresql://tester@example.invalid/other"
        with pytest.raises(RuntimeError, match="cannot be started, stopped or killed"):
            cluster.kill()


def test_waiting_is_bounded() -> None:
    with pytest.raises(TimeoutError, match="not true within"):
        wait_until(lambda: False, within_seconds=0.05)
    answers = iter([False, True])
    wait_until(lambda: next(answers))
    assert next(answers, "used up") == "used up"
