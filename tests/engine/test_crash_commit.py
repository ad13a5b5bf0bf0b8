"""A connection lost at the commit tells nothing: the command is answered all the same, and takes effect once."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from callsheet.core import commands as c
from callsheet.core.commands import Command, Lease
from callsheet.core.holding import hashed
from callsheet.core.machine import Actor
from callsheet.core.rows import Worker
from tests.support.faulty import faulty_engine, once
from tests.support.racing import amiss
from tests.support.studio import TENANT, Studio, stage

ADMIN: Actor = "admin"
Prepare = Callable[[Studio, str], Command]


def fresh(studio: Studio, name: str, **recipe: Any) -> str:
    """Make a workflow, a kind and a user with 100 credits of this name, and submit a job of theirs."""
    recipe.setdefault("stages", [stage(name)])
    studio.workflow(name, inline=True, **recipe)
    studio.top_up(100, name)
    return studio.ask(name, name, input={"prompt": "a cat"})


def leased(studio: Studio, name: str, **recipe: Any) -> Lease:
    fresh(studio, name, **recipe)
    return studio.take(name)


def broken(studio: Studio, name: str) -> str:
    lease = leased(studio, name)
    studio.fail(lease)
    return lease.job_id


def paused(studio: Studio, name: str) -> str:
    job = fresh(studio, name)
    studio.pause(job)
    return job


def waiting(studio: Studio, name: str) -> Command:
    job = fresh(studio, name, stages=[stage(name, gate=True)])
    return c.Approve(tenant=TENANT, job_id=job, stage_id=studio.stages(job)[0].id, approver="bea")


def called(studio: Studio, name: str) -> Lease:
    lease = leased(studio, name, stages=[stage(name, provider="prov")])
    studio.do(c.Intend(lease=lease, provider="prov"))
    return lease


def handed(studio: Studio, name: str) -> tuple[str, str]:
    """Hand a task to a provider; return its job and its call, which is due."""
    lease = called(studio, name)
    studio.do(c.Hand(lease=lease, ref=name))
    studio.clock.advance(60)
    return lease.job_id, str(studio.read.fetch("calls_by_ref", keys=[("prov", name)])[0][0])


def collect(studio: Studio, name: str) -> Command:
    job, call = handed(studio, name)
    return c.Collect(call_id=call, job_id=job)


def collected(studio: Studio, name: str) -> Command:
    job, call = handed(studio, name)
    return c.Collected(call_id=call, job_id=job, outcome=c.Outcome("completed", {"seen": 1}))


def add_tasks(studio: Studio, name: str) -> Command:
    job = fresh(studio, name)
    return c.AddTasks(tenant=TENANT, job_id=job, stage_id=studio.stages(job)[0].id, inputs=[1, 2, 3])


def submit(studio: Studio, name: str) -> Command:
    fresh(studio, name)
    return studio.submission(name, name, input={"prompt": "a dog"})


def claim(studio: Studio, name: str) -> Command:
    fresh(studio, name, stages=[stage(name, tasks=3)])
    return c.Claim(worker_id="w1", kinds=(name,), count=2, lease_seconds=77)


def retry_as_new(studio: Studio, name: str, key: str | None = None) -> Command:
    job = broken(studio, name)
    return c.Retry(tenant=TENANT, job_id=job, actor=ADMIN, retry_as="new_job", idempotency_key=key)


def come(_: Studio, name: str) -> Command:
    return c.Register(worker_id=name, kinds=(name,), token_hash=hashed(name), concurrency=3)


def there(studio: Studio, name: str) -> str:
    """Register a worker that holds a task and has another before it; return its name."""
    studio.do(come(studio, name))
    fresh(studio, name, stages=[stage(name, tasks=3)])
    studio.do(c.Claim(worker_id=name, kinds=(name,), session=hashed(name)))
    return name


def come_again(studio: Studio, name: str) -> Command:
    return replace(come(studio, there(studio, name)), token_hash=hashed(f"{name}, again"))


def claim_again(studio: Studio, name: str) -> Command:
    """Claim as a worker does that never heard what it was given."""
    worker = there(studio, name)
    return c.Claim(worker_id=worker, kinds=(name,), session=hashed(name), holds=(), count=2)


def resumed(studio: Studio, name: str) -> Command:
    """Claim a task that lies at another machine since the try before."""
    lease = leased(studio, name)
    studio.do(c.Submitting(lease=lease, provider="comfyui", ref="prompt-1"))
    studio.requeue(lease)
    return c.Claim(worker_id="w1", kinds=(name,))


def paid(studio: Studio, name: str) -> str:
    lease = leased(studio, name)
    studio.complete(lease)
    return lease.job_id


def ask_upload(user: str) -> Command:
    return c.AskUpload(tenant=TENANT, user=user, name="cat.png", media_type="image/png", bytes=3, sha256="a" * 64)


def uploaded(studio: Studio, name: str) -> str:
    file: str = studio.do(ask_upload(name)).id
    studio.do(c.FinishUpload(tenant=TENANT, file_id=file))
    return file


def submit_with_a_file(studio: Studio, name: str) -> Command:
    fresh(studio, name)
    return studio.submission(name, name, input={"of": {"$file": uploaded(studio, name)}})


def retry_with_a_file(studio: Studio, name: str) -> Command:
    studio.do(submit_with_a_file(studio, name))
    leases = [one.lease for one in studio.claim(name, count=2)]
    for lease in leases:
        studio.fail(lease)
    return c.Retry(tenant=TENANT, job_id=leases[1].job_id, actor=ADMIN)


PICTURE = c.Made(1, "picture.png", "image/png", 3, "b" * 64)
KINDS: dict[str, Prepare] = {
    "submit": submit,
    "claim": claim,
    "complete": lambda s, n: c.Complete(lease=leased(s, n), output={"seen": 1}),
    "fail for good": lambda s, n: c.Fail(lease=leased(s, n), retryable=False),
    "fail for now": lambda s, n: c.Fail(lease=leased(s, n), retryable=True),
    "requeue": lambda s, n: c.Requeue(lease=leased(s, n), reason="spot notice"),
    "top up": lambda _, n: c.TopUp(tenant=TENANT, user=n, amount=9),
    "adjust": lambda _, n: c.Adjust(tenant=TENANT, user=n, amount=9, reason="a gift"),
    "refund": lambda s, n: c.Refund(tenant=TENANT, job_id=paid(s, n), reason="too dark", actor=ADMIN),
    "retry": lambda s, n: c.Retry(tenant=TENANT, job_id=broken(s, n), actor=ADMIN),
    "retry with a key": lambda s, n: c.Retry(tenant=TENANT, job_id=broken(s, n), actor=ADMIN, idempotency_key="k"),
    "retry as a new job": retry_as_new,
    "retry as a new job with a key": lambda s, n: retry_as_new(s, n, "k"),
    "add a stage": lambda s, n: c.AddStage(tenant=TENANT, job_id=fresh(s, n), stage=stage("cut", tasks=2)),
    "add tasks": add_tasks,
    "cancel": lambda s, n: c.Cancel(tenant=TENANT, job_id=fresh(s, n)),
    "cancel with grace": lambda s, n: c.Cancel(tenant=TENANT, job_id=leased(s, n).job_id, grace_seconds=30),
    "pause": lambda s, n: c.Pause(tenant=TENANT, job_id=fresh(s, n)),
    "resume": lambda s, n: c.Resume(tenant=TENANT, job_id=paused(s, n)),
    "approve": waiting,
    "delete": lambda s, n: c.Delete(tenant=TENANT, job_id=fresh(s, n)),
    "intend": lambda s, n: c.Intend(lease=leased(s, n), provider="prov"),
    "hand": lambda s, n: c.Hand(lease=called(s, n), ref=n),
    "put a tenant": lambda _, n: c.PutTenant(tenant=n, weight=3),
    "register": come,
    "register again": come_again,
    "deregister": lambda s, n: c.Deregister(worker_id=there(s, n), session=hashed(n)),
    "revoke a worker": lambda s, n: c.RevokeWorker(worker_id=there(s, n)),
    "drain a worker": lambda s, n: c.SetWorker(worker_id=there(s, n), draining=True),
    "change a worker's token": lambda s, n: c.RotateWorker(worker_id=there(s, n), token_hash=hashed(f"{n}, new")),
    "claim as a worker that lost an answer": claim_again,
    "claim what lies elsewhere": resumed,
    "write down where work lies": lambda s, n: c.Submitting(lease=leased(s, n), provider="comfyui", ref="prompt-1"),
    "complete with a file": lambda s, n: c.Complete(lease=leased(s, n), files=(PICTURE,)),
    "announce a file": lambda _, n: ask_upload(n),
    "finish a file": lambda s, n: c.FinishUpload(tenant=TENANT, file_id=s.do(ask_upload(n)).id),
    "drop a file": lambda s, n: c.DropFiles(tenant=TENANT, file_ids=(uploaded(s, n),)),
    "submit with a file": submit_with_a_file,
    "retry with a file": retry_with_a_file,
}


HARMLESS: dict[str, Prepare] = {
    "heartbeat": lambda s, n: c.Heartbeat(lease=leased(s, n), progress=40),
    "change": lambda s, n: c.Change(tenant=TENANT, job_id=fresh(s, n), priority=7),
    "collect": collect,
    "collected": collected,
}
"""Done again they say the same once more, or that it has been done; what they did is done once all the same."""


def rows(studio: Studio) -> Counter[str]:
    """Count the rows of every table."""
    return Counter({table: len(found) for table, found in studio.snapshot().items()})


def told(answer: Any) -> Any:
    """Return an answer without what differs from name to name, or says that it is a repetition."""
    if isinstance(answer, list | tuple):
        return [told(one) for one in answer]
    plain = msgspec.to_builtins(answer)
    if not isinstance(plain, dict):
        return plain
    own = {"replay", "changed", "requeued", "lease", "created_at", "id", "kind", "kinds", "workflow", "stage"}
    return {key: value for key, value in plain.items() if key not in own and not key.endswith(("_id", "_ids"))}


def done(studio: Studio, prepare: Prepare, name: str, do: Callable[[Command], Any]) -> tuple[Any, Counter[str]]:
    """Prepare a command and do it; return its answer, and how many rows it added to which tables."""
    command = prepare(studio, name)
    before = rows(studio)
    return told(do(command)), rows(studio) - before


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_command_whose_commit_was_cut_is_answered_and_takes_effect_once(studio, when):
    """F7, F2, R36, R64 and the crash matrix: compared with the same command on a sound connection."""
    for number, (kind, prepare) in enumerate(KINDS.items()):
        expected = done(studio, prepare, f"plain-{number}", studio.do)
        with faulty_engine(studio.database, once(when)) as engine:
            assert (kind, done(studio, prepare, f"lost-{number}", engine.execute)) == (kind, expected)
    assert amiss(studio) == []


def worker_of(studio: Studio, name: str) -> Worker:
    return Worker(*studio.read.fetch("worker_of", id=name)[0])


BETWEEN: dict[str, tuple[Callable[[str], Command], Callable[[str], Command], str, str | None]] = {
    "a start, and another one": (
        lambda n: c.Register(worker_id=n, kinds=(n,), token_hash=hashed("second")),
        lambda n: c.Register(worker_id=n, kinds=(n,), token_hash=hashed("third")), "approved", hashed("third"),
    ),
    "a goodbye, and a start": (
        lambda n: c.Deregister(worker_id=n, session=hashed(n)),
        lambda n: c.Register(worker_id=n, kinds=(n,), token_hash=hashed("second")), "approved", hashed("second"),
    ),
    "an approval, and a revocation": (
        lambda n: c.SetWorker(worker_id=n, approved=True, draining=True), lambda n: c.RevokeWorker(worker_id=n),
        "revoked", None,
    ),
    "a revocation, and an approval": (
        lambda n: c.RevokeWorker(worker_id=n), lambda n: c.SetWorker(worker_id=n, approved=True), "gone", None,
    ),
    "a changed token, and another one": (
        lambda n: c.RotateWorker(worker_id=n, token_hash=hashed("second")),
        lambda n: c.RotateWorker(worker_id=n, token_hash=hashed("third")), "approved", hashed("third"),
    ),
}  # fmt: skip
"""What was decided and not heard, what another decided before it was tried again, and how the worker stands then."""


@pytest.mark.parametrize("case", BETWEEN)
def test_a_command_about_a_worker_does_not_undo_what_another_decided_meanwhile(studio, case):
    """F7 with F25: tried again, it finds its own line in the audit log, and leaves the worker as it is."""
    first, second, status, token = BETWEEN[case]
    there(studio, "gpu")
    lines = rows(studio)["audit"]
    with faulty_engine(studio.database, once("after"), between=lambda: studio.do(second("gpu"))) as engine:
        assert engine.execute(first("gpu")).status == status
    worker = worker_of(studio, "gpu")
    assert (worker.status, worker.token_hash) == (status, token)
    assert rows(studio)["audit"] == lines + 2
    assert amiss(studio) == []


def test_a_claim_whose_tasks_were_given_back_meanwhile_leases_with_other_tokens(studio):
    """L10: tried again it may take another task, or the same one anew; no two leases have one token."""
    there(studio, "gpu")
    claim = c.Claim(worker_id="gpu", kinds=("gpu",), session=hashed("gpu"), holds=(), count=2)
    other = replace(claim, count=1)
    with faulty_engine(studio.database, once("after"), between=lambda: studio.do(other)) as engine:
        leased = engine.execute(claim)
    assert leased
    assert len({one.lease.token for one in leased}) == len(leased)
    assert studio.beat(leased[0].lease).lease_seconds > 0
    assert amiss(studio) == []


def test_files_dropped_by_the_house_go_once_and_are_told_of_so_that_their_bytes_go(studio):
    """F7: the answer to the second try names what the first one dropped; the audit log has one line."""
    files = tuple(studio.do(ask_upload("ada")).id for _ in range(2))
    studio.clock.advance(86_401)
    lines = rows(studio)["audit"]
    with faulty_engine(studio.database, once("after")) as engine:
        gone = engine.execute(c.DropFiles(file_ids=files, by="retention"))
    assert [file.id for file in gone.files] == list(files)
    assert rows(studio)["audit"] == lines + 1
    assert amiss(studio) == []


def test_a_command_that_may_be_repeated_has_one_effect_when_its_commit_was_cut(studio):
    """A beat, a change, a look at a provider: an event may be told twice, and nothing else."""
    for number, (kind, prepare) in enumerate(HARMLESS.items()):
        _, added = done(studio, prepare, f"plain-{number}", studio.do)
        with faulty_engine(studio.database, once("after")) as engine:
            _, again = done(studio, prepare, f"lost-{number}", engine.execute)
        assert (kind, {**again, "event": 0}) == (kind, {**added, "event": 0})
        assert again["event"] - added["event"] in {0, 1}
    assert amiss(studio) == []


def test_a_callback_whose_commit_was_cut_is_taken_once(studio):
    """P4: its answer says duplicate, and its effect is there."""
    job, _ = handed(studio, "lost")
    letter = c.Callback(provider="prov", webhook_id="w", ref="lost", outcome=c.Outcome("completed"))
    with faulty_engine(studio.database, once("after")) as engine:
        assert engine.execute(letter).replay
    assert studio.status(job) == "completed"
    assert studio.ledger(job, "lost") == [("reserve", -5, 0), ("consume", 0, 5)]
    assert amiss(studio) == []


def test_whole_batches_cut_at_random_commits_make_everything_once(studio):
    """F6, F7 under load: every third commit is cut, before or after, and the counts come out exact."""
    chance = random.Random(7)
    studio.top_up(10_000)
    with faulty_engine(studio.database, lambda: chance.choice(["before", "after", None, None, None, None])) as engine:
        made = [one.job_id for _ in range(10) for one in engine.execute_many([studio.submission()] * 5)]
        leases: list[Lease] = []
        while len(leases) < 50:
            got = engine.execute(c.Claim(worker_id="w", kinds=("draw",), count=7))
            assert got
            leases += [one.lease for one in got]
        states = engine.execute_many([c.Complete(lease=lease, output=n) for n, lease in enumerate(leases)])
        topped = [engine.execute(c.TopUp(tenant=TENANT, user="bob", amount=1)) for _ in range(20)]
    assert len(set(made)) == rows(studio)["job"] == 50
    assert {(lease.job_id, lease.attempt) for lease in leases} == {(job, 1) for job in made}
    assert {(state.status, state.job_status) for state in states} == {("completed", "completed")}
    assert [balance.balance for balance in topped] == list(range(1, 21))
    assert studio.balance() == 10_100 - 50 * 5
    assert amiss(studio) == []
