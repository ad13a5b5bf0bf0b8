"""`GET /v1/jobs/{id}/why`: the constraints that block a job, its position in the queue, and estimates."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import Backoff, RetryPolicy, StageSpec
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.explanation import blocking_reasons
from callsheet.http.openapi.native_document import document
from callsheet.settings import Settings
from tests.http.job_requests import claim_lease, submit_job, workflow
from tests.http.server_on_each_database import DATABASES, start_server
from tests.support.processes.live_server import OTHER_TENANT, TENANT, LiveServer
from tests.support.tidiness.source_scan import SourceScan
from tests.support.tidiness.tidy import ROOT

LIMITS = Limits(
    kind_running_max={"scarce": 1}, provider_running_max={"cloud": 1}, kind_rate_max={"slow": "1/hour"},
    provider_rate_max={"dear": "1/day"},
)  # fmt: skip


@pytest.fixture(scope="module", params=DATABASES)
def live_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with limits on a kind and a provider."""
    with start_server(request, tmp_path_factory.mktemp("why"), settings=Settings(limits=LIMITS)) as server:
        yield server


def get_why(live_server: LiveServer, job_id: str, role: str = "client") -> dict[str, Any]:
    answer: dict[str, Any] = live_server.client(role).get(f"/v1/jobs/{job_id}/why").raise_for_status().json()
    return answer


def constraint_codes(found: dict[str, Any]) -> list[str]:
    return [one["code"] for one in found["constraints"]]


def test_an_ended_job_has_the_constraint_ended(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "ends"))
    live_server.work("ends")
    found = get_why(live_server, job)
    assert (constraint_codes(found), found["status"], found["stage"], found["position"]) == (
        ["ended"],
        "completed",
        None,
        None,
    )
    assert found["start"] == {
        "estimated_start_at": None, "estimated_seconds": None, "duration_seconds_p50": None,
        "duration_seconds_p90": None, "samples": 0, "reason": "The job has ended.",
    }  # fmt: skip


def test_a_scheduled_job_has_its_start_time(live_server: LiveServer) -> None:
    job = live_server.submit(workflow=workflow(live_server, "later"), start_in_seconds=600)
    found = get_why(live_server, job["id"])
    assert constraint_codes(found) == ["scheduled"]
    assert found["constraints"][0]["active_until_at"] == job["start_at"]
    assert 500 < found["start"]["estimated_seconds"] <= 600
    assert found["start"]["estimated_start_at"] == job["start_at"]


def test_a_paused_a_canceling_and_a_waiting_job_have_their_constraints(live_server: LiveServer) -> None:
    gated = [StageSpec(name="review", kind="gated", approval=True)]
    client = live_server.client("client")
    paused = submit_job(live_server, workflow(live_server, "paused"))
    client.post(f"/v1/jobs/{paused}/pause").raise_for_status()
    assert constraint_codes(get_why(live_server, paused)) == ["paused"]
    waiting = submit_job(live_server, workflow(live_server, "gated", stages=gated))
    found = get_why(live_server, waiting)
    assert (constraint_codes(found), found["stage"], found["stage_no"]) == (["approval"], "review", 1)
    stopping = submit_job(live_server, workflow(live_server, "stopping"))
    claim_lease(live_server, "stopping")
    client.post(f"/v1/jobs/{stopping}/cancel", json={"grace_seconds": 300}).raise_for_status()
    assert constraint_codes(get_why(live_server, stopping)) == ["canceling", "running"]


def test_a_position_counts_the_tasks_that_are_claimed_before(live_server: LiveServer) -> None:
    name = workflow(live_server, "positions")
    low, first, second = (
        submit_job(live_server, name, priority=10),
        submit_job(live_server, name),
        submit_job(live_server, name),
    )
    urgent = submit_job(live_server, name, priority=90)
    found = {job: get_why(live_server, job) for job in (urgent, first, second, low)}
    assert [one["position"] for one in found.values()] == [1, 2, 3, 4]
    assert found[low]["constraints"][0]["tasks_ahead"] == 3
    leased = live_server.engine.execute(commands.Claim(worker_id="w", kinds=(name,), count=4))
    assert [one.lease.job_id for one in leased] == list(found)


