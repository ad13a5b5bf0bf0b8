"""A busy life: every kind of command, and at its end jobs in every status, for `verify` to look at."""

from typing import Any

from callsheet.config import Settings
from callsheet.core.model import commands
from callsheet.core.model.commands import Command, Lease, Outcome, OutputFile, Role, Submit, Verdict
from callsheet.core.model.ids import child_id
from callsheet.core.model.workflow_definition import Backoff, RefundPolicy, RetryPolicy
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
    """A studio in which everything is verified after every so many commands and sweeps."""

    def __init__(self, database_url: str, verify_every: int = 1) -> None:
        super().__init__(database_url, Settings(record_blocked=True), gates=[no_weapons], clock=VirtualClock())
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


def no_weapons(command: Submit) -> Verdict | None:
    return Verdict("forbidden_content", "Not here.", block=True) if command.input == "weapon" else None


def run_scenario(harness: VerifyingHarness) -> Names:
    """Live it; return the ids of its jobs by what became of them, and of some of their tasks."""
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
    harness.do(commands.Adjust(tenant=TENANT, user="ada", amount=-7, reason="A gift taken back."))
    for key, (tenant, role) in KEYS.items():
        names[key] = harness.do(
            commands.CreateKey(
                tenant=tenant, role=role, name=key, secret_hash=f"{len(names):064x}", requested_by="first"
            )
        ).id
    harness.do(commands.RevokeKey(key_id=names["revoked_key"], requested_by=names["operator_key"]))
    harness.top_up(50, "eve", tenant="other")


def _endings_scene(harness: VerifyingHarness, names: Names) -> None:
    """Every way in which a job ends."""
    names["done"] = harness.submit_job(input={"a": 1}, idempotency_key="one", labels={"film": "x"})
    assert harness.submit(input={"a": 1}, idempotency_key="one", labels={"film": "x"}).replay
    lease = harness.claim_one()
    harness.heartbeat(lease, progress=40, message="Almost.")
    for _ in range(2):
        harness.do(commands.Complete(lease=lease, output={"image": 1}, delivered=50, files=FILES))
    names["gift"] = harness.submit_job("gift", input="please")
    harness.finish(names["gift"])
    names["unstarted"] = harness.submit_job()
    harness.cancel(names["unstarted"])
    names["stopped"] = harness.submit_job("strict")
    lease = harness.claim_one()
    harness.cancel(names["stopped"], grace_seconds=5)
    harness.heartbeat(lease)
    harness.fail(lease, "As you wish.")
    names["revoked"] = harness.submit_job("strict")
    harness.claim_one()
    harness.cancel(names["revoked"], grace_seconds=5)
    harness.advance(6)
    names["kept"] = harness.submit_job("strict")
    harness.fail(harness.claim_one())
    names["late"] = harness.submit_job("strict", deadline_seconds=5, idempotency_key="late")
    harness.advance(6)
    names["blocked"] = harness.submit_job(input="weapon")
    names["gone"] = harness.submit_job(input={"secret": 1}, metadata={"note": "private"})
    harness.do(commands.Complete(lease=harness.claim_one(), files=FILES))
    harness.delete(names["gone"])
    names["torn"] = harness.submit_job()
    harness.claim_one()
    harness.delete(names["torn"])


def _attempts_scene(harness: VerifyingHarness, names: Names) -> None:
    """Failed, lost and given-back tries; runs beside runs, and jobs made like others."""
    names["tried"] = harness.submit_job("stubborn")
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
    """Stages with a gate, a hold, a pause."""
    names["film"] = harness.submit_job("film")
    first, second = harness.claim(count=2)
    harness.complete(first.lease)
    harness.pause(names["film"])
    harness.complete(second.lease)
    harness.resume(names["film"])
    harness.approve(names["film"], 2)
    harness.finish(names["film"], "cut")
    harness.do(commands.Refund(tenant="acme", job_id=names["film"], reason="It was too dark.", actor="admin"))
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
    names["struck"] = harness.submit_job("film")
    first, _ = harness.claim(count=2)
    harness.do(
        commands.RequireApproval(tenant=TENANT, job_id=names["struck"], stage_id=harness.stages(names["struck"])[0].id)
    )
    harness.fail(first.lease)


