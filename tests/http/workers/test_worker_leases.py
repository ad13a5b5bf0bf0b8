"""Leases in the worker protocol: heartbeats, reports of outcomes, and the worker that owns a lease."""

from typing import Any

from callsheet.settings import HttpSettings
from tests.http.worker_sandbox import PNG, WorkerSandbox, expect_json, get_job, output_file_of
from tests.support.processes.live_server import LiveServer

# -- heartbeats


def test_heartbeats_send_progress_and_logs_and_return_cancel_requests(sandbox: WorkerSandbox) -> None:
    """R107, R227, R229."""
    jobs = [sandbox.submit(), sandbox.submit()]
    http_worker = sandbox.http_worker(concurrency=2)
    tasks = http_worker.claim(count=2)
    sandbox.live_server.client("client").post(
        f"/v1/jobs/{jobs[1]['id']}/cancel", json={"grace_seconds": 60}
    ).raise_for_status()
    answer = http_worker.heartbeat(*tasks, progress=40, message="halfway", log=["loaded", "drawing /home/me/x"])
    by_job = {task["lease"]["job_id"]: heartbeat for task, heartbeat in zip(tasks, answer["results"], strict=True)}
    assert [by_job[job["id"]]["cancel"] for job in jobs] == [False, True]
    assert all(heartbeat["lease_seconds"] > 800 for heartbeat in by_job.values())
    events = expect_json(sandbox.live_server.client("client").get(f"/v1/jobs/{jobs[0]['id']}/events"))["events"]
    assert "task.progressed" in {event["type"] for event in events}
    logged = [event["data"]["lines"] for event in events if event["type"] == "task.logged"]
    assert logged[0][0] == "loaded"
    assert "/home/me" not in str(logged)
    assert get_job(sandbox.live_server, jobs[0])["progress"] == 40


def test_an_invalid_lease_does_not_affect_the_other_heartbeats(sandbox: WorkerSandbox) -> None:
    sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    other = {"lease": {**task["lease"], "token": "invalid"}}
    good, bad = http_worker.heartbeat(task, other)["results"]
    assert (good["error"], bad["error"]["code"]) == (None, "lease_not_found")


def test_a_lease_is_extended_although_a_url_cannot_be_signed(
    sandbox: WorkerSandbox,
) -> None:
    canceled, _ = sandbox.submit(), sandbox.submit()
    http_worker = sandbox.http_worker(concurrency=2)
    tasks = http_worker.claim(count=2)
    sandbox.live_server.client("client").post(
        f"/v1/jobs/{canceled['id']}/cancel", json={"grace_seconds": 0}
    ).raise_for_status()
    heartbeats = http_worker.heartbeat(*tasks, downloads=["nowhere"])["results"]
    by_job = {task["lease"]["job_id"]: heartbeat for task, heartbeat in zip(tasks, heartbeats, strict=True)}
    assert by_job.pop(canceled["id"])["cancel"] is True
    (other,) = by_job.values()
    assert other["lease_seconds"] > 800
    assert (other["error"], other["grants"], other["grants_error"]["code"]) == (None, None, "file_not_found")


def test_a_heartbeat_returns_new_urls_for_the_same_lease(sandbox: WorkerSandbox) -> None:
    """R234."""
    sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    (heartbeat,) = http_worker.heartbeat(task, uploads=[output_file_of(PNG)])["results"]
    grant = heartbeat["grants"]["uploads"][0]["upload"]
    answer = http_worker.http.request(grant["method"], grant["url"], content=PNG, headers=grant["headers"])
    assert answer.is_success
    expect_json(http_worker.post_lease("complete", task, files=[output_file_of(PNG)]))


def test_too_many_heartbeat_requests_get_retry_after(database_url: Any, tmp_path: Any) -> None:
    with LiveServer(database_url, tmp_path, HttpSettings(heartbeats_per_second_max=3)) as live_server:
        sandbox = WorkerSandbox(live_server)
        sandbox.submit()
        http_worker = sandbox.http_worker()
        (task,) = http_worker.claim()
        body = {"heartbeats": [{"lease": task["lease"]}]}
        answers = [http_worker.http.post("/v1/worker/heartbeat", json=body) for _ in range(50)]
    late = [answer for answer in answers if answer.status_code == 429]
    assert late
    assert {answer.json()["code"] for answer in late} == {"too_many_heartbeats"}
    assert late[0].headers["retry-after"] == "1"


