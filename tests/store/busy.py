"""A busy life: every kind of command, and at its end jobs in every status, for `verify` to look at."""

from typing import Any

from callsheet.config import Settings
from callsheet.core import commands
from callsheet.core.commands import Command, Lease, Made, Outcome, Role, Submit, Verdict
from callsheet.core.ids import child
from callsheet.core.recipe import Backoff, Refunds, Retry
from callsheet.store import verify
from tests.support.clocked import VirtualClock
from tests.support.studio import TENANT, Studio, stage

Names = dict[str, str]
FILES = (Made(1, "picture.png", "image/png", 11, "a" * 64), Made(2, "tone.wav", "audio/wav", 12, "b" * 64))
KEYS: dict[str, tuple[str, Role]] = {
    "operator_key": ("", "admin"), "client_key": (TENANT, "client"), "revoked_key": (TENANT, "viewer"),
    "fleet_key": ("", "worker"),
}  # fmt: skip


class WatchedStudio(Studio):
    """A studio in which everything is verified after every so many commands and sweeps."""

    def __init__(self, place: str, every: int = 1) -> None:
        super().__init__(place, Settings(record_blocked=True), gates=[no_weapons], clock=VirtualClock())
        self.eye = self.database.connect(reading=True)
        self.every = every
        self.steps = 0
        self.found: list[str] = []

    def close(self) -> None:
        super().close()
        self.eye.close()

    def do(self, command: Command) -> Any:
        answer = super().do(command)
        self.look(type(command).__name__)
        return answer

    def advance(self, by_seconds: float) -> int:
        swept = super().advance(by_seconds)
        self.look("sweep")
        return swept

    def look(self, after: str) -> None:
        self.steps += 1
        if self.steps % self.every == 0 and (broken := verify.check(self.eye, self.clock.now())):
            self.found.append(f"after {after} no. {self.steps}: {verify.report(broken)}")


def no_weapons(command: Submit) -> Verdict | None:
    return Verdict("forbidden_content", "Not here.", block=True) if command.input == "weapon" else None


def live(studio: WatchedStudio) -> Names:
    """Live it; return the ids of its jobs by what became of them, and of some of their tasks."""
    names: Names = {}
    for scene in (_set_up, _ends, _tries, _stages, _growth, _provider, _late_answers, _uploads, _fleet, _open_ends):
        scene(studio, names)
    return names


def _set_up(studio: WatchedStudio, names: Names) -> None:
    studio.tenant()
    studio.tenant("other", active_jobs_max=2)
    studio.workflow()
    studio.workflow(price=6)
    studio.workflow("gift", price=0)
    studio.workflow("strict", price=10, refunds=Refunds(failed=40, expired=0, canceled_running=50))
    studio.workflow("stubborn", retry=Retry(on="any", requeues_max=1, backoff=Backoff(base_seconds=10.0, jitter=0.0)))
    studio.workflow("film", price=9, stages=[stage("draw", tasks=2), stage("cut", gate=True)])
    studio.workflow("open", inline=True, stages=[])
    studio.workflow(
        "bought", stages=[stage("call", provider="fal")], retry=Retry(on="any"), provider_deadline_seconds=60
    )
    for user in ("ada", "ben"):
        studio.top_up(1_000, user, key=f"welcome-{user}")
        studio.top_up(1_000, user, key=f"welcome-{user}")
    studio.do(commands.Adjust(tenant=TENANT, user="ada", amount=-7, reason="A gift taken back."))
    for key, (tenant, role) in KEYS.items():
        names[key] = studio.do(
            commands.CreateKey(tenant=tenant, role=role, name=key, secret_hash=f"{len(names):064x}", by="first")
        ).id
    studio.do(commands.RevokeKey(key_id=names["revoked_key"], by=names["operator_key"]))
    studio.top_up(50, "eve", tenant="other")


def _ends(studio: WatchedStudio, names: Names) -> None:
    """Every way in which a job ends."""
    names["done"] = studio.ask(input={"a": 1}, idempotency_key="one", labels={"film": "x"})
    assert studio.submit(input={"a": 1}, idempotency_key="one", labels={"film": "x"}).replay
    lease = studio.take()
    studio.beat(lease, progress=40, message="Almost.")
    for _ in range(2):
        studio.do(commands.Complete(lease=lease, output={"image": 1}, delivered=50, files=FILES))
    names["gift"] = studio.ask("gift", input="please")
    studio.finish(names["gift"])
    names["unstarted"] = studio.ask()
    studio.cancel(names["unstarted"])
    names["stopped"] = studio.ask("strict")
    lease = studio.take()
    studio.cancel(names["stopped"], grace_seconds=5)
    studio.beat(lease)
    studio.fail(lease, "As you wish.")
    names["revoked"] = studio.ask("strict")
    studio.take()
    studio.cancel(names["revoked"], grace_seconds=5)
    studio.advance(6)
    names["kept"] = studio.ask("strict")
    studio.fail(studio.take())
    names["late"] = studio.ask("strict", deadline_seconds=5, idempotency_key="late")
    studio.advance(6)
    names["blocked"] = studio.ask(input="weapon")
    names["gone"] = studio.ask(input={"secret": 1}, metadata={"note": "private"})
    studio.do(commands.Complete(lease=studio.take(), files=FILES))
    studio.delete(names["gone"])
    names["torn"] = studio.ask()
    studio.take()
    studio.delete(names["torn"])


