"""A scenario for `verify`: every kind of command, and jobs in every status at its end."""

from typing import Any

from callsheet.core.model import commands
from callsheet.core.model.commands import Command, Lease, Outcome, OutputFile, Role, Submit, Verdict
from callsheet.core.model.ids import child_id
from callsheet.core.model.workflow_definition import Backoff, RefundPolicy, RetryPolicy
from callsheet.settings import Settings
from callsheet.store import verify
from tests.support.doubles.virtual_clock import VirtualClock
from tests.support.engine.engine_harness import TENANT, EngineHarness, stage

Names = dict[str, str]
FILES = (OutputFile(1, "picture.png", "image/png", 11, "a" * 64), OutputFile(2, "tone.wav", "audio/wav", 12, "b" * 64))
KEYS: dict[str, tuple[str, Role]] = {
    "operator_key": ("", "admin"), "client_key": (TENANT, "client"), "revoked_key": (TENANT, "viewer"),
    "fleet_key": ("", "worker"),
}  # fmt: skip


class VerifyingHarness(EngineHarness):
    """A harness that verifies all rules after every `verify_every` commands and sweeps."""

    def __init__(self, database_url: str, verify_every: int = 1) -> None:
        super().__init__(
            database_url, Settings(record_blocked=True), gates=[block_forbidden_input], clock=VirtualClock()
        )
        self.read_connection = self.database.connect(reading=True)
        self.verify_every = verify_every
        self.steps = 0
        self.found: list[str] = []

    def close(self) -> None:
        super().close()
        self.read_connection.close()

    def do(self, command: Command) -> Any:
        answer = super().do(command)
        self.verify_rows(type(command).__name__)
        return answer

    def advance(self, by_seconds: float) -> int:
        swept = super().advance(by_seconds)
        self.verify_rows("sweep")
        return swept

    def verify_rows(self, after: str) -> None:
        self.steps += 1
        if self.steps % self.verify_every == 0 and (broken := verify.check(self.read_connection, self.clock.now())):
            self.found.append(f"after {after} no. {self.steps}: {verify.report(broken)}")


def block_forbidden_input(command: Submit) -> Verdict | None:
    return (
        Verdict("forbidden_content", "This input is not allowed.", block=True) if command.input == "forbidden" else None
    )


def run_scenario(harness: VerifyingHarness) -> Names:
    """Run the scenario and return the ids of its jobs, keys, files and some tasks by name."""
    names: Names = {}
    for scene in (
        _set_up_scene,
        _endings_scene,
        _attempts_scene,
        _stages_scene,
        _growth_scene,
        _provider_scene,
        _late_answers_scene,
        _uploads_scene,
        _fleet_scene,
        _open_jobs_scene,
    ):
        scene(harness, names)
    return names


def _set_up_scene(harness: VerifyingHarness, names: Names) -> None:
    harness.tenant()
    harness.tenant("other", active_jobs_max=2)
    harness.workflow()
    harness.workflow(price=6)
    harness.workflow("gift", price=0)
    harness.workflow("strict", price=10, refunds=RefundPolicy(failed=40, expired=0, canceled_running=50))
    harness.workflow(
        "stubborn", retry=RetryPolicy(on="any", requeues_max=1, backoff=Backoff(base_seconds=10.0, jitter=0.0))
    )
    harness.workflow("film", price=9, stages=[stage("draw", tasks=2), stage("cut", approval=True)])
    harness.workflow("open", inline=True, stages=[])
    harness.workflow(
        "bought", stages=[stage("call", provider="fal")], retry=RetryPolicy(on="any"), provider_deadline_seconds=60
    )
    for user in ("ada", "ben"):
        harness.top_up(1_000, user, key=f"welcome-{user}")
        harness.top_up(1_000, user, key=f"welcome-{user}")
    harness.do(commands.Adjust(tenant=TENANT, user="ada", amount=-7, reason="Taken back."))
    for key, (tenant, role) in KEYS.items():
        names[key] = harness.do(
            commands.CreateKey(
                tenant=tenant, role=role, name=key, secret_hash=f"{len(names):064x}", requested_by="first"
            )
        ).id
    harness.do(commands.RevokeKey(key_id=names["revoked_key"], requested_by=names["operator_key"]))
    harness.top_up(50, "eve", tenant="other")