def _growth_scene(harness: VerifyingHarness, names: Names) -> None:
    """Jobs that get their stages and tasks later, and change their priority."""
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
    """Calls that are handed over, called back early, twice, or never accepted."""
    names["called"] = harness.submit_job("bought")
    lease = harness.claim_one("call")
    intend_call(harness, lease)
    call_back(harness, "early", Outcome("completed", output={"url": 1}), ref="ref-called")
    harness.do(commands.HandOff(lease=lease, ref="ref-called"))
    call_back(harness, "early", Outcome("completed"), ref="ref-called")
    call_back(harness, "again", Outcome("failed", message="No."), ref="ref-called")
    call_back(harness, "nobody", Outcome("completed"), ref="ref-of-nobody")
    names["polled"] = harness.submit_job("bought")
    hand_off_call(harness, "ref-polled")
    collect_call(harness, names["polled"], Outcome("pending"))
    harness.advance(30)
    collect_call(harness, names["polled"], Outcome("failed", message="Busy.", retryable=True))
    harness.advance(30)
    call = hand_off_call(harness, "ref-polled-again")
    call_back(harness, "ok", Outcome("completed", delivered=80), call_id=call)
    names["overdue"] = harness.submit_job("bought")
    hand_off_call(harness, "ref-overdue")
    harness.advance(61)
    harness.do(commands.ClaimCall(call_id=newest_call(harness, names["overdue"]), job_id=names["overdue"]))
    assert harness.status(names["overdue"]) == "expired"


def _late_answers_scene(harness: VerifyingHarness, names: Names) -> None:
    """Workers that died between calling and telling, or did all the work themselves."""
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
    """Files that people brought: one used by a job and by a workflow, one uploading, one deleted."""
    for name in ("brought", "uploading", "deleted"):
        asked = commands.CreateUpload(
            tenant=TENANT, user="ada", name=f"{name}.png", media_type="image/png", bytes=4, sha256="c" * 64
        )
        names[name] = harness.do(asked).id
    for name in ("brought", "deleted"):
        harness.do(commands.FinishUpload(tenant=TENANT, file_id=names[name]))
    harness.do(commands.DeleteFiles(tenant=TENANT, file_ids=(names["deleted"],)))
    own = stage("draw", inputs=[{"style": {"$file": names["brought"]}}])
    harness.workflow("styled", stages=[own])
    names["illustrated"] = harness.submit_job(
        "gift", input={"picture": {"$file": names["brought"]}}, start_in_seconds=9_999
    )


def _fleet_scene(harness: VerifyingHarness, names: Names) -> None:
    """Workers that come over HTTP: one busy, one that went, one that was put out, one that started twice."""

    def register_worker(worker: str, token: str, concurrency: int = 3) -> None:
        harness.do(
            commands.Register(
                worker_id=worker, kinds=("draw",), token_hash=token * 64, concurrency=concurrency,
                requested_by=names["fleet_key"],
            )
        )  # fmt: skip

    for worker, token in (("gpu-busy", "1"), ("gpu-gone", "2"), ("gpu-out", "3"), ("gpu-twice", "4")):
        register_worker(worker, token)
    for worker, token in (("gpu-gone", "2"), ("gpu-out", "3"), ("gpu-twice", "4")):
        harness.submit_job()
        harness.do(commands.Claim(worker_id=worker, kinds=("draw",), session=token * 64))
    harness.do(commands.Deregister(worker_id="gpu-gone", session="2" * 64, reason="The night."))
    harness.do(commands.RevokeWorker(worker_id="gpu-out", requested_by=names["operator_key"]))
    register_worker("gpu-twice", "5")
    harness.do(commands.UpdateWorker(worker_id="gpu-twice", draining=True, requested_by=names["operator_key"]))
    harness.do(commands.Claim(worker_id="gpu-busy", kinds=("draw",), count=3, session="1" * 64, lease_seconds=9_000))


def _open_jobs_scene(harness: VerifyingHarness, names: Names) -> None:
    """Leave jobs in every status in which one can be met."""
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
    names["leased_task"] = harness.claim_one().task_id
    names["handed"] = harness.submit_job("bought")
    hand_off_call(harness, "ref-handed")
    names["intended"] = harness.submit_job("bought")
    intend_call(harness, harness.claim_one("call"))
    names["unknown"] = harness.submit_job("bought")
    intend_call(harness, harness.claim_one("call", lease_seconds=1))
    harness.advance(1)
    names["queued"] = harness.submit_job("gift", user="ben")
    names["foreign"] = harness.submit_job("gift", user="eve", tenant="other")


# -- provider verbs


def intend_call(harness: EngineHarness, lease: Lease) -> str:
    call: str = harness.do(commands.RecordIntent(lease=lease, provider="fal")).call_id
    return call


def hand_off_call(harness: EngineHarness, ref: str) -> str:
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
