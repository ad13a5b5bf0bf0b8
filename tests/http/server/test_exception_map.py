"""Exceptions of a request: transient ones answer 503, all others answer 500 and are logged."""

from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from callsheet.engine import Unavailable
from callsheet.engine.lane import WritesRefused
from callsheet.http.server.exception_map import problem_from
from callsheet.queries import readiness_and_load
from callsheet.store.connection import (
    READ_ONLY,
    ConnectionLost,
    DatabaseUnusable,
    StoreError,
    TransactionConflict,
    UniqueConflict,
)
from tests.support.databases.database_pool import DatabasePool
from tests.support.processes.live_server import LiveServer

TRANSIENT: list[Exception] = [
    Unavailable("unavailable"),
    ConnectionLost("cut"),
    TransactionConflict("deadlock"),
]
UNUSABLE: list[Exception] = [WritesRefused(READ_ONLY), DatabaseUnusable(READ_ONLY)]
PERMANENT: list[Exception] = [StoreError("no such column"), UniqueConflict("taken"), ValueError("ours")]


@pytest.fixture
def faults(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """The errors that were logged."""
    found: list[Exception] = []
    monkeypatch.setattr(live_server.callsheet.state, "report_error", lambda _id, error: found.append(error))
    return found


@pytest.mark.parametrize("error", [*TRANSIENT, *PERMANENT], ids=lambda error: type(error).__name__)
def test_a_transient_error_answers_503_and_another_answers_500_and_is_logged(
    live_server: LiveServer, faults: list[Exception], error: Exception
) -> None:
    problem = problem_from(live_server.callsheet.state, "r1", error)
    transient = error in TRANSIENT
    assert (problem.status, problem.code) == ((503, "unavailable") if transient else (500, "internal_error"))
    assert faults == ([] if transient else [error])


@pytest.mark.parametrize("error", UNUSABLE, ids=lambda error: type(error).__name__)
def test_a_database_that_an_operator_must_repair_answers_503_with_the_reason(
    live_server: LiveServer, faults: list[Exception], error: Exception
) -> None:
    problem = problem_from(live_server.callsheet.state, "r1", error)
    assert (problem.status, problem.code, problem.message) == (503, "database_unusable", f"{READ_ONLY} Then retry.")
    assert faults == []


def test_a_database_with_another_schema_answers_500(database_url: str, tmp_path: Path) -> None:
    found: list[Any] = []
    with LiveServer(database_url, tmp_path) as live_server:
        live_server.callsheet.state.report_error = lambda _id, error: found.append(error)
        with closing(live_server.engine.database.connect()) as connection:
            connection.run("ALTER TABLE run RENAME COLUMN price TO cost")
            answer = live_server.client("client").post(
                "/v1/jobs", json={"workflow": "sketch", "user": "ann", "input": {"prompt": "x"}}
            )
            connection.run("ALTER TABLE run RENAME COLUMN cost TO price")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert isinstance(found[0], StoreError)


def test_readyz_answers_503_while_the_database_does_not_respond(
    database_pool: DatabasePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness_and_load, "_READY_SECONDS", 0.05)
    url = database_pool.acquire()
    with LiveServer(url, tmp_path) as live_server, psycopg.connect(url) as other:
        other.execute("LOCK TABLE event IN ACCESS EXCLUSIVE MODE")
        answer = live_server.client().get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        other.rollback()
        assert live_server.client().get("/readyz").status_code == 200
    database_pool.release(url)