def _endings_scene(harness: VerifyingHarness, names: Names) -> None:
    """Jobs that end in every way."""
    names["done"] = harness.submit_job(input={"a": 1}, idempotency_key="one", labels={"film": "x"})
    assert harness.submit(input={"a": 1}, idempotency_key="one", labels={"film": "x"}).replay
    lease = harness.claim_one()
    harness.heartbeat(lease, progress=40, message="Almost done.")
    harness.do(commands.AnnounceOutputs(lease=lease, files=FILES[:1], preview_bytes=100))
    for _ in range(2):
        harness.do(commands.Complete(lease=lease, output={"image": 1}, delivered=50, files=FILES))
    names["gift"] = harness.submit_job("gift", input="a gift")
    harness.finish(names["gift"])
    names["unstarted"] = harness.submit_job()
    harness.cancel(names["unstarted"])
    names["stopped"] = harness.submit_job("strict")
    lease = harness.claim_one()
    harness.do(commands.AnnounceOutputs(lease=lease, files=FILES))
    harness.cancel(names["stopped"], grace_seconds=5)
    harness.heartbeat(lease)
    harness.fail(lease, "Stopped.")
    names["revoked"] = harness.submit_job("strict")
    harness.claim_one()
    harness.cancel(names["revoked"], grace_seconds=5)
    harness.advance(6)
    names["kept"] = harness.submit_job("strict")
    harness.fail(harness.claim_one())
    names["late"] = harness.submit_job("strict", deadline_seconds=5, idempotency_key="late")
    harness.advance(6)
    names["blocked"] = harness.submit_job(input="forbidden")
    names["deleted_job"] = harness.submit_job(input={"secret": 1}, metadata={"note": "private"})
    harness.do(commands.Complete(lease=harness.claim_one(), files=FILES))
    harness.delete(names["deleted_job"])
    names["deleted_running"] = harness.submit_job()
    harness.claim_one()
    harness.delete(names["deleted_running"])


def _attempts_scene(harness: VerifyingHarness, names: Names) -> None:
    """Failed, lost and requeued attempts; second runs and retries as new jobs."""
    names["retried"] = harness.submit_job("stubborn")
    harness.fail(harness.claim_one(), retryable=True)
    harness.advance(11)
    harness.requeue(harness.claim_one(worker="w2"))
    harness.claim_one(lease_seconds=1)
    harness.advance(2)
    harness.advance(30)
    harness.complete(harness.claim_one())
    names["exhausted"] = harness.submit_job("stubborn")
    harness.requeue(harness.claim_one())
    harness.requeue(harness.claim_one())
    names["twice"] = harness.submit_job("stubborn")
    harness.fail(harness.claim_one())
    harness.retry(names["twice"])
    harness.finish(names["twice"])
    names["copied"] = harness.submit_job("stubborn")
    harness.fail(harness.claim_one())
    names["copy"] = harness.retry(names["copied"], retry_as="new_job").job_id
    harness.finish(names["copy"])
    harness.retry(names["late"])
    harness.finish(names["late"])


def _stages_scene(harness: VerifyingHarness, names: Names) -> None:
    """Stages that need approval, and a paused job."""
    names["film"] = harness.submit_job("film")
    first, second = harness.claim(count=2)
    harness.complete(first.lease)
    harness.pause(names["film"])
    harness.complete(second.lease)
    harness.resume(names["film"])
    harness.approve(names["film"], 2)
    harness.finish(names["film"], "cut")
    harness.do(commands.Refund(tenant="acme", job_id=names["film"], reason="The picture was too dark.", actor="admin"))
    names["remade"] = harness.submit_job("film")
    first, second = harness.claim(count=2)
    harness.complete(first.lease)
    harness.fail(second.lease)
    harness.retry(names["remade"])
    harness.complete(harness.claim_one())
    harness.approve(names["remade"], 2)
    harness.do(
        commands.RequireApproval(tenant=TENANT, job_id=names["remade"], stage_id=harness.stages(names["remade"])[1].id)
    )
    harness.approve(names["remade"], 2, "cy")
    harness.finish(names["remade"], "cut")
    names["failed_waiting"] = harness.submit_job("film")
    first, _ = harness.claim(count=2)
    harness.do(
        commands.RequireApproval(
            tenant=TENANT, job_id=names["failed_waiting"], stage_id=harness.stages(names["failed_waiting"])[0].id
        )
    )
    harness.fail(first.lease)