def _tries(studio: WatchedStudio, names: Names) -> None:
    """Failed, lost and given-back tries; runs beside runs, and jobs made like others."""
    names["tried"] = studio.ask("stubborn")
    studio.fail(studio.take(), retryable=True)
    studio.advance(11)
    studio.requeue(studio.take(worker="w2"))
    studio.take(lease_seconds=1)
    studio.advance(2)
    studio.advance(30)
    studio.complete(studio.take())
    names["exhausted"] = studio.ask("stubborn")
    studio.requeue(studio.take())
    studio.requeue(studio.take())
    names["twice"] = studio.ask("stubborn")
    studio.fail(studio.take())
    studio.retry(names["twice"])
    studio.finish(names["twice"])
    names["copied"] = studio.ask("stubborn")
    studio.fail(studio.take())
    names["copy"] = studio.retry(names["copied"], retry_as="new_job").job_id
    studio.finish(names["copy"])
    studio.retry(names["late"])
    studio.finish(names["late"])


def _stages(studio: WatchedStudio, names: Names) -> None:
    """Stages with a gate, a hold, a pause."""
    names["film"] = studio.ask("film")
    first, second = studio.claim(count=2)
    studio.complete(first.lease)
    studio.pause(names["film"])
    studio.complete(second.lease)
    studio.resume(names["film"])
    studio.approve(names["film"], 2)
    studio.finish(names["film"], "cut")
    studio.do(commands.Refund(tenant="acme", job_id=names["film"], reason="It was too dark.", actor="admin"))
    names["remade"] = studio.ask("film")
    first, second = studio.claim(count=2)
    studio.complete(first.lease)
    studio.fail(second.lease)
    studio.retry(names["remade"])
    studio.complete(studio.take())
    studio.approve(names["remade"], 2)
    studio.do(commands.Hold(tenant=TENANT, job_id=names["remade"], stage_id=studio.stages(names["remade"])[1].id))
    studio.approve(names["remade"], 2, "cy")
    studio.finish(names["remade"], "cut")
    names["struck"] = studio.ask("film")
    first, _ = studio.claim(count=2)
    studio.do(commands.Hold(tenant=TENANT, job_id=names["struck"], stage_id=studio.stages(names["struck"])[0].id))
    studio.fail(first.lease)


def _growth(studio: WatchedStudio, names: Names) -> None:
    """Jobs that get their stages and tasks later, and change their priority."""
    names["grown"] = studio.ask("open")
    added = studio.do(commands.AddStage(tenant=TENANT, job_id=names["grown"], stage=stage("draw", inputs=[1, 2])))
    studio.do(commands.AddTasks(tenant=TENANT, job_id=names["grown"], stage_id=added.stage_id, inputs=[3]))
    studio.do(commands.Change(tenant=TENANT, job_id=names["grown"], priority=90, labels={"fast": "yes"}))
    studio.do(commands.AddStage(tenant=TENANT, job_id=names["grown"], stage=stage("cut"), actor="admin"))
    studio.finish(names["grown"], "draw", "cut")
    names["inline"] = studio.ask("open", stages=[stage("draw"), stage("cut", tasks=2)], user="ben")
    studio.fail(studio.take())
    studio.finish(studio.retry(names["inline"], retry_as="new_job").job_id, "draw", "cut")


def _provider(studio: WatchedStudio, names: Names) -> None:
    """Calls that are handed over, called back early, twice, or never accepted."""
    names["called"] = studio.ask("bought")
    lease = studio.take("call")
    intended(studio, lease)
    call_back(studio, "early", Outcome("completed", output={"url": 1}), ref="ref-called")
    studio.do(commands.Hand(lease=lease, ref="ref-called"))
    call_back(studio, "early", Outcome("completed"), ref="ref-called")
    call_back(studio, "again", Outcome("failed", message="No."), ref="ref-called")
    call_back(studio, "nobody", Outcome("completed"), ref="ref-of-nobody")
    names["polled"] = studio.ask("bought")
    handed(studio, "ref-polled")
    collected(studio, names["polled"], Outcome("pending"))
    studio.advance(30)
    collected(studio, names["polled"], Outcome("failed", message="Busy.", retryable=True))
    studio.advance(30)
    call = handed(studio, "ref-polled-again")
    call_back(studio, "ok", Outcome("completed", delivered=80), call_id=call)
    names["overdue"] = studio.ask("bought")
    handed(studio, "ref-overdue")
    studio.advance(61)
    studio.do(commands.Collect(call_id=newest_call(studio, names["overdue"]), job_id=names["overdue"]))
    assert studio.status(names["overdue"]) == "expired"


