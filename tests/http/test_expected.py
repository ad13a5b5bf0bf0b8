"""How long a job should take: a labelled guess in its answer, under a tag that tells the truth."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from callsheet.config import HttpSettings
from callsheet.core import commands
from callsheet.core.estimate import SAMPLES_MIN
from callsheet.core.recipe import Recipe, StageSpec
from tests.support.places import Places
from tests.support.served import Served
from tests.support.waiting import wait_until


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def eager(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that looks at past jobs every time."""
    data: Path = tmp_path_factory.mktemp("eager")
    settings = HttpSettings(estimate_seconds=0)
    if request.param == "sqlite":
        with Served(data / "callsheet.db", data, settings) as made:
            yield made
        return
    places: Places = request.getfixturevalue("places")
    url = places.lend()
    with Served(url, data, settings) as made:
        yield made
    places.give_back(url)


def workflow(served: Served, name: str) -> str:
    stages = [StageSpec(name="plan", kind=f"{name}-plan"), StageSpec(name="draw", kind=f"{name}-draw")]
    served.engine.execute(commands.PutWorkflow(recipe=Recipe(name=name, stages=stages)))
    return name


def made(served: Served, name: str) -> str:
    """Do a whole job."""
    job = str(served.submit(workflow=name)["id"])
    for stage in ("plan", "draw"):
        served.work(f"{name}-{stage}")
    return job


def seconds(served: Served, jobs: list[str]) -> list[float]:
    rows = [served.engine.read.job("default", job) for job in jobs]
    return sorted(round(((row.finished_at or 0) - (row.started_at or 0)) / 1e6, 3) for row in rows)


def test_a_job_says_how_long_such_jobs_took_as_a_guess_until_it_has_ended(eager: Served) -> None:
    # R244, R267
    name = workflow(eager, "often")
    client = eager.client("client")
    past = [made(eager, name) for _ in range(SAMPLES_MIN - 1)]
    job = eager.submit(workflow=name)
    assert job["expected"] is None
    eager.engine.execute(commands.Cancel(tenant="default", job_id=job["id"], actor="user", reason="", grace_seconds=0))
    past.append(made(eager, name))
    job = eager.submit(workflow=name)
    took = seconds(eager, past)
    assert job["expected"] == {
        "estimate": True, "seconds_p50": took[SAMPLES_MIN // 2], "seconds_p90": took[-1], "samples": SAMPLES_MIN,
    }  # fmt: skip
    (listed,) = client.get("/v1/jobs", params={"workflow": name, "limit": 1}).json()["jobs"]
    assert client.get(f"/v1/jobs/{job['id']}").json() == job == listed
    for stage in ("plan", "draw"):
        eager.work(f"{name}-{stage}")
    ended = client.get(f"/v1/jobs/{job['id']}").json()
    assert (ended["status"], ended["expected"]) == ("completed", None)


def test_the_same_tag_is_the_same_body_and_a_new_estimate_is_a_new_tag(eager: Served) -> None:
    name = workflow(eager, "tagged")
    client = eager.client("client")
    for _ in range(SAMPLES_MIN):
        made(eager, name)
    address = f"/v1/jobs/{eager.submit(workflow=name, priority=0)['id']}"
    first = client.get(address)
    known = {"if-none-match": first.headers["etag"]}
    assert client.get(address, headers=known).status_code == 304
    made(eager, name)
    second = client.get(address, headers=known)
    assert second.status_code == 200
    assert second.headers["etag"] != first.headers["etag"]
    assert second.json()["expected"]["samples"] == SAMPLES_MIN + 1
    assert {**second.json(), "expected": None} == {**first.json(), "expected": None}


def test_a_new_estimate_alone_ends_no_wait(eager: Served) -> None:
    name = workflow(eager, "waited")
    for _ in range(SAMPLES_MIN):
        made(eager, name)
    client = eager.client("client")
    job = eager.submit(workflow=name, priority=0)["id"]
    tag = client.get(f"/v1/jobs/{job}").headers["etag"]
    made(eager, name)
    hub = eager.callsheet.house.hub
    answers: list[Any] = []

    def ask() -> None:
        headers = {"if-none-match": tag}
        answers.append(eager.client("viewer").get(f"/v1/jobs/{job}?wait=20", headers=headers).json())

    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(ask)
        wait_until(lambda: hub.count or answers)
        assert answers == []
        client.patch(f"/v1/jobs/{job}", json={"priority": 3}).raise_for_status()
        asking.result(30)
    assert (answers[0]["priority"], answers[0]["expected"]["samples"]) == (3, SAMPLES_MIN + 1)


def test_a_guess_is_kept_for_a_while(served: Served) -> None:
    name = workflow(served, "kept")
    job = served.submit(workflow=name, priority=0)
    assert job["expected"] is None
    for _ in range(SAMPLES_MIN):
        made(served, name)
    assert served.client("client").get(f"/v1/jobs/{job['id']}").json() == job


def test_jobs_of_many_tasks_are_counted_as_jobs(eager: Served) -> None:
    stage = StageSpec(name="frames", kind="frames", tasks=60)
    eager.engine.execute(commands.PutWorkflow(recipe=Recipe(name="film", stages=[stage])))
    for _ in range(SAMPLES_MIN):
        eager.submit(workflow="film")
        for _ in range(60):
            eager.work("frames")
    assert eager.submit(workflow="film")["expected"]["samples"] == SAMPLES_MIN


@pytest.mark.parametrize("order", [1, -1], ids=["usual first", "unheard-of first"])
def test_a_job_that_brings_its_own_stages_is_compared_with_its_like(tmp_path: Path, place: str, order: int) -> None:
    """Also while what is known of its workflow is kept."""

    def stages(kind: str) -> list[dict[str, Any]]:
        return [{"name": "work", "kind": kind}]

    with Served(place, tmp_path) as served:
        served.engine.execute(commands.PutWorkflow(recipe=Recipe(name="own", inline=True)))
        for _ in range(SAMPLES_MIN):
            served.submit(workflow="own", stages=stages("usual"))
            served.work("usual")
        asked = {kind: served.submit(workflow="own", stages=stages(kind)) for kind in ("usual", "unheard-of")[::order]}
        assert asked["unheard-of"]["expected"] is None
        assert asked["usual"]["expected"]["samples"] == SAMPLES_MIN
