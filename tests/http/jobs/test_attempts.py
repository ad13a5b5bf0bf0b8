"""Records of finished work: the result with its files, times and credits, and the outcome of every attempt."""

import hashlib

from callsheet.core.model.rows import Worker
from tests.http.worker_sandbox import PNG, WorkerSandbox, expect_json, get_job
from tests.support.processes.live_server import TENANT


def test_a_completed_job_keeps_its_output_files_times_and_ledger_entries(sandbox: WorkerSandbox) -> None:
    """R242, R243, R246, R247, R249, R266."""
    read = sandbox.live_server.engine.reads
    before = read.wallet(TENANT, "ann").entries
    job = sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    made = http_worker.put(task, PNG)
    for _ in range(2):
        expect_json(http_worker.post_lease("complete", task, output={"seed": 7}, files=[made]))
    client = sandbox.live_server.client("client")
    (output,) = expect_json(client.get(f"/v1/jobs/{job['id']}/outputs"))["outputs"]
    (file,) = output["files"]
    kept = {name: file[name] for name in ("name", "media_type", "bytes", "sha256", "status", "job_id")}
    assert kept == {
        "name": "picture.png", "media_type": "image/png", "bytes": len(PNG), "status": "ready", "job_id": job["id"],
        "sha256": hashlib.sha256(PNG).hexdigest(),
    }  # fmt: skip
    assert (output["output"], client.get(file["url"]).content) == ({"seed": 7}, PNG)
    ended, row = get_job(sandbox.live_server, job), sandbox.task_of(job)
    (attempt,) = expect_json(client.get(f"/v1/jobs/{job['id']}/tasks/{row['id']}/attempts"))["attempts"]
    events = expect_json(client.get(f"/v1/jobs/{job['id']}/events"))["events"]
    at = {event["type"]: event["at"] for event in events}
    assert [attempt["leased_at"], ended["started_at"]] == [at["task.leased"]] * 2
    assert [attempt["ended_at"], row["finished_at"], ended["finished_at"]] == [at["job.completed"]] * 3
    assert [event["type"] for event in events].count("task.completed") == 1
    entries = read.ledger(TENANT, "ann", before)
    assert [(entry.kind, entry.amount, entry.job_id) for entry in entries] == [
        ("reserve", -3, job["id"]), ("consume", 0, job["id"]),
    ]  # fmt: skip


def test_every_attempt_records_its_worker_outcome_and_error(sandbox: WorkerSandbox) -> None:
    """R256, R276: one worker requeues the task, another fails it."""
    job = sandbox.submit()
    one, two = sandbox.http_worker("one"), sandbox.http_worker("two")
    (task,) = one.claim()
    expect_json(one.post_lease("requeue", task, reason="interrupted", cause="spot"))
    (task,) = two.claim()
    expect_json(two.post_lease("fail", task, code="out_of_memory", message="no memory", retryable=False))
    client = sandbox.live_server.client("client")
    attempts = expect_json(client.get(f"/v1/jobs/{job['id']}/tasks/{sandbox.task_of(job)['id']}/attempts"))["attempts"]
    assert [(a["no"], a["worker"], a["outcome"], not a["counted"], a["error"]) for a in attempts] == [
        (1, sandbox.name("one"), "requeued", True, {"code": "spot", "message": "Requeued: interrupted"}),
        (2, sandbox.name("two"), "failed", False, {"code": "out_of_memory", "message": "no memory"}),
    ]
    assert all(a["leased_at"] <= a["ended_at"] for a in attempts)
    events = expect_json(client.get(f"/v1/jobs/{job['id']}/events"))["events"]
    task_events = [(e["type"], e["actor"], e["data"]["attempt"]) for e in events if e["type"].startswith("task.")]
    assert task_events == [
        ("task.leased", "worker", 1), ("task.retried", "worker", 1),
        ("task.leased", "worker", 2), ("task.failed", "worker", 2),
    ]  # fmt: skip
    assert get_job(sandbox.live_server, job)["error"] == attempts[-1]["error"]


def test_a_worker_token_is_random_and_stored_only_as_its_hash(sandbox: WorkerSandbox) -> None:
    """R200, R205: a restarted worker gets another token."""
    tokens = [sandbox.http_worker().registration["token"] for _ in range(2)]
    assert len({*tokens}) == 2
    assert all(len(token) >= 40 for token in tokens)
    (row,) = sandbox.live_server.engine.reads.fetch("worker_of", id=sandbox.name("w1"))
    assert Worker(*row).token_hash == hashlib.sha256(tokens[-1].encode()).hexdigest()
    assert not {*tokens} & {*map(str, row)}
    text = sandbox.live_server.client("operator").get(f"/v1/admin/workers/{sandbox.name('w1')}").text
    assert not [secret for secret in (*tokens, Worker(*row).token_hash) if str(secret) in text]