def test_a_position_counts_the_turns_of_other_users_and_tenants(live_server: LiveServer) -> None:
    """The second user's job starts after the first job of the first user. Each tenant has every second turn."""
    name = workflow(live_server, "turns")
    first, second, third = (submit_job(live_server, name) for _ in range(3))
    new = submit_job(live_server, name, user="new")
    other = [submit_job(live_server, name, "other client") for _ in range(2)]
    found = {job: get_why(live_server, job)["position"] for job in (first, new, second, third)}
    found |= {job: get_why(live_server, job, "other client")["position"] for job in other}
    leased = live_server.engine.execute(commands.Claim(worker_id="w", kinds=(name,), count=6))
    assert sorted(found.values()) == [1, 2, 3, 4, 5, 6]
    assert sorted(found, key=found.__getitem__) == [one.lease.job_id for one in leased]
    assert found[new] < found[second]


def test_tasks_of_the_same_rank_are_ordered_by_age(live_server: LiveServer) -> None:
    """The first tasks of two tenants have the same rank, and the older one is first."""
    name = workflow(live_server, "tied")
    mine, theirs = submit_job(live_server, name), submit_job(live_server, name, "other client")
    assert (get_why(live_server, mine)["position"], get_why(live_server, theirs, "other client")["position"]) == (1, 2)


@pytest.mark.parametrize(
    ("name", "fields", "of", "limited"),
    [
        ("narrow", {"running_max": 1}, "workflow", "narrow"),
        ("rare", {"kind": "scarce"}, "kind", "scarce"),
        ("bought", {"provider": "cloud"}, "provider", "cloud"),
    ],
)
def test_a_running_limit_is_reported_with_its_numbers(
    live_server: LiveServer, name: str, fields: dict[str, Any], of: str, limited: str
) -> None:
    workflow(live_server, name, **fields)
    submit_job(live_server, name)
    lease = claim_lease(live_server, fields.get("kind", name))
    job = submit_job(live_server, name)
    found = get_why(live_server, job)
    assert constraint_codes(found) == ["running_limit", "queued"]
    limit = found["constraints"][0]
    assert {key: limit[key] for key in ("limit_scope", "name", "running", "running_max", "tasks")} == {
        "limit_scope": of, "name": limited, "running": 1, "running_max": 1, "tasks": 1,
    }  # fmt: skip
    live_server.engine.execute(commands.Complete(lease=lease))
    assert "running_limit" not in constraint_codes(get_why(live_server, job))


@pytest.mark.parametrize(
    ("name", "fields", "of", "limited", "seconds"),
    [
        ("paced", {"rate_max": "1/minute"}, "workflow", "paced", 60),
        ("rarely", {"kind": "slow"}, "kind", "slow", 3_600),
        ("metered", {"provider": "dear"}, "provider", "dear", 86_400),
    ],
)
def test_a_rate_limit_is_reported_with_its_numbers_and_its_end(
    live_server: LiveServer, name: str, fields: dict[str, Any], of: str, limited: str, seconds: int
) -> None:
    workflow(live_server, name, **fields)
    first = submit_job(live_server, name)
    lease = claim_lease(live_server, fields.get("kind", name))
    live_server.engine.execute(commands.Complete(lease=lease))
    job = submit_job(live_server, name)
    found = get_why(live_server, job)
    assert constraint_codes(found) == ["rate_limit", "queued"]
    limit = found["constraints"][0]
    assert {key: limit[key] for key in ("limit_scope", "name", "started", "started_in_window_max", "window_seconds",
    "tasks")} == {
        "limit_scope": of, "name": limited, "started": 1, "started_in_window_max": 1, "window_seconds": seconds,
        "tasks": 1,
    }  # fmt: skip
    leased_at = live_server.client("client").get(f"/v1/jobs/{first}").json()["started_at"]
    spent = datetime.fromisoformat(limit["active_until_at"]) - datetime.fromisoformat(leased_at)
    assert spent.total_seconds() == seconds
    assert found["start"]["estimated_start_at"] == limit["active_until_at"]


