"""What goes wrong behind the edge: what passes is told to come back for, what does not is written down."""

from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from callsheet.engine import Unavailable
from callsheet.http import health
from callsheet.http.faults import problem_from
from callsheet.store.connection import Clash, ConnectionLost, Contended, Full, StoreError
from tests.support.places import Places
from tests.support.served import Served

PASSING: list[Exception] = [Unavailable("away"), ConnectionLost("cut"), Contended("deadlock"), Full("no room")]
LASTING: list[Exception] = [StoreError("no such column"), Clash("taken"), ValueError("ours")]


@pytest.fixture
def faults(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """What was written down."""
    found: list[Exception] = []
    monkeypatch.setattr(served.callsheet.house, "fault", lambda _id, error: found.append(error))
    return found


@pytest.mark.parametrize("error", [*PASSING, *LASTING], ids=lambda error: type(error).__name__)
def test_what_passes_is_503_and_what_does_not_is_written_down(
    served: Served, faults: list[Exception], error: Exception
) -> None:
    problem = problem_from(served.callsheet.house, "r1", error)
    passes = error in PASSING
    assert (problem.status, problem.code) == ((503, "unavailable") if passes else (500, "internal_error"))
    assert faults == ([] if passes else [error])


def test_a_database_of_another_shape_is_no_database_that_is_away(place: str, tmp_path: Path) -> None:
    found: list[Any] = []
    with Served(place, tmp_path) as served:
        served.callsheet.house.fault = lambda _id, error: found.append(error)
        with closing(served.engine.database.connect()) as connection:
            connection.run("ALTER TABLE run RENAME COLUMN price TO cost")
            answer = served.client("client").post(
                "/v1/jobs", json={"workflow": "sketch", "user": "ann", "input": {"prompt": "x"}}
            )
            connection.run("ALTER TABLE run RENAME COLUMN cost TO price")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert isinstance(found[0], StoreError)


def test_whoever_asks_whether_a_server_is_ready_is_answered_while_the_database_hangs(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_READY_SECONDS", 0.05)
    url = places.lend()
    with Served(url, tmp_path) as served, psycopg.connect(url) as other:
        other.execute("LOCK TABLE event IN ACCESS EXCLUSIVE MODE")
        answer = served.client().get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        other.rollback()
        assert served.client().get("/readyz").status_code == 200
    places.give_back(url)
