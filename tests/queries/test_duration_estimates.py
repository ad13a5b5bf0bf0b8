"""The duration estimate in the answer for a job, and its ETag."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.explanation.duration_estimate import SAMPLES_MIN
from callsheet.settings import HttpSettings
from tests.support.databases.database_pool import DatabasePool
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def fresh_estimates_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """A server that does not cache estimates."""
    data: Path = tmp_path_factory.mktemp("uncached")
    settings = HttpSettings(estimate_cache_seconds=0)
    if request.param == "sqlite":
        with LiveServer(data / "callsheet.db", data, settings) as server:
            yield server
        return
    database_pool: DatabasePool = request.getfixturevalue("database_pool")
    url = database_pool.acquire()
    with LiveServer(url, data, settings) as server:
        yield server
    database_pool.release(url)


def put_workflow(live_server: LiveServer, name: str) -> str:
    stages = [StageSpec(name="plan", kind=f"{name}-plan"), StageSpec(name="draw", kind=f"{name}-draw")]
    live_server.engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name=name, stages=stages)))
    return name


def complete_job(live_server: LiveServer, name: str) -> str:
    """Submit a job, complete its tasks and return its id."""
    job = str(live_server.submit(workflow=name)["id"])
    for stage in ("plan", "draw"):
        live_server.work(f"{name}-{stage}")
    return job


def durations(live_server: LiveServer, jobs: list[str]) -> list[float]:
    rows = [live_server.engine.reads.job("default", job) for job in jobs]
    return sorted(round(((row.finished_at or 0) - (row.started_at or 0)) / 1e6, 3) for row in rows)


def test_a_job_has_a_duration_estimate_from_completed_jobs_until_it_ends(fresh_estimates_server: LiveServer) -> None:
    # R244
    name = put_workflow(fresh_estimates_server, "often")
    client = fresh_estimates_server.client("client")
    past = [complete_job(fresh_estimates_server, name) for _ in range(SAMPLES_MIN - 1)]
    job = fresh_estimates_server.submit(workflow=name)
    assert job["duration_estimate"] is None
    fresh_estimates_server.engine.execute(
        commands.Cancel(tenant="default", job_id=job["id"], actor="user", reason="", grace_seconds=0)
    )
    past.append(complete_job(fresh_estimates_server, name))
    job = fresh_estimates_server.submit(workflow=name)
    seconds = durations(fresh_estimates_server, past)
    assert job["duration_estimate"] == {
        "seconds_p50": seconds[SAMPLES_MIN // 2], "seconds_p90": seconds[-1], "samples": SAMPLES_MIN,
    }  # fmt: skip
    (listed,) = client.get("/v1/jobs", params={"workflow": name, "limit": 1}).json()["jobs"]
    assert client.get(f"/v1/jobs/{job['id']}").json() == job == listed
    for stage in ("plan", "draw"):
        fresh_estimates_server.work(f"{name}-{stage}")
    ended = client.get(f"/v1/jobs/{job['id']}").json()
    assert (ended["status"], ended["duration_estimate"]) == ("completed", None)


def test_a_new_estimate_changes_the_etag(fresh_estimates_server: LiveServer) -> None:
    name = put_workflow(fresh_estimates_server, "tagged")
    client = fresh_estimates_server.client("client")
    for _ in range(SAMPLES_MIN):
        complete_job(fresh_estimates_server, name)
    url = f"/v1/jobs/{fresh_estimates_server.submit(workflow=name, priority=0)['id']}"
    first = client.get(url)
    headers = {"if-none-match": first.headers["etag"]}
    assert client.get(url, headers=headers).status_code == 304
    complete_job(fresh_estimates_server, name)
    second = client.get(url, headers=headers)
    assert second.status_code == 200
    assert second.headers["etag"] != first.headers["etag"]
    assert second.json()["duration_estimate"]["samples"] == SAMPLES_MIN + 1
    assert {**second.json(), "duration_estimate": None} == {**first.json(), "duration_estimate": None}


def test_a_new_estimate_does_not_end_a_waiting_request(fresh_estimates_server: LiveServer) -> None:
    name = put_workflow(fresh_estimates_server, "waited")
    for _ in range(SAMPLES_MIN):
        complete_job(fresh_estimates_server, name)
    client = fresh_estimates_server.client("client")
    job = fresh_estimates_server.submit(workflow=name, priority=0)["id"]
    tag = client.get(f"/v1/jobs/{job}").headers["etag"]
    complete_job(fresh_estimates_server, name)
    broadcaster = fresh_estimates_server.callsheet.state.broadcaster
    answers: list[Any] = []

    def wait_for_change() -> None:
        headers = {"if-none-match": tag}
        answers.append(
            fresh_estimates_server.client("viewer").get(f"/v1/jobs/{job}?wait_seconds=20", headers=headers).json()
        )

    with ThreadPoolExecutor(1) as threads:
        request = threads.submit(wait_for_change)
        wait_until(lambda: broadcaster.count or answers)
        assert answers == []
        client.patch(f"/v1/jobs/{job}", json={"priority": 3}).raise_for_status()
        request.result(30)
    assert (answers[0]["priority"], answers[0]["duration_estimate"]["samples"]) == (3, SAMPLES_MIN + 1)


def test_an_estimate_is_cached(live_server: LiveServer) -> None:
    name = put_workflow(live_server, "kept")
    job = live_server.submit(workflow=name, priority=0)
    assert job["duration_estimate"] is None
    for _ in range(SAMPLES_MIN):
        complete_job(live_server, name)
    assert live_server.client("client").get(f"/v1/jobs/{job['id']}").json() == job


def test_a_job_with_many_tasks_is_one_sample(fresh_estimates_server: LiveServer) -> None:
    stage = StageSpec(name="frames", kind="frames", tasks=60)
    fresh_estimates_server.engine.execute(
        commands.PutWorkflow(definition=WorkflowDefinition(name="film", stages=[stage]))
    )
    for _ in range(SAMPLES_MIN):
        fresh_estimates_server.submit(workflow="film")
        for _ in range(60):
            fresh_estimates_server.work("frames")
    assert fresh_estimates_server.submit(workflow="film")["duration_estimate"]["samples"] == SAMPLES_MIN


@pytest.mark.parametrize("order", [1, -1], ids=["known first", "new first"])
def test_a_job_with_inline_stages_is_compared_with_jobs_of_the_same_stages(
    tmp_path: Path, database_url: str, order: int
) -> None:
    """Also while the estimates of its workflow are cached."""

    def stages(kind: str) -> list[dict[str, Any]]:
        return [{"name": "work", "kind": kind}]

    with LiveServer(database_url, tmp_path) as live_server:
        live_server.engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name="own", inline=True)))
        for _ in range(SAMPLES_MIN):
            live_server.submit(workflow="own", stages=stages("known"))
            live_server.work("known")
        jobs = {kind: live_server.submit(workflow="own", stages=stages(kind)) for kind in ("known", "new")[::order]}
        assert jobs["new"]["duration_estimate"] is None
        assert jobs["known"]["duration_estimate"]["samples"] == SAMPLES_MIN