def test_a_kind_without_workers_is_reported(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "lonely"))
    assert constraint_codes(get_why(live_server, job)) == ["queued"], "a worker may be starting"
    live_server.engine.execute(commands.Update(tenant=TENANT, job_id=job, labels={"seen": "once"}))
    back = 60 * 1_000_000
    age_job(live_server, job, back)
    found = get_why(live_server, job)
    assert constraint_codes(found) == ["no_worker", "queued"]
    assert (found["constraints"][0]["limit_scope"], found["constraints"][0]["name"]) == ("kind", "lonely")
    assert (found["position"], found["start"]["estimated_seconds"]) == (1, None)
    submit_job(live_server, "lonely", priority=99)
    claim_lease(live_server, "lonely")
    assert constraint_codes(get_why(live_server, job)) == ["queued"], "a worker has a task of that kind"


def test_workers_that_are_not_allowed_to_claim_are_counted(live_server: LiveServer) -> None:
    """The message says what the operator must change."""
    job = submit_job(live_server, workflow(live_server, "guarded"))
    age_job(live_server, job, 60_000_000)
    for name in ("guard-1", "guard-2", "guard-3"):
        live_server.register(name, "guarded", "else")
    operator = live_server.client("operator")
    operator.patch("/v1/admin/workers/guard-1", json={"approved": False}).raise_for_status()
    operator.patch("/v1/admin/workers/guard-2", json={"draining": True}).raise_for_status()
    operator.patch("/v1/admin/workers/guard-3", json={"kinds": ["else"]}).raise_for_status()
    message = get_why(live_server, job)["constraints"][0]["message"]
    assert message.endswith("of its workers 1 waiting for an operator's approval, 1 draining, 1 not assigned to it.")


def test_a_task_at_a_provider_does_not_count_as_a_worker(live_server: LiveServer) -> None:
    """The worker that submitted the call may have stopped."""
    name = workflow(live_server, "remote", provider="far")
    submit_job(live_server, name)
    lease = claim_lease(live_server, name)
    live_server.engine.execute(commands.RecordIntent(lease=lease, provider="far"))
    live_server.engine.execute(commands.HandOff(lease=lease, ref="ref-remote"))
    job = submit_job(live_server, name)
    age_job(live_server, job, 60_000_000)
    assert constraint_codes(get_why(live_server, job)) == ["no_worker", "queued"]


def age_job(live_server: LiveServer, job: str, micros: int) -> None:
    """Move the last update of a job into the past."""
    connection = live_server.engine.database.connect()
    try:
        connection.run(f"UPDATE job SET updated_at = updated_at - {micros} WHERE id = '{job}'")
    finally:
        connection.close()


def test_a_failed_attempt_has_the_time_of_its_retry(live_server: LiveServer) -> None:
    retry = RetryPolicy(on="any", backoff=Backoff(base_seconds=600, jitter=0))
    job = submit_job(live_server, workflow(live_server, "stumbles", retry=retry))
    live_server.engine.execute(commands.Fail(lease=claim_lease(live_server, "stumbles")))
    found = get_why(live_server, job)
    assert constraint_codes(found) == ["backoff"]
    assert found["constraints"][0]["active_until_at"] == found["start"]["estimated_start_at"]


def test_a_task_at_a_provider_is_reported_without_its_reference(live_server: LiveServer) -> None:
    job = submit_job(live_server, workflow(live_server, "handed", provider="far"))
    lease = claim_lease(live_server, "handed")
    live_server.engine.execute(commands.RecordIntent(lease=lease, provider="far"))
    live_server.engine.execute(commands.HandOff(lease=lease, ref="ref-secret-7"))
    found = get_why(live_server, job)
    assert (constraint_codes(found), found["constraints"][0]["name"]) == (["provider"], "far")
    assert found["constraints"][0]["active_since_at"] is not None
    assert "ref-secret-7" not in str(found)