def _growth_scene(harness: VerifyingHarness, names: Names) -> None:
    """Jobs to which stages and tasks are added, and one with a changed priority."""
    names["grown"] = harness.submit_job("open")
    added = harness.do(commands.AddStage(tenant=TENANT, job_id=names["grown"], stage=stage("draw", inputs=[1, 2])))
    harness.do(commands.AddTasks(tenant=TENANT, job_id=names["grown"], stage_id=added.stage_id, inputs=[3]))
    harness.do(commands.Update(tenant=TENANT, job_id=names["grown"], priority=90, labels={"fast": "yes"}))
    harness.do(commands.AddStage(tenant=TENANT, job_id=names["grown"], stage=stage("cut"), actor="admin"))
    harness.finish(names["grown"], "draw", "cut")
    names["inline"] = harness.submit_job("open", stages=[stage("draw"), stage("cut", tasks=2)], user="ben")
    harness.fail(harness.claim_one())
    harness.finish(harness.retry(names["inline"], retry_as="new_job").job_id, "draw", "cut")


def _provider_scene(harness: VerifyingHarness, names: Names) -> None:
    """Submitted calls with an early, repeated, unknown or missing callback."""
    names["called"] = harness.submit_job("bought")
    lease = harness.claim_one("call")
    intend_call(harness, lease)
    call_back(harness, "early", Outcome("completed", output={"url": 1}), ref="ref-called")
    harness.do(commands.HandOff(lease=lease, ref="ref-called"))
    call_back(harness, "early", Outcome("completed"), ref="ref-called")
    call_back(harness, "second", Outcome("failed", message="It failed."), ref="ref-called")
    call_back(harness, "unknown", Outcome("completed"), ref="ref-unknown")
    names["polled"] = harness.submit_job("bought")
    submit_call(harness, "ref-polled")
    collect_call(harness, names["polled"], Outcome("pending"))
    harness.advance(30)
    collect_call(harness, names["polled"], Outcome("failed", message="The provider is busy.", retryable=True))
    harness.advance(30)
    call = submit_call(harness, "ref-polled-2")
    call_back(harness, "ok", Outcome("completed", delivered=80), call_id=call)
    names["overdue"] = harness.submit_job("bought")
    submit_call(harness, "ref-overdue")
    harness.advance(61)
    harness.do(commands.ClaimCall(call_id=newest_call(harness, names["overdue"]), job_id=names["overdue"]))
    assert harness.status(names["overdue"]) == "expired"


def _late_answers_scene(harness: VerifyingHarness, names: Names) -> None:
    """Workers that were lost between the call and its report, and one that completed the task itself."""
    names["unaccepted"] = harness.submit_job("bought")
    intend_call(harness, harness.claim_one("call", lease_seconds=1))
    harness.advance(2)
    collect_call(harness, names["unaccepted"], Outcome("absent"))
    intend_call(harness, harness.claim_one("call", lease_seconds=1))
    harness.advance(2)
    call = newest_call(harness, names["unaccepted"])
    call_back(harness, "found", Outcome("pending"), ref="ref-found", call_id=call)
    collect_call(harness, names["unaccepted"], Outcome("completed"))
    names["direct"] = harness.submit_job("bought")
    lease = harness.claim_one("call")
    intend_call(harness, lease)
    harness.complete(lease, {"url": 2})


def _uploads_scene(harness: VerifyingHarness, names: Names) -> None:
    """Uploads: one used by a job and a workflow, one not finished, one deleted."""
    for name in ("uploaded", "uploading", "deleted"):
        create = commands.CreateUpload(
            tenant=TENANT, user="ada", name=f"{name}.png", media_type="image/png", bytes=4, sha256="c" * 64
        )
        names[name] = harness.do(create).id
    for name in ("uploaded", "deleted"):
        harness.do(commands.FinishUpload(tenant=TENANT, file_id=names[name]))
    harness.do(commands.DeleteFiles(tenant=TENANT, file_ids=(names["deleted"],)))
    styled = stage("draw", inputs=[{"style": {"$file": names["uploaded"]}}])
    harness.workflow("styled", stages=[styled])
    names["illustrated"] = harness.submit_job(
        "gift", input={"picture": {"$file": names["uploaded"]}}, start_in_seconds=9_999
    )