def test_a_request_counts_as_the_heartbeats_in_it(database_url: Any, tmp_path: Any) -> None:
    """A request above the rate is accepted, and the next one must wait until the rate is met again."""
    with LiveServer(database_url, tmp_path, HttpSettings(heartbeats_per_second_max=1)) as live_server:
        sandbox = WorkerSandbox(live_server)
        sandbox.submit()
        http_worker, other = sandbox.http_worker(), sandbox.http_worker("w2", concurrency=500)
        (task,) = http_worker.claim()
        expect_json(
            http_worker.http.post("/v1/worker/heartbeat", json={"heartbeats": [{"lease": task["lease"]}] * 500})
        )
        late = http_worker.http.post("/v1/worker/heartbeat", json={"heartbeats": [{"lease": task["lease"]}]})
        assert expect_json(late, 429)["code"] == "too_many_heartbeats"
        assert 400 < int(late.headers["retry-after"]) <= 500
        foreign = {"heartbeats": [{"lease": task["lease"]}] * 500}
        assert len(expect_json(other.http.post("/v1/worker/heartbeat", json=foreign))["results"]) == 500
        late = other.http.post("/v1/worker/heartbeat", json=foreign)
        assert late.status_code == 200 or late.headers["retry-after"] == "1"


# -- the end of an attempt


def test_a_completion_needs_its_declared_files_in_storage(sandbox: WorkerSandbox) -> None:
    """C13, R222: no file, another size and another digest are refused; then the right file is accepted."""
    job = sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    assert (
        expect_json(http_worker.post_lease("complete", task, files=[output_file_of(PNG)]), 422)["code"]
        == "file_not_uploaded"
    )
    made = http_worker.put(task, PNG)
    wrong = {"bytes": len(PNG) + 1}, {"sha256": "0" * 64}
    codes = [
        expect_json(http_worker.post_lease("complete", task, files=[made | claim]), 422)["code"] for claim in wrong
    ]
    assert codes == ["size_mismatch", "digest_mismatch"]
    assert get_job(sandbox.live_server, job)["status"] == "running"
    expect_json(http_worker.post_lease("complete", task, files=[made]))
    assert get_job(sandbox.live_server, job)["status"] == "completed"


def test_a_lease_with_another_attempt_is_refused(sandbox: WorkerSandbox) -> None:
    job = sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    wrong = {"lease": task["lease"] | {"attempt": task["lease"]["attempt"] + 1}}
    assert (
        expect_json(http_worker.post_lease("complete", wrong, files=[output_file_of(PNG)]), 404)["code"]
        == "lease_not_found"
    )
    assert http_worker.heartbeat(wrong)["results"][0]["error"]["code"] == "lease_not_found"
    assert get_job(sandbox.live_server, job)["status"] == "running"


def test_unstorable_values_are_refused(sandbox: WorkerSandbox) -> None:
    sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    wrong = {"lease": task["lease"] | {"attempt": 2**63}}
    for verb, more in (("complete", {}), ("fail", {}), ("requeue", {"reason": "spot"})):
        assert expect_json(http_worker.post_lease(verb, wrong, **more), 422)["code"] == "out_of_range"
    assert expect_json(http_worker.post_lease("files", task, downloads=["a\0b"]), 404)["code"] == "file_not_found"
    body = {"workflow": sandbox.kind, "user": "ann", "input": {"picture": {"$file": "a\0b"}}}
    assert expect_json(sandbox.live_server.client("client").post("/v1/jobs", json=body), 422)["code"] == "invalid_text"


def test_urls_for_more_files_than_a_task_may_have_are_refused(sandbox: WorkerSandbox) -> None:
    sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    limits = sandbox.live_server.engine.settings.limits
    many = (
        {"uploads": [output_file_of(PNG)] * (limits.files_per_task_max + 1)},
        {"downloads": ["x"] * (limits.bulk_items_max + 1)},
    )
    assert [expect_json(http_worker.post_lease("files", task, **one), 422)["code"] for one in many] == [
        "out_of_range"
    ] * 2


