"""`GET /v1/jobs/{id}/why` on a living house: the constraint that holds a job, its place, and honest estimates."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from callsheet.config import Settings
from callsheet.core import commands, constraints
from callsheet.core.limits import Limits
from callsheet.core.recipe import Backoff, Recipe, Retry, StageSpec
from callsheet.http.why import ROUTES
from tests.support.catalogue import Source
from tests.support.places import Places
from tests.support.served import OTHER, TENANT, Served
from tests.support.tidy import ROOT

LIMITS = Limits(
    kind_running_max={"scarce": 1}, provider_running_max={"cloud": 1}, kind_rate_max={"slow": "1/hour"},
    provider_rate_max={"dear": "1/day"},
)  # fmt: skip


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A house with limits on a kind and a provider."""
    data: Path = tmp_path_factory.mktemp("why")
    settings = Settings(limits=LIMITS)
    if request.param == "sqlite":
        with Served(data / "callsheet.db", data, settings=settings) as made:
            yield made
        return
    places: Places = request.getfixturevalue("places")
    url = places.lend()
    with Served(url, data, settings=settings) as made:
        yield made
    places.give_back(url)


def workflow(served: Served, name: str, kind: str = "", **fields: Any) -> str:
    """Store a free workflow of one task, of a kind that has its name."""
    provider = fields.pop("provider", "")
    fields.setdefault("stages", [StageSpec(name="draw", kind=kind or name, provider=provider)])
    served.engine.execute(commands.PutWorkflow(recipe=Recipe(name=name, **fields)))
    return name


def ask(served: Served, name: str, role: str = "client", **more: Any) -> str:
    return str(served.submit(role, workflow=name, **more)["id"])


def take(served: Served, kind: str, worker: str = "w1") -> commands.Lease:
    (leased,) = served.engine.execute(commands.Claim(worker_id=worker, kinds=(kind,)))
    lease: commands.Lease = leased.lease
    return lease


def explained(served: Served, job_id: str, role: str = "client") -> dict[str, Any]:
    answer: dict[str, Any] = served.client(role).get(f"/v1/jobs/{job_id}/why").raise_for_status().json()
    return answer


def held(found: dict[str, Any]) -> list[str]:
    return [one["code"] for one in found["constraints"]]


def test_an_ended_job_says_so(served: Served) -> None:
    job = ask(served, workflow(served, "ends"))
    served.work("ends")
    found = explained(served, job)
    assert (held(found), found["status"], found["stage"], found["position"]) == (["ended"], "completed", None, None)
    assert found["start"] == {
        "estimate": True, "estimated_start_at": None, "estimated_seconds": None, "duration_seconds_p50": None,
        "duration_seconds_p90": None, "samples": 0, "reason": "The job has ended.",
    }  # fmt: skip


def test_a_scheduled_job_says_its_hour(served: Served) -> None:
    job = served.submit(workflow=workflow(served, "later"), start_in_seconds=600)
    found = explained(served, job["id"])
    assert held(found) == ["scheduled"]
    assert found["constraints"][0]["until_at"] == job["start_at"]
    assert 500 < found["start"]["estimated_seconds"] <= 600
    assert found["start"]["estimated_start_at"] == job["start_at"]


def test_a_paused_a_canceling_and_a_waiting_job_say_so(served: Served) -> None:
    gated = [StageSpec(name="review", kind="gated", gate=True)]
    client = served.client("client")
    paused = ask(served, workflow(served, "paused"))
    client.post(f"/v1/jobs/{paused}/pause").raise_for_status()
    assert held(explained(served, paused)) == ["paused"]
    waiting = ask(served, workflow(served, "gated", stages=gated))
    found = explained(served, waiting)
    assert (held(found), found["stage"], found["stage_no"]) == (["approval"], "review", 1)
    stopping = ask(served, workflow(served, "stopping"))
    take(served, "stopping")
    client.post(f"/v1/jobs/{stopping}/cancel", json={"grace_seconds": 300}).raise_for_status()
    assert held(explained(served, stopping)) == ["canceling", "running"]


def test_positions_count_those_in_front_in_the_order_of_claims(served: Served) -> None:
    name = workflow(served, "places")
    low, first, second = (ask(served, name, priority=10), ask(served, name), ask(served, name))
    urgent = ask(served, name, priority=90)
    found = {job: explained(served, job) for job in (urgent, first, second, low)}
    assert [one["position"] for one in found.values()] == [1, 2, 3, 4]
    assert found[low]["constraints"][0]["ahead"] == 3
    leased = served.engine.execute(commands.Claim(worker_id="w", kinds=(name,), count=4))
    assert [one.lease.job_id for one in leased] == list(found)


def test_tenants_of_the_same_rank_have_places_of_their_own(served: Served) -> None:
    """Two tenants' first tasks have one rank: the older one is in front, and neither sees more than a count."""
    name = workflow(served, "tied")
    mine, theirs = ask(served, name), ask(served, name, "other client")
    assert (explained(served, mine)["position"], explained(served, theirs, "other client")["position"]) == (1, 2)