def _fleet_scene(harness: VerifyingHarness, names: Names) -> None:
    """Registered workers: one busy, one deregistered, one revoked, one that started twice."""

    def register_worker(worker: str, token: str, concurrency: int = 3) -> None:
        harness.do(
            commands.Register(
                worker_id=worker, kinds=("draw",), token_hash=token * 64, concurrency=concurrency,
                requested_by=names["fleet_key"],
            )
        )  # fmt: skip

    for worker, token in (("gpu-busy", "1"), ("gpu-offline", "2"), ("gpu-revoked", "3"), ("gpu-twice", "4")):
        register_worker(worker, token)
    for worker, token in (("gpu-offline", "2"), ("gpu-revoked", "3"), ("gpu-twice", "4")):
        harness.submit_job()
        harness.do(commands.Claim(worker_id=worker, kinds=("draw",), token_hash=token * 64))
    harness.do(commands.Deregister(worker_id="gpu-offline", token_hash="2" * 64, reason="Shutdown."))
    harness.do(commands.RevokeWorker(worker_id="gpu-revoked", requested_by=names["operator_key"]))
    register_worker("gpu-twice", "5")
    harness.do(commands.UpdateWorker(worker_id="gpu-twice", draining=True, requested_by=names["operator_key"]))
    harness.do(commands.Claim(worker_id="gpu-busy", kinds=("draw",), count=3, token_hash="1" * 64, lease_seconds=9_000))


def _open_jobs_scene(harness: VerifyingHarness, names: Names) -> None:
    """Jobs in every open status."""
    names["scheduled"] = harness.submit_job(start_in_seconds=3_600)
    names["waiting"] = harness.submit_job("film", user="ben")
    for leased in harness.claim(count=2):
        harness.complete(leased.lease)
    names["paused"] = harness.submit_job("film")
    harness.claim_one()
    harness.pause(names["paused"])
    names["backoff"] = harness.submit_job("stubborn", user="ben")
    harness.fail(harness.claim_one(), retryable=True)
    names["stopping"] = harness.submit_job("film", user="ben")
    harness.claim_one()
    harness.cancel(names["stopping"], grace_seconds=3_600)
    names["running"] = harness.submit_job("film", user="ben", idempotency_key="running")
    lease = harness.claim_one()
    harness.heartbeat(lease, log=("Loaded the model.", "Größe: 7"))
    harness.do(commands.AnnounceOutputs(lease=lease, files=FILES, preview_bytes=100))
    names["leased_task"] = lease.task_id
    names["handed"] = harness.submit_job("bought")
    submit_call(harness, "ref-handed")
    names["intended"] = harness.submit_job("bought")
    intend_call(harness, harness.claim_one("call"))
    names["unknown"] = harness.submit_job("bought")
    intend_call(harness, harness.claim_one("call", lease_seconds=1))
    harness.advance(1)
    names["queued"] = harness.submit_job("gift", user="ben")
    names["other_tenant"] = harness.submit_job("gift", user="eve", tenant="other")


# -- provider calls


def intend_call(harness: EngineHarness, lease: Lease) -> str:
    call: str = harness.do(commands.RecordIntent(lease=lease, provider="fal")).call_id
    return call


def submit_call(harness: EngineHarness, ref: str) -> str:
    lease = harness.claim_one("call")
    call = intend_call(harness, lease)
    harness.do(commands.HandOff(lease=lease, ref=ref))
    return call


def collect_call(harness: EngineHarness, job_id: str, outcome: Outcome) -> None:
    harness.do(commands.ReportOutcome(call_id=newest_call(harness, job_id), job_id=job_id, outcome=outcome))


def newest_call(harness: EngineHarness, job_id: str) -> str:
    """Return the id of a flat job's newest call."""
    (task,) = harness.tasks(job_id)
    return child_id(task.id, task.attempts)


def call_back(harness: EngineHarness, webhook: str, outcome: Outcome, **found_by: str) -> None:
    harness.do(commands.Callback(provider="fal", webhook_id=webhook, outcome=outcome, **found_by))