def test_a_running_job_has_its_workers_and_its_progress(live_server: LiveServer) -> None:
    stages = [StageSpec(name="frames", kind="frames", tasks=3)]
    job = submit_job(live_server, workflow(live_server, "frames", stages=stages))
    lease = claim_lease(live_server, "frames", "w1")
    claim_lease(live_server, "frames", "w2")
    live_server.engine.execute(commands.Heartbeat(lease=lease, progress=50))
    found = get_why(live_server, job)
    assert constraint_codes(found) == ["queued", "running"]
    running = found["constraints"][1]
    assert (running["tasks"], running["workers"], running["progress"]) == (2, 2, 25)
    assert (found["stage"], found["stage_no"], found["progress"]) == ("frames", 1, 16)


def test_estimates_are_computed_from_earlier_durations(live_server: LiveServer) -> None:
    name = workflow(live_server, "timed")
    done = [submit_job(live_server, name) for _ in range(6)]
    for _ in done:
        live_server.work(name)
    connection = live_server.engine.database.connect()
    try:
        for number, job in enumerate(done, 1):
            connection.run(f"UPDATE attempt SET leased_at = ended_at - {number * 10_000_000} WHERE job_id = '{job}'")
    finally:
        connection.close()
    running = submit_job(live_server, name)
    claim_lease(live_server, name)
    first, second = submit_job(live_server, name), submit_job(live_server, name)
    left = get_why(live_server, running)["remaining"]
    assert (left["samples"], left["percent"], left["reason"]) == (6, 0, "Time until it ends.")
    assert 25 < left["remaining_seconds_p50"] <= 30
    assert 55 < left["remaining_seconds_p90"] <= 60
    starts = [get_why(live_server, job)["start"] for job in (first, second)]
    assert [start["estimated_seconds"] for start in starts] == [30, 60]
    assert {(s["duration_seconds_p50"], s["duration_seconds_p90"], s["samples"]) for s in starts} == {(30, 60, 6)}
    assert live_server.client("client").get(f"/v1/jobs/{running}").json()["progress"] == 0, (
        "an estimate does not change the reported progress"
    )


def test_too_few_samples_give_no_estimate(live_server: LiveServer) -> None:
    name = workflow(live_server, "young")
    submit_job(live_server, name)
    live_server.work(name)
    start = get_why(live_server, submit_job(live_server, name))["start"]
    assert (start["estimated_start_at"], start["estimated_seconds"], start["samples"]) == (None, None, 1)
    assert "at least 5" in start["reason"]


def test_a_job_of_another_tenant_or_user_is_not_found(live_server: LiveServer) -> None:
    theirs = submit_job(live_server, "sketch", "other client")
    live_server.engine.execute(commands.TopUp(tenant=TENANT, user="eve", amount=9, idempotency_key="x"))
    eves = submit_job(live_server, "sketch", user="eve")
    for role, job in (("client", theirs), ("user", eves), ("client", "no-such-job")):
        answer = live_server.client(role).get(f"/v1/jobs/{job}/why")
        assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")
    assert live_server.client("worker").get(f"/v1/jobs/{eves}/why").status_code == 403
    assert constraint_codes(get_why(live_server, submit_job(live_server, "sketch"), "user"))[-1] == "queued"


def test_jobs_of_another_tenant_appear_only_as_counts(live_server: LiveServer) -> None:
    name = workflow(live_server, "shared")
    theirs = [submit_job(live_server, name, "other client", user="secret-user") for _ in range(2)]
    claim_lease(live_server, name, "their-worker")
    text = live_server.client("client").get(f"/v1/jobs/{submit_job(live_server, name)}/why").text
    for secret in (*theirs, "secret-user", "their-worker", f'"{OTHER_TENANT}"'):
        assert secret not in text


def test_every_code_is_listed_once_and_documented() -> None:
    source = SourceScan([(ROOT / "src/callsheet/core/policy/explanation/blocking_reasons.py").read_text()])
    codes = {
        text for call, inside in source.calls_to("Constraint") for text in source.possible_texts(call.args[0], inside)
    }
    assert codes == set(blocking_reasons.CODES)
    documented = document()["components"]["schemas"]["Constraint"]["properties"]["code"]["description"]
    assert [code for code in blocking_reasons.CODES if f"`{code}`" not in documented] == []