@pytest.mark.parametrize(
    ("name", "fields", "of", "limited"),
    [
        ("narrow", {"running_max": 1}, "workflow", "narrow"),
        ("rare", {"kind": "scarce"}, "kind", "scarce"),
        ("bought", {"provider": "cloud"}, "provider", "cloud"),
    ],
)
def test_a_running_limit_is_named_with_its_numbers(
    served: Served, name: str, fields: dict[str, Any], of: str, limited: str
) -> None:
    workflow(served, name, **fields)
    ask(served, name)
    lease = take(served, fields.get("kind", name))
    job = ask(served, name)
    found = explained(served, job)
    assert held(found) == ["running_limit", "queued"]
    limit = found["constraints"][0]
    assert {key: limit[key] for key in ("of", "name", "running", "running_max", "tasks")} == {
        "of": of, "name": limited, "running": 1, "running_max": 1, "tasks": 1,
    }  # fmt: skip
    served.engine.execute(commands.Complete(lease=lease))
    assert "running_limit" not in held(explained(served, job))


@pytest.mark.parametrize(
    ("name", "fields", "of", "limited", "seconds"),
    [
        ("paced", {"rate_max": "1/minute"}, "workflow", "paced", 60),
        ("rarely", {"kind": "slow"}, "kind", "slow", 3_600),
        ("metered", {"provider": "dear"}, "provider", "dear", 86_400),
    ],
)
def test_a_rate_is_named_with_its_numbers_and_its_end(
    served: Served, name: str, fields: dict[str, Any], of: str, limited: str, seconds: int
) -> None:
    workflow(served, name, **fields)
    first = ask(served, name)
    lease = take(served, fields.get("kind", name))
    served.engine.execute(commands.Complete(lease=lease))
    job = ask(served, name)
    found = explained(served, job)
    assert held(found) == ["rate_limit", "queued"]
    limit = found["constraints"][0]
    assert {key: limit[key] for key in ("of", "name", "started", "started_max", "within_seconds", "tasks")} == {
        "of": of, "name": limited, "started": 1, "started_max": 1, "within_seconds": seconds, "tasks": 1,
    }  # fmt: skip
    leased_at = served.client("client").get(f"/v1/jobs/{first}").json()["started_at"]
    spent = datetime.fromisoformat(limit["until_at"]) - datetime.fromisoformat(leased_at)
    assert spent.total_seconds() == seconds
    assert found["start"]["estimated_start_at"] == limit["until_at"]


def test_a_kind_that_nobody_works_on_has_no_worker(served: Served) -> None:
    job = ask(served, workflow(served, "lonely"))
    assert held(explained(served, job)) == ["queued"], "a worker may be on its way"
    served.engine.execute(commands.Change(tenant=TENANT, job_id=job, labels={"seen": "once"}))
    back = 60 * 1_000_000
    aged(served, job, back)
    found = explained(served, job)
    assert held(found) == ["no_worker", "queued"]
    assert (found["constraints"][0]["of"], found["constraints"][0]["name"]) == ("kind", "lonely")
    assert (found["position"], found["start"]["estimated_seconds"]) == (1, None)
    ask(served, "lonely", priority=99)
    take(served, "lonely")
    assert held(explained(served, job)) == ["queued"], "somebody works on that kind"


def test_workers_that_could_and_may_not_are_named(served: Served) -> None:
    """An idle house with a fleet that waits for its operator says so."""
    job = ask(served, workflow(served, "guarded"))
    aged(served, job, 60_000_000)
    for name in ("guard-1", "guard-2", "guard-3"):
        served.register(name, "guarded", "else")
    operator = served.client("operator")
    operator.patch("/v1/admin/workers/guard-1", json={"approved": False}).raise_for_status()
    operator.patch("/v1/admin/workers/guard-2", json={"draining": True}).raise_for_status()
    operator.patch("/v1/admin/workers/guard-3", json={"kinds": ["else"]}).raise_for_status()
    message = explained(served, job)["constraints"][0]["message"]
    assert message.endswith("of its workers 1 waiting for an operator's approval, 1 draining, 1 not assigned to it.")


def test_work_at_a_provider_is_nobodys_hand(served: Served) -> None:
    """Whoever handed it over may be gone: a call that is under way is no sign of a worker."""
    name = workflow(served, "remote", provider="far")
    ask(served, name)
    lease = take(served, name)
    served.engine.execute(commands.Intend(lease=lease, provider="far"))
    served.engine.execute(commands.Hand(lease=lease, ref="ref-remote"))
    job = ask(served, name)
    aged(served, job, 60_000_000)
    assert held(explained(served, job)) == ["no_worker", "queued"]


def aged(served: Served, job: str, micros: int) -> None:
    """Let a job have been left alone for longer."""
    connection = served.engine.database.connect()
    try:
        connection.run(f"UPDATE job SET updated_at = updated_at - {micros} WHERE id = '{job}'")
    finally:
        connection.close()


