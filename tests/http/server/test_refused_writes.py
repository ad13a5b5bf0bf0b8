"""A server whose database accepts no writes: requests get 503 with the reason, and /readyz says so without traffic."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from callsheet.settings import Settings
from tests.support.databases.refused_writes import FAULTS, RefusingDatabase
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

SETTINGS = Settings(database_retry_seconds=3_600, write_check_seconds=0.1)


@pytest.fixture(params=["sqlite on a read-only disk", "postgresql in read-only mode", "postgresql without rights"])
def refusing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RefusingDatabase]:
    with FAULTS[request.param](request, tmp_path) as database:
        yield database


def test_a_server_says_that_it_cannot_write_and_recovers_by_itself(refusing: RefusingDatabase, tmp_path: Path) -> None:
    with LiveServer(refusing.url, tmp_path, settings=SETTINGS) as server:
        probe, client = server.client(), server.client("client")
        refusing.fail()
        wait_until(lambda: probe.get("/readyz").status_code == 503)
        answer = probe.get("/readyz")
        assert (answer.json()["code"], answer.json()["message"]) == ("not_ready", refusing.reason)
        refused = client.post("/v1/jobs", json={"workflow": "sketch", "user": "ann", "input": {}})
        assert (refused.status_code, refused.json()["code"]) == (503, "database_unusable")
        assert refused.json()["message"] == f"{refusing.reason} Then retry."
        assert refused.headers["retry-after"] == "5"
        refusing.repair()
        wait_until(lambda: probe.get("/readyz").status_code == 200)
        assert server.submit()["status"] == "queued"