def test_a_failure_is_retried_if_the_worker_reports_it_as_retryable(sandbox: WorkerSandbox) -> None:
    """R254, R266."""
    http_worker = sandbox.http_worker(concurrency=2)
    one, two = sandbox.submit(), sandbox.submit()
    for task in http_worker.claim(count=2):
        retryable = task["lease"]["job_id"] == one["id"]
        text = "no memory: https://bucket.example/x?X-Amz-Signature=abc"
        expect_json(http_worker.post_lease("fail", task, code="out_of_memory", message=text, retryable=retryable))
    assert [get_job(sandbox.live_server, job)["status"] for job in (one, two)] == ["running", "failed"]
    error = get_job(sandbox.live_server, two)["error"]
    assert error["code"] == "out_of_memory"
    assert "X-Amz-Signature" not in error["message"]


def test_a_requeue_does_not_count_as_an_attempt_and_records_its_reason(sandbox: WorkerSandbox) -> None:
    """R258, R259, R260."""
    job = sandbox.submit()
    http_worker = sandbox.http_worker()
    for attempt in (1, 2):
        (task,) = http_worker.claim()
        assert task["lease"]["attempt"] == attempt
        expect_json(http_worker.post_lease("requeue", task, reason="interrupted", cause="spot"))
    row = sandbox.task_of(job)
    assert (row["attempts"], row["attempts_counted"]) == (2, 0)
    found = f"/v1/jobs/{job['id']}/tasks/{row['id']}/attempts"
    attempts = expect_json(sandbox.live_server.client("client").get(found))["attempts"]
    assert [attempt["error"]["code"] for attempt in attempts] == ["spot", "spot"]


def test_the_provider_reference_is_returned_to_the_next_attempt_only(sandbox: WorkerSandbox) -> None:
    job = sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    assert task["resumed"] is None
    expect_json(http_worker.post_lease("submitted", task, provider="comfy-cloud", ref="prompt-4711"))
    expect_json(http_worker.post_lease("submitted", task, provider="comfy-cloud", ref="prompt-4711"))
    expect_json(http_worker.post_lease("requeue", task, reason="spot"))
    (task,) = http_worker.claim()
    assert task["resumed"] == {"provider": "comfy-cloud", "ref": "prompt-4711"}
    expect_json(http_worker.post_lease("fail", task, retryable=True))
    client = sandbox.live_server.client("client")
    for path in ("", "/tasks", "/events", f"/tasks/{task['lease']['task_id']}/attempts"):
        assert "prompt-4711" not in client.get(f"/v1/jobs/{job['id']}{path}").text


# -- owners


def test_a_lease_cannot_be_used_by_another_worker(sandbox: WorkerSandbox) -> None:
    """R240, R250, R257."""
    job = sandbox.submit()
    mine, theirs = sandbox.http_worker("mine"), sandbox.http_worker("theirs")
    (task,) = mine.claim()
    for verb, more in (
        ("complete", {}),
        ("fail", {}),
        ("requeue", {"reason": "x"}),
        ("files", {}),
        ("previous-outputs", {}),
    ):
        assert expect_json(theirs.post_lease(verb, task, **more), 404)["code"] == "lease_not_found"
    assert theirs.heartbeat(task)["results"][0]["error"]["code"] == "lease_not_found"
    assert get_job(sandbox.live_server, job)["status"] == "running"


def test_reports_of_an_old_lease_are_refused(sandbox: WorkerSandbox) -> None:
    """R194."""
    sandbox.submit()
    http_worker = sandbox.http_worker()
    (old,) = http_worker.claim()
    expect_json(http_worker.post_lease("requeue", old, reason="spot"))
    (new,) = http_worker.claim()
    for verb in ("complete", "fail"):
        assert expect_json(http_worker.post_lease(verb, old), 409)["code"] == "lease_lost"
    assert expect_json(http_worker.post_lease("files", old, uploads=[output_file_of(PNG)]), 409)["code"] == "lease_lost"
    expect_json(http_worker.post_lease("complete", new))


def test_a_lease_whose_response_was_lost_is_requeued_at_the_next_claim(sandbox: WorkerSandbox) -> None:
    job = sandbox.submit()
    http_worker = sandbox.http_worker()
    assert len(http_worker.claim()) == 1  # the response is lost
    (task,) = http_worker.claim(held_task_ids=[], wait_seconds=30)
    assert (task["lease"]["job_id"], task["lease"]["attempt"]) == (job["id"], 2)
    row = sandbox.task_of(job)
    assert row["attempts_counted"] == 1