def test_a_failed_try_says_when_it_comes_again(served: Served) -> None:
    retry = Retry(on="any", backoff=Backoff(base_seconds=600, jitter=0))
    job = ask(served, workflow(served, "stumbles", retry=retry))
    served.engine.execute(commands.Fail(lease=take(served, "stumbles")))
    found = explained(served, job)
    assert held(found) == ["backoff"]
    assert found["constraints"][0]["until_at"] == found["start"]["estimated_start_at"]


def test_work_at_a_provider_is_told_without_its_reference(served: Served) -> None:
    job = ask(served, workflow(served, "handed", provider="far"))
    lease = take(served, "handed")
    served.engine.execute(commands.Intend(lease=lease, provider="far"))
    served.engine.execute(commands.Hand(lease=lease, ref="ref-secret-7"))
    found = explained(served, job)
    assert (held(found), found["constraints"][0]["name"]) == (["provider"], "far")
    assert found["constraints"][0]["since_at"] is not None
    assert "ref-secret-7" not in str(found)


def test_a_running_job_says_on_how_many_workers_and_how_far(served: Served) -> None:
    stages = [StageSpec(name="frames", kind="frames", tasks=3)]
    job = ask(served, workflow(served, "frames", stages=stages))
    lease = take(served, "frames", "w1")
    take(served, "frames", "w2")
    served.engine.execute(commands.Heartbeat(lease=lease, progress=50))
    found = explained(served, job)
    assert held(found) == ["queued", "running"]
    running = found["constraints"][1]
    assert (running["tasks"], running["workers"], running["progress"]) == (2, 2, 25)
    assert (found["stage"], found["stage_no"], found["progress"]) == ("frames", 1, 16)


def test_estimates_come_from_this_queue_and_are_labelled(served: Served) -> None:
    name = workflow(served, "timed")
    done = [ask(served, name) for _ in range(6)]
    for _ in done:
        served.work(name)
    connection = served.engine.database.connect()
    try:
        for number, job in enumerate(done, 1):
            connection.run(f"UPDATE attempt SET leased_at = ended_at - {number * 10_000_000} WHERE job_id = '{job}'")
    finally:
        connection.close()
    running = ask(served, name)
    take(served, name)
    first, second = ask(served, name), ask(served, name)
    left = explained(served, running)["remaining"]
    assert (left["estimate"], left["samples"], left["percent"], left["reason"]) == (True, 6, 0, "Until it has ended.")
    assert 25 < left["remaining_seconds_p50"] <= 30
    assert 55 < left["remaining_seconds_p90"] <= 60
    starts = [explained(served, job)["start"] for job in (first, second)]
    assert [start["estimated_seconds"] for start in starts] == [30, 60]
    assert {(s["estimate"], s["duration_seconds_p50"], s["duration_seconds_p90"], s["samples"]) for s in starts} == {
        (True, 30, 60, 6)
    }
    assert served.client("client").get(f"/v1/jobs/{running}").json()["progress"] == 0, "true progress stays true"


def test_too_few_samples_are_no_basis(served: Served) -> None:
    name = workflow(served, "young")
    ask(served, name)
    served.work(name)
    start = explained(served, ask(served, name))["start"]
    assert (start["estimated_start_at"], start["estimated_seconds"], start["samples"]) == (None, None, 1)
    assert "takes 5" in start["reason"]


def test_a_job_of_another_tenant_or_user_is_absent(served: Served) -> None:
    theirs = ask(served, "sketch", "other client")
    served.engine.execute(commands.TopUp(tenant=TENANT, user="eve", amount=9, idempotency_key="x"))
    eves = ask(served, "sketch", user="eve")
    for role, job in (("client", theirs), ("user", eves), ("client", "no-such-job")):
        answer = served.client(role).get(f"/v1/jobs/{job}/why")
        assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")
    assert served.client("worker").get(f"/v1/jobs/{eves}/why").status_code == 403
    assert held(explained(served, ask(served, "sketch"), "user"))[-1] == "queued"


def test_of_another_tenant_there_are_only_counts(served: Served) -> None:
    name = workflow(served, "shared")
    theirs = [ask(served, name, "other client", user="secret-user") for _ in range(2)]
    take(served, name, "their-worker")
    text = served.client("client").get(f"/v1/jobs/{ask(served, name)}/why").text
    for secret in (*theirs, "secret-user", "their-worker", f'"{OTHER}"'):
        assert secret not in text


def test_every_code_is_listed_once_and_documented_at_the_route() -> None:
    source = Source([(ROOT / "src/callsheet/core/constraints.py").read_text()])
    told = {text for call, inside in source.named("Constraint") for text in source.texts(call.args[0], inside)}
    assert told == set(constraints.CODES)
    assert [code for code in constraints.CODES if f"`{code}`" not in ROUTES[0].details] == []
