"""A server with a memory limit survives a worker that floods it with log lines, and stores a bounded part of them."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.processes.cli_process import ServerProcess

MEMORY_KILOBYTES = 2 * 1024 * 1024
LOG_BYTES_PER_JOB_MAX = 1024**2
REQUESTS = 60
LINES = ["the quick brown fox jumps over the lazy dog " * 45] * 100
"""Just under 200 kB. Five tasks send them with each request."""


@pytest.fixture(params=["log_bytes_per_second_max = 1000000000", ""], ids=["limit of the job", "limit of the worker"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    config = tmp_path / "callsheet.toml"
    config.write_text(f"[http]\n{request.param}\n")
    arguments = ("--no-demo-workflows", "--config", config)
    with ServerProcess(tmp_path / "data", *arguments, ulimit_options=f"-v {MEMORY_KILOBYTES}") as server:
        yield server


def client(server: ServerProcess, key: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=120)


def test_a_flood_of_log_lines_is_cut_and_the_server_keeps_responding(server: ServerProcess) -> None:
    fleet_key = (server.data / "fleet.key").read_text().strip()
    with client(server, server.key) as operator, client(server, fleet_key) as fleet:
        definition = {"stages": [{"name": "s", "kind": "draw", "tasks": 5}], "lease_seconds": 600}
        operator.put("/v1/workflows/loud", json={"definition": definition}).raise_for_status()
        job = operator.post("/v1/jobs", json={"workflow": "loud", "user": "ann"}).raise_for_status().json()["id"]
        registration = fleet.post("/v1/worker/register", json={"worker": "w1", "kinds": ["draw"], "concurrency": 100})
        with client(server, registration.raise_for_status().json()["token"]) as worker:
            tasks = worker.post("/v1/worker/claim", json={"count": 5}).raise_for_status().json()["tasks"]
            heartbeats = [{"lease": task["lease"], "log": LINES} for task in tasks]
            for _ in range(REQUESTS):
                answer = worker.post("/v1/worker/heartbeat", json={"heartbeats": heartbeats}).raise_for_status()
                assert all(result["lease_seconds"] > 0 for result in answer.json()["results"]), "no lease is lost"
        assert operator.get("/healthz").status_code == 200
        stored, notices = log_of(operator, job)
        assert 0 < stored <= LOG_BYTES_PER_JOB_MAX + 4_000
        assert notices.count("log_bytes_per_job_max") <= 1
        assert notices, "the log says that lines were dropped"
    database_bytes = sum(path.stat().st_size for path in server.data.glob("*.db*"))
    assert database_bytes < 20 * LOG_BYTES_PER_JOB_MAX


def log_of(operator: httpx.Client, job: str) -> tuple[int, list[str]]:
    """Return the size of a job's log, and the names of the limits that it mentions."""
    stored, cursor, notices = 0, 0, list[str]()
    while True:
        page = operator.get(f"/v1/jobs/{job}/events", params={"cursor": cursor}).raise_for_status().json()["events"]
        if not page:
            return stored, notices
        cursor = page[-1]["seq"]
        for line in (line for event in page if event["type"] == "task.logged" for line in event["data"]["lines"]):
            stored += len(line)
            notices += [name for name in ("log_bytes_per_job_max", "log_bytes_per_second_max") if name in line]
