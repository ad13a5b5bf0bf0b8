"""What goes wrong behind the edge: what passes is told to come back for, what does not is written down."""

from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from callsheet.engine import Unavailable
from callsheet.http.server.exception_map import problem_from
from callsheet.queries import server_health
from callsheet.store.connection import ConnectionLost, DiskFull, StoreError, TransactionConflict, UniqueConflict
from tests.support.databases.database_pool import DatabasePool
from tests.support.processes.live_server import LiveServer

TRANSIENT: list[Exception] = [
    Unavailable("away"),
    ConnectionLost("cut"),
    TransactionConflict("deadlock"),
    DiskFull("no room"),
]
PERMANENT: list[Exception] = [StoreError("no such column"), UniqueConflict("taken"), ValueError("ours")]


@pytest.fixture
def faults(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """What was written down."""
    found: list[Exception] = []
    monkeypatch.setattr(live_server.callsheet.state, "report_error", lambda _id, error: found.append(error))
    return found


@pytest.mark.parametrize("error", [*TRANSIENT, *PERMANENT], ids=lambda error: type(error).__name__)
def test_what_passes_is_503_and_what_does_not_is_written_down(
    live_server: LiveServer, faults: list[Exception], error: Exception
) -> None:
    problem = problem_from(live_server.callsheet.state, "r1", error)
    passes = error in TRANSIENT
    assert (problem.status, problem.code) == ((503, "unavailable") if passes else (500, "internal_error"))
    assert faults == ([] if passes else [error])


def test_a_database_of_another_shape_is_no_database_that_is_away(database_url: str, tmp_path: Path) -> None:
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


def test_whoever_asks_whether_a_server_is_ready_is_answered_while_the_database_hangs(
    database_pool: DatabasePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_health, "_READY_SECONDS", 0.05)
    url = database_pool.acquire()
    with LiveServer(url, tmp_path) as live_server, psycopg.connect(url) as other:
        other.execute("LOCK TABLE event IN ACCESS EXCLUSIVE MODE")
        answer = live_server.client().get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        other.rollback()
        assert live_server.client().get("/readyz").status_code == 200
    database_pool.release(url)