def _late_answers(studio: WatchedStudio, names: Names) -> None:
    """Workers that died between calling and telling, or did all the work themselves."""
    names["unaccepted"] = studio.ask("bought")
    intended(studio, studio.take("call", lease_seconds=1))
    studio.advance(2)
    collected(studio, names["unaccepted"], Outcome("absent"))
    intended(studio, studio.take("call", lease_seconds=1))
    studio.advance(2)
    call = newest_call(studio, names["unaccepted"])
    call_back(studio, "found", Outcome("pending"), ref="ref-found", call_id=call)
    collected(studio, names["unaccepted"], Outcome("completed"))
    names["direct"] = studio.ask("bought")
    lease = studio.take("call")
    intended(studio, lease)
    studio.complete(lease, {"url": 2})


def _uploads(studio: WatchedStudio, names: Names) -> None:
    """Files that people brought: one used by a job and by a workflow, one awaited, one dropped."""
    for name in ("brought", "awaited", "dropped"):
        asked = commands.AskUpload(
            tenant=TENANT, user="ada", name=f"{name}.png", media_type="image/png", bytes=4, sha256="c" * 64
        )
        names[name] = studio.do(asked).id
    for name in ("brought", "dropped"):
        studio.do(commands.FinishUpload(tenant=TENANT, file_id=names[name]))
    studio.do(commands.DropFiles(tenant=TENANT, file_ids=(names["dropped"],)))
    own = stage("draw", inputs=[{"style": {"$file": names["brought"]}}])
    studio.workflow("styled", stages=[own])
    names["illustrated"] = studio.ask("gift", input={"picture": {"$file": names["brought"]}}, start_in_seconds=9_999)


def _fleet(studio: WatchedStudio, names: Names) -> None:
    """Workers that come over HTTP: one busy, one that went, one that was put out, one that started twice."""

    def come(worker: str, token: str, concurrency: int = 3) -> None:
        studio.do(
            commands.Register(
                worker_id=worker, kinds=("draw",), token_hash=token * 64, concurrency=concurrency,
                by=names["fleet_key"],
            )
        )  # fmt: skip

    for worker, token in (("gpu-busy", "1"), ("gpu-gone", "2"), ("gpu-out", "3"), ("gpu-twice", "4")):
        come(worker, token)
    for worker, token in (("gpu-gone", "2"), ("gpu-out", "3"), ("gpu-twice", "4")):
        studio.ask()
        studio.do(commands.Claim(worker_id=worker, kinds=("draw",), session=token * 64))
    studio.do(commands.Deregister(worker_id="gpu-gone", session="2" * 64, reason="The night."))
    studio.do(commands.RevokeWorker(worker_id="gpu-out", by=names["operator_key"]))
    come("gpu-twice", "5")
    studio.do(commands.SetWorker(worker_id="gpu-twice", draining=True, by=names["operator_key"]))
    studio.do(commands.Claim(worker_id="gpu-busy", kinds=("draw",), count=3, session="1" * 64, lease_seconds=9_000))


def _open_ends(studio: WatchedStudio, names: Names) -> None:
    """Leave jobs in every status in which one can be met."""
    names["scheduled"] = studio.ask(start_in_seconds=3_600)
    names["waiting"] = studio.ask("film", user="ben")
    for leased in studio.claim(count=2):
        studio.complete(leased.lease)
    names["paused"] = studio.ask("film")
    studio.take()
    studio.pause(names["paused"])
    names["backoff"] = studio.ask("stubborn", user="ben")
    studio.fail(studio.take(), retryable=True)
    names["stopping"] = studio.ask("film", user="ben")
    studio.take()
    studio.cancel(names["stopping"], grace_seconds=3_600)
    names["running"] = studio.ask("film", user="ben", idempotency_key="running")
    names["leased_task"] = studio.take().task_id
    names["handed"] = studio.ask("bought")
    handed(studio, "ref-handed")
    names["intended"] = studio.ask("bought")
    intended(studio, studio.take("call"))
    names["unknown"] = studio.ask("bought")
    intended(studio, studio.take("call", lease_seconds=1))
    studio.advance(1)
    names["queued"] = studio.ask("gift", user="ben")
    names["foreign"] = studio.ask("gift", user="eve", tenant="other")


# -- provider verbs


def intended(studio: Studio, lease: Lease) -> str:
    call: str = studio.do(commands.Intend(lease=lease, provider="fal")).call_id
    return call


def handed(studio: Studio, ref: str) -> str:
    lease = studio.take("call")
    call = intended(studio, lease)
    studio.do(commands.Hand(lease=lease, ref=ref))
    return call


def collected(studio: Studio, job_id: str, outcome: Outcome) -> None:
    studio.do(commands.Collected(call_id=newest_call(studio, job_id), job_id=job_id, outcome=outcome))


def newest_call(studio: Studio, job_id: str) -> str:
    """Return the id of a flat job's newest call."""
    (task,) = studio.tasks(job_id)
    return child(task.id, task.attempts)


def call_back(studio: Studio, webhook: str, outcome: Outcome, **found_by: str) -> None:
    studio.do(commands.Callback(provider="fal", webhook_id=webhook, outcome=outcome, **found_by))
