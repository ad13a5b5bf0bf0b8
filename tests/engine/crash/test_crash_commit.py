"""A connection is lost at the commit: the command is still answered and takes effect once."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from callsheet.core.decisions.lease_check import hash_token
from callsheet.core.model import commands as c
from callsheet.core.model.commands import Command, Lease
from callsheet.core.model.rows import Worker
from callsheet.core.model.state_machines import Actor
from tests.support.databases.faulty_database import fail_once, faulty_engine
from tests.support.engine.engine_harness import TENANT, EngineHarness, stage

ADMIN: Actor = "admin"
Prepare = Callable[[EngineHarness, str], Command]


def submit_job(harness: EngineHarness, name: str, **definition: Any) -> str:
    """Create a workflow, a kind and a user with 100 credits, all of this name, and submit a job."""
    definition.setdefault("stages", [stage(name)])
    harness.workflow(name, inline=True, **definition)
    harness.top_up(100, name)
    return harness.submit_job(name, name, input={"prompt": "a cat"})


def lease_task(harness: EngineHarness, name: str, **definition: Any) -> Lease:
    submit_job(harness, name, **definition)
    return harness.claim_one(name)


def fail_job(harness: EngineHarness, name: str) -> str:
    lease = lease_task(harness, name)
    harness.fail(lease)
    return lease.job_id


def pause_job(harness: EngineHarness, name: str) -> str:
    job = submit_job(harness, name)
    harness.pause(job)
    return job


def prepare_approval(harness: EngineHarness, name: str) -> Command:
    job = submit_job(harness, name, stages=[stage(name, approval=True)])
    return c.Approve(tenant=TENANT, job_id=job, stage_id=harness.stages(job)[0].id, approver="bea")


def record_intent(harness: EngineHarness, name: str) -> Lease:
    lease = lease_task(harness, name, stages=[stage(name, provider="prov")])
    harness.do(c.RecordIntent(lease=lease, provider="prov"))
    return lease


def hand_off(harness: EngineHarness, name: str) -> tuple[str, str]:
    """Hand a task to a provider; return its job and its call, which is due."""
    lease = record_intent(harness, name)
    harness.do(c.HandOff(lease=lease, ref=name))
    harness.clock.advance(60)
    return lease.job_id, str(harness.reads.fetch("calls_by_ref", keys=[("prov", name)])[0][0])


def prepare_claim_of_call(harness: EngineHarness, name: str) -> Command:
    job, call = hand_off(harness, name)
    return c.ClaimCall(call_id=call, job_id=job)


def prepare_outcome(harness: EngineHarness, name: str) -> Command:
    job, call = hand_off(harness, name)
    return c.ReportOutcome(call_id=call, job_id=job, outcome=c.Outcome("completed", {"seen": 1}))


def add_tasks(harness: EngineHarness, name: str) -> Command:
    job = submit_job(harness, name)
    return c.AddTasks(tenant=TENANT, job_id=job, stage_id=harness.stages(job)[0].id, inputs=[1, 2, 3])


def submit(harness: EngineHarness, name: str) -> Command:
    submit_job(harness, name)
    return harness.submission(name, name, input={"prompt": "a dog"})


def claim(harness: EngineHarness, name: str) -> Command:
    submit_job(harness, name, stages=[stage(name, tasks=3)])
    return c.Claim(worker_id="w1", kinds=(name,), count=2, lease_seconds=77)


def retry_as_new(harness: EngineHarness, name: str, key: str | None = None) -> Command:
    job = fail_job(harness, name)
    return c.Retry(tenant=TENANT, job_id=job, actor=ADMIN, retry_as="new_job", idempotency_key=key)


def register(_: EngineHarness, name: str) -> Command:
    return c.Register(worker_id=name, kinds=(name,), token_hash=hash_token(name), concurrency=3)


def register_busy_worker(harness: EngineHarness, name: str) -> str:
    """Register a worker that holds a task and has another before it; return its name."""
    harness.do(register(harness, name))
    submit_job(harness, name, stages=[stage(name, tasks=3)])
    harness.do(c.Claim(worker_id=name, kinds=(name,), token_hash=hash_token(name)))
    return name


def register_again(harness: EngineHarness, name: str) -> Command:
    return replace(register(harness, register_busy_worker(harness, name)), token_hash=hash_token(f"{name}, again"))


def claim_again(harness: EngineHarness, name: str) -> Command:
    """Claim as a worker that never received the answer to its last claim."""
    worker = register_busy_worker(harness, name)
    return c.Claim(worker_id=worker, kinds=(name,), token_hash=hash_token(name), held_task_ids=(), count=2)


def claim_resumed(harness: EngineHarness, name: str) -> Command:
    """Claim a task that an earlier attempt submitted to ComfyUI."""
    lease = lease_task(harness, name)
    harness.do(c.RecordSubmission(lease=lease, provider="comfyui", ref="prompt-1"))
    harness.requeue(lease)
    return c.Claim(worker_id="w1", kinds=(name,))


def complete_job(harness: EngineHarness, name: str) -> str:
    lease = lease_task(harness, name)
    harness.complete(lease)
    return lease.job_id


def create_upload(user: str) -> Command:
    return c.CreateUpload(tenant=TENANT, user=user, name="cat.png", media_type="image/png", bytes=3, sha256="a" * 64)


def upload_file(harness: EngineHarness, name: str) -> str:
    file: str = harness.do(create_upload(name)).id
    harness.do(c.FinishUpload(tenant=TENANT, file_id=file))
    return file


def submit_with_a_file(harness: EngineHarness, name: str) -> Command:
    submit_job(harness, name)
    return harness.submission(name, name, input={"of": {"$file": upload_file(harness, name)}})


def retry_with_a_file(harness: EngineHarness, name: str) -> Command:
    harness.do(submit_with_a_file(harness, name))
    leases = [one.lease for one in harness.claim(name, count=2)]
    for lease in leases:
        harness.fail(lease)
    return c.Retry(tenant=TENANT, job_id=leases[1].job_id, actor=ADMIN)


def announce_output(harness: EngineHarness, name: str) -> Lease:
    lease = lease_task(harness, name)
    harness.do(c.AnnounceOutputs(lease=lease, files=(PICTURE,)))
    return lease


PICTURE = c.OutputFile(1, "picture.png", "image/png", 3, "b" * 64)
KINDS: dict[str, Prepare] = {
    "submit": submit,
    "claim": claim,
    "complete": lambda s, n: c.Complete(lease=lease_task(s, n), output={"seen": 1}),
    "fail permanently": lambda s, n: c.Fail(lease=lease_task(s, n), retryable=False),
    "fail with a retry": lambda s, n: c.Fail(lease=lease_task(s, n), retryable=True),
    "requeue": lambda s, n: c.Requeue(lease=lease_task(s, n), reason="spot notice"),
    "top up": lambda _, n: c.TopUp(tenant=TENANT, user=n, amount=9),
    "adjust": lambda _, n: c.Adjust(tenant=TENANT, user=n, amount=9, reason="a gift"),
    "refund": lambda s, n: c.Refund(tenant=TENANT, job_id=complete_job(s, n), reason="too dark", actor=ADMIN),
    "retry": lambda s, n: c.Retry(tenant=TENANT, job_id=fail_job(s, n), actor=ADMIN),
    "retry with a key": lambda s, n: c.Retry(tenant=TENANT, job_id=fail_job(s, n), actor=ADMIN, idempotency_key="k"),
    "retry as a new job": retry_as_new,
    "retry as a new job with a key": lambda s, n: retry_as_new(s, n, "k"),
    "add a stage": lambda s, n: c.AddStage(tenant=TENANT, job_id=submit_job(s, n), stage=stage("cut", tasks=2)),
    "add tasks": add_tasks,
    "cancel": lambda s, n: c.Cancel(tenant=TENANT, job_id=submit_job(s, n)),
    "cancel with grace": lambda s, n: c.Cancel(tenant=TENANT, job_id=lease_task(s, n).job_id, grace_seconds=30),
    "pause": lambda s, n: c.Pause(tenant=TENANT, job_id=submit_job(s, n)),
    "resume": lambda s, n: c.Resume(tenant=TENANT, job_id=pause_job(s, n)),
    "approve": prepare_approval,
    "delete": lambda s, n: c.Delete(tenant=TENANT, job_id=submit_job(s, n)),
    "record an intent": lambda s, n: c.RecordIntent(lease=lease_task(s, n), provider="prov"),
    "hand off": lambda s, n: c.HandOff(lease=record_intent(s, n), ref=n),
    "store a tenant": lambda _, n: c.PutTenant(tenant=n, weight=3),
    "register": register,
    "register again": register_again,
    "deregister": lambda s, n: c.Deregister(worker_id=register_busy_worker(s, n), token_hash=hash_token(n)),
    "revoke a worker": lambda s, n: c.RevokeWorker(worker_id=register_busy_worker(s, n)),
    "drain a worker": lambda s, n: c.UpdateWorker(worker_id=register_busy_worker(s, n), draining=True),
    "rotate a worker's token": lambda s, n: c.RotateWorker(
        worker_id=register_busy_worker(s, n), token_hash=hash_token(f"{n}, new")
    ),
    "claim as a worker that lost an answer": claim_again,
    "claim a task that was submitted before": claim_resumed,
    "record a submission": lambda s, n: c.RecordSubmission(lease=lease_task(s, n), provider="comfyui", ref="prompt-1"),
    "complete with a file": lambda s, n: c.Complete(lease=lease_task(s, n), files=(PICTURE,)),
    "announce an output": lambda s, n: c.AnnounceOutputs(lease=lease_task(s, n), files=(PICTURE,)),
    "complete with an announced file": lambda s, n: c.Complete(lease=announce_output(s, n), files=(PICTURE,)),
    "fail after an announcement": lambda s, n: c.Fail(lease=announce_output(s, n), retryable=True),
    "create an upload": lambda _, n: create_upload(n),
    "finish an upload": lambda s, n: c.FinishUpload(tenant=TENANT, file_id=s.do(create_upload(n)).id),
    "delete a file": lambda s, n: c.DeleteFiles(tenant=TENANT, file_ids=(upload_file(s, n),)),
    "submit with a file": submit_with_a_file,
    "retry with a file": retry_with_a_file,
}


REPEATABLE: dict[str, Prepare] = {
    "heartbeat": lambda s, n: c.Heartbeat(lease=lease_task(s, n), progress=40),
    "update": lambda s, n: c.Update(tenant=TENANT, job_id=submit_job(s, n), priority=7),
    "claim a call": prepare_claim_of_call,
    "report an outcome": prepare_outcome,
}
"""Commands whose repetition returns the same answer again or reports a repetition; the effect happens once."""


def count_rows(harness: EngineHarness) -> Counter[str]:
    """Count the rows of every table."""
    return Counter({table: len(found) for table, found in harness.snapshot().items()})


def comparable(answer: Any) -> Any:
    """Return an answer without ids, names and marks of a repetition."""
    if isinstance(answer, list | tuple):
        return [comparable(one) for one in answer]
    plain = msgspec.to_builtins(answer)
    if not isinstance(plain, dict):
        return plain
    ignored = {
        "replay", "changed", "requeued", "lease", "created_at", "id", "kind", "kinds", "workflow", "stage", "dedup_key",
        "fingerprint", "retry_of",
    }  # fmt: skip
    kept = {key: value for key, value in plain.items() if key not in ignored and not key.endswith(("_id", "_ids"))}
    return {key: comparable(value) if isinstance(value, dict) else value for key, value in kept.items()}


def run_and_count(
    harness: EngineHarness, prepare: Prepare, name: str, do: Callable[[Command], Any]
) -> tuple[Any, Counter[str]]:
    """Prepare a command and run it; return its answer and how many rows it added to each table."""
    command = prepare(harness, name)
    before = count_rows(harness)
    return comparable(do(command)), count_rows(harness) - before


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_command_whose_commit_failed_is_answered_and_takes_effect_once(harness, when):
    """F2, F6, F7, R36, R64: each command is compared with the same command on a healthy connection."""
    for number, (kind, prepare) in enumerate(KINDS.items()):
        expected = run_and_count(harness, prepare, f"plain-{number}", harness.do)
        with faulty_engine(harness.database, fail_once(when)) as engine:
            assert (kind, run_and_count(harness, prepare, f"lost-{number}", engine.execute)) == (kind, expected)
    assert harness.find_violations() == []


def get_worker(harness: EngineHarness, name: str) -> Worker:
    return Worker(*harness.reads.fetch("worker_of", id=name)[0])


INTERLEAVED: dict[str, tuple[Callable[[str], Command], Callable[[str], Command], str, str | None]] = {
    "register, then register": (
        lambda n: c.Register(worker_id=n, kinds=(n,), token_hash=hash_token("second")),
        lambda n: c.Register(worker_id=n, kinds=(n,), token_hash=hash_token("third")), "approved", hash_token("third"),
    ),
    "deregister, then register": (
        lambda n: c.Deregister(worker_id=n, token_hash=hash_token(n)),
        lambda n: c.Register(worker_id=n, kinds=(n,), token_hash=hash_token("second")), "approved",
        hash_token("second"),
    ),
    "approve, then revoke": (
        lambda n: c.UpdateWorker(worker_id=n, approved=True, draining=True), lambda n: c.RevokeWorker(worker_id=n),
        "revoked", None,
    ),
    "revoke, then approve": (
        lambda n: c.RevokeWorker(worker_id=n), lambda n: c.UpdateWorker(worker_id=n, approved=True), "offline", None,
    ),
    "rotate, then rotate": (
        lambda n: c.RotateWorker(worker_id=n, token_hash=hash_token("second")),
        lambda n: c.RotateWorker(worker_id=n, token_hash=hash_token("third")), "approved", hash_token("third"),
    ),
}  # fmt: skip
"""A command whose answer is lost, the command of another client before the retry, and the worker's status and token."""


