"""How long a job should take: a labelled guess in its answer, under a tag that tells the truth."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from callsheet.config import HttpSettings
from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.duration_estimate import SAMPLES_MIN
from tests.support.databases.database_pool import DatabasePool
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def fresh_estimates_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """A server that looks at past jobs every time."""
    data: Path = tmp_path_factory.mktemp("eager")
    settings = HttpSettings(estimate_cache_seconds=0)
    if request.param == "sqlite":
        with LiveServer(data / "callsheet.db", data, settings) as made:
            yield made
        return
    database_pool: DatabasePool = request.getfixturevalue("database_pool")
    url = database_pool.acquire()
    with LiveServer(url, data, settings) as made:
        yield made
    database_pool.release(url)


def workflow(live_server: LiveServer, name: str) -> str:
    stages = [StageSpec(name="plan", kind=f"{name}-plan"), StageSpec(name="draw", kind=f"{name}-draw")]
    live_server.engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name=name, stages=stages)))
    return name


def made(live_server: LiveServer, name: str) -> str:
    """Do a whole job."""
    job = str(live_server.submit(workflow=name)["id"])
    for stage in ("plan", "draw"):
        live_server.work(f"{name}-{stage}")
    return job


def seconds(live_server: LiveServer, jobs: list[str]) -> list[float]:
    rows = [live_server.engine.reads.job("default", job) for job in jobs]
    return sorted(round(((row.finished_at or 0) - (row.started_at or 0)) / 1e6, 3) for row in rows)


def test_a_job_says_how_long_such_jobs_took_as_a_guess_until_it_has_ended(fresh_estimates_server: LiveServer) -> None:
    # R244, R267
    name = workflow(fresh_estimates_server, "often")
    client = fresh_estimates_server.client("client")
    past = [made(fresh_estimates_server, name) for _ in range(SAMPLES_MIN - 1)]
    job = fresh_estimates_server.submit(workflow=name)
    assert job["duration_estimate"] is None
    fresh_estimates_server.engine.execute(
        commands.Cancel(tenant="default", job_id=job["id"], actor="user", reason="", grace_seconds=0)
    )
    past.append(made(fresh_estimates_server, name))
    job = fresh_estimates_server.submit(workflow=name)
    took = seconds(fresh_estimates_server, past)
    assert job["duration_estimate"] == {
        "seconds_p50": took[SAMPLES_MIN // 2], "seconds_p90": took[-1], "samples": SAMPLES_MIN,
    }  # fmt: skip
    (listed,) = client.get("/v1/jobs", params={"workflow": name, "limit": 1}).json()["jobs"]
    assert client.get(f"/v1/jobs/{job['id']}").json() == job == listed
    for stage in ("plan", "draw"):
        fresh_estimates_server.work(f"{name}-{stage}")
    ended = client.get(f"/v1/jobs/{job['id']}").json()
    assert (ended["status"], ended["duration_estimate"]) == ("completed", None)


def test_the_same_tag_is_the_same_body_and_a_new_estimate_is_a_new_tag(fresh_estimates_server: LiveServer) -> None:
    name = workflow(fresh_estimates_server, "tagged")
    client = fresh_estimates_server.client("client")
    for _ in range(SAMPLES_MIN):
        made(fresh_estimates_server, name)
    address = f"/v1/jobs/{fresh_estimates_server.submit(workflow=name, priority=0)['id']}"
    first = client.get(address)
    known = {"if-none-match": first.headers["etag"]}
    assert client.get(address, headers=known).status_code == 304
    made(fresh_estimates_server, name)
    second = client.get(address, headers=known)
    assert second.status_code == 200
    assert second.headers["etag"] != first.headers["etag"]
    assert second.json()["duration_estimate"]["samples"] == SAMPLES_MIN + 1
    assert {**second.json(), "duration_estimate": None} == {**first.json(), "duration_estimate": None}


def test_a_new_estimate_alone_ends_no_wait(fresh_estimates_server: LiveServer) -> None:
    name = workflow(fresh_estimates_server, "waited")
    for _ in range(SAMPLES_MIN):
        made(fresh_estimates_server, name)
    client = fresh_estimates_server.client("client")
    job = fresh_estimates_server.submit(workflow=name, priority=0)["id"]
    tag = client.get(f"/v1/jobs/{job}").headers["etag"]
    made(fresh_estimates_server, name)
    broadcaster = fresh_estimates_server.callsheet.state.broadcaster
    answers: list[Any] = []

    def ask() -> None:
        headers = {"if-none-match": tag}
        answers.append(
            fresh_estimates_server.client("viewer").get(f"/v1/jobs/{job}?wait_seconds=20", headers=headers).json()
        )

    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(ask)
        wait_until(lambda: broadcaster.count or answers)
        assert answers == []
        client.patch(f"/v1/jobs/{job}", json={"priority": 3}).raise_for_status()
        asking.result(30)
    assert (answers[0]["priority"], answers[0]["duration_estimate"]["samples"]) == (3, SAMPLES_MIN + 1)


def test_a_guess_is_kept_for_a_while(live_server: LiveServer) -> None:
    name = workflow(live_server, "kept")
    job = live_server.submit(workflow=name, priority=0)
    assert job["duration_estimate"] is None
    for _ in range(SAMPLES_MIN):
        made(live_server, name)
    assert live_server.client("client").get(f"/v1/jobs/{job['id']}").json() == job


def test_jobs_of_many_tasks_are_counted_as_jobs(fresh_estimates_server: LiveServer) -> None:
    stage = StageSpec(name="frames", kind="frames", tasks=60)
    fresh_estimates_server.engine.execute(
        commands.PutWorkflow(definition=WorkflowDefinition(name="film", stages=[stage]))
    )
    for _ in range(SAMPLES_MIN):
        fresh_estimates_server.submit(workflow="film")
        for _ in range(60):
            fresh_estimates_server.work("frames")
    assert fresh_estimates_server.submit(workflow="film")["duration_estimate"]["samples"] == SAMPLES_MIN


@pytest.mark.parametrize("order", [1, -1], ids=["usual first", "unheard-of first"])
def test_a_job_that_brings_its_own_stages_is_compared_with_its_like(
    tmp_path: Path, database_url: str, order: int
) -> None:
    """Also while what is known of its workflow is kept."""

    def stages(kind: str) -> list[dict[str, Any]]:
        return [{"name": "work", "kind": kind}]

    with LiveServer(database_url, tmp_path) as live_server:
        live_server.engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name="own", inline=True)))
        for _ in range(SAMPLES_MIN):
            live_server.submit(workflow="own", stages=stages("usual"))
            live_server.work("usual")
        asked = {
            kind: live_server.submit(workflow="own", stages=stages(kind)) for kind in ("usual", "unheard-of")[::order]
        }
        assert asked["unheard-of"]["duration_estimate"] is None
        assert asked["usual"]["duration_estimate"]["samples"] == SAMPLES_MIN