@pytest.mark.parametrize("case", INTERLEAVED)
def test_a_retried_worker_command_does_not_undo_a_later_command(harness, case):
    """F7, F25: the retried command finds its own audit entry and leaves the worker as it is."""
    first, second, status, token = INTERLEAVED[case]
    register_busy_worker(harness, "gpu")
    entries = count_rows(harness)["audit"]
    with faulty_engine(
        harness.database, fail_once("after"), before_reconnect=lambda: harness.do(second("gpu"))
    ) as engine:
        assert engine.execute(first("gpu")).status == status
    worker = get_worker(harness, "gpu")
    assert (worker.status, worker.token_hash) == (status, token)
    assert count_rows(harness)["audit"] == entries + 2
    assert harness.find_violations() == []


def test_a_retried_claim_whose_tasks_were_requeued_leases_with_new_tokens(harness):
    """L10: the retry leases other tasks or the same ones again; no two leases have one token."""
    register_busy_worker(harness, "gpu")
    claim = c.Claim(worker_id="gpu", kinds=("gpu",), token_hash=hash_token("gpu"), held_task_ids=(), count=2)
    other = replace(claim, count=1)
    with faulty_engine(harness.database, fail_once("after"), before_reconnect=lambda: harness.do(other)) as engine:
        leased = engine.execute(claim)
    assert leased
    assert len({one.lease.token for one in leased}) == len(leased)
    assert harness.heartbeat(leased[0].lease).lease_seconds > 0
    assert harness.find_violations() == []


def test_a_retried_deletion_of_files_returns_the_files_so_that_their_bytes_are_deleted(harness):
    """F7: the retry returns the files that the first attempt deleted; the audit log has one entry."""
    files = tuple(harness.do(create_upload("ada")).id for _ in range(2))
    harness.clock.advance(86_401)
    entries = count_rows(harness)["audit"]
    with faulty_engine(harness.database, fail_once("after")) as engine:
        deleted = engine.execute(c.DeleteFiles(file_ids=files, requested_by="retention"))
    assert [file.id for file in deleted.files] == list(files)
    assert count_rows(harness)["audit"] == entries + 1
    assert harness.find_violations() == []


def test_a_repeatable_command_whose_commit_failed_has_one_effect(harness):
    """A heartbeat, an update, a poll of a provider: one event may be stored twice, and nothing else."""
    for number, (kind, prepare) in enumerate(REPEATABLE.items()):
        _, added = run_and_count(harness, prepare, f"plain-{number}", harness.do)
        with faulty_engine(harness.database, fail_once("after")) as engine:
            _, repeated = run_and_count(harness, prepare, f"lost-{number}", engine.execute)
        assert (kind, {**repeated, "event": 0}) == (kind, {**added, "event": 0})
        assert repeated["event"] - added["event"] in {0, 1}
    assert harness.find_violations() == []


def test_a_callback_whose_commit_failed_is_applied_once(harness):
    """P4: the answer says duplicate, and the effect is stored."""
    job, _ = hand_off(harness, "lost")
    callback = c.Callback(provider="prov", webhook_id="w", ref="lost", outcome=c.Outcome("completed"))
    with faulty_engine(harness.database, fail_once("after")) as engine:
        assert engine.execute(callback).replay
    assert harness.status(job) == "completed"
    assert harness.ledger(job, "lost") == [("reserve", -5, 0), ("consume", 0, 5)]
    assert harness.find_violations() == []


def test_random_commit_failures_under_load_lose_and_double_nothing(harness):
    """F6, F7: every third commit fails, before or after it takes effect, and all counts are exact."""
    chance = random.Random(7)
    harness.top_up(10_000)
    with faulty_engine(harness.database, lambda: chance.choice(["before", "after", None, None, None, None])) as engine:
        job_ids = [one.job_id for _ in range(10) for one in engine.execute_many([harness.submission()] * 5)]
        leases: list[Lease] = []
        while len(leases) < 50:
            leased = engine.execute(c.Claim(worker_id="w", kinds=("draw",), count=7))
            assert leased
            leases += [one.lease for one in leased]
        states = engine.execute_many([c.Complete(lease=lease, output=n) for n, lease in enumerate(leases)])
        balances = [engine.execute(c.TopUp(tenant=TENANT, user="bob", amount=1)) for _ in range(20)]
    assert len(set(job_ids)) == count_rows(harness)["job"] == 50
    assert {(lease.job_id, lease.attempt) for lease in leases} == {(job, 1) for job in job_ids}
    assert {(state.status, state.job_status) for state in states} == {("completed", "completed")}
    assert [balance.balance for balance in balances] == list(range(1, 21))
    assert harness.balance() == 10_100 - 50 * 5
    assert harness.find_violations() == []
