"""Random batches of commands from three servers, about many tenants, jobs and wallets in any order."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from callsheet.core.model.commands import (
    Approve,
    Cancel,
    Claim,
    Command,
    Complete,
    Delete,
    Fail,
    Heartbeat,
    Lease,
    Pause,
    PutWorkflow,
    Requeue,
    Resume,
    Retry,
    Submit,
    TopUp,
    Update,
)
from callsheet.core.model.errors import Refusal
from callsheet.core.model.state_machines import JOB
from callsheet.core.model.workflow_definition import WorkflowDefinition
from callsheet.settings import Settings
from tests.support.engine.concurrency import run_concurrently, servers
from tests.support.engine.engine_harness import EngineHarness, stage

TENANTS = ("acme", "bolt", "crab")
USERS = ("ada", "bob", "cyd")
WORKFLOWS = ("sketch", "film", "trial")
KINDS = ("draw", "cut")
ROUNDS = 18
BATCH_MAX = 6


class SharedState:
    """The jobs and leases of all callers. The lists only grow, so threads can share them."""

    def __init__(self) -> None:
        self.jobs: list[tuple[str, str]] = []
        self.leases: list[Lease] = []

    def remember(self, command: Command, answer: Any) -> None:
        if isinstance(command, Submit):
            self.jobs.append((command.tenant, answer.job_id))
        elif isinstance(command, Claim):
            self.leases.extend(leased.lease for leased in answer)


def random_command(chance: random.Random, shared: SharedState, name: str) -> Command:
    """Draw a command, often about an existing job or lease."""
    new_work: list[Callable[[], Command]] = [
        lambda: Submit(
            tenant=chance.choice(TENANTS), user=chance.choice(USERS), workflow=chance.choice(WORKFLOWS),
            idempotency_key=chance.choice([None, None, f"key-{chance.randrange(30)}"]),
        ),
        lambda: TopUp(tenant=chance.choice(TENANTS), user=chance.choice(USERS), amount=chance.randint(1, 20)),
        lambda: Claim(worker_id=name, kinds=tuple(chance.sample(KINDS, chance.randint(1, 2))), count=3),
    ]  # fmt: skip
    if not shared.jobs or not shared.leases or chance.random() < 0.45:
        return chance.choice(new_work)()
    tenant, job_id = chance.choice(shared.jobs[-25:])
    lease = chance.choice(shared.leases[-25:])
    changes: list[Callable[[], Command]] = [
        lambda: Complete(lease=lease),
        lambda: Complete(lease=lease, delivered=40),
        lambda: Fail(lease=lease, retryable=chance.choice([True, False])),
        lambda: Requeue(lease=lease, reason="spot notice"),
        lambda: Heartbeat(lease=lease, progress=chance.randint(0, 100)),
        lambda: Cancel(tenant=tenant, job_id=job_id, grace_seconds=chance.choice([0, 30])),
        lambda: Pause(tenant=tenant, job_id=job_id),
        lambda: Resume(tenant=tenant, job_id=job_id),
        lambda: Retry(tenant=tenant, job_id=job_id, actor="admin"),
        lambda: Delete(tenant=tenant, job_id=job_id),
        lambda: Update(tenant=tenant, job_id=job_id, priority=chance.randint(0, 100)),
    ]
    return chance.choice(changes)()


def send_random_batches(harness: EngineHarness, shared: SharedState, seed: str) -> list[BaseException]:
    """Send random batches; return the errors that are not refusals."""
    chance = random.Random(seed)
    errors: list[BaseException] = []
    for _ in range(ROUNDS):
        batch = [random_command(chance, shared, seed) for _ in range(chance.randint(1, BATCH_MAX))]
        for command, answer in zip(batch, harness.engine.execute_many(batch), strict=True):
            if isinstance(answer, Refusal):
                continue
            if isinstance(answer, BaseException):
                errors.append(answer)
            else:
                shared.remember(command, answer)
        if chance.random() < 0.2:
            harness.advance(chance.choice([1, 5, 40]))
    return errors


def finish_all(harness: EngineHarness, shared: SharedState) -> None:
    """Resume, approve and complete until every job has ended."""
    for tenant, job_id in set(shared.jobs):
        harness.engine.execute_many([Resume(tenant=tenant, job_id=job_id)])
    for _ in range(200):
        leased = harness.claim(*KINDS, count=200)
        harness.engine.execute_many([Complete(lease=one.lease) for one in leased])
        for tenant, job_id in set(shared.jobs):
            harness.engine.execute_many(
                [
                    Approve(tenant=tenant, job_id=job_id, stage_id=each.id, approver="bea")
                    for each in harness.stages(job_id)
                    if each.status == "waiting"
                ]
            )
        if not harness.advance(60) and not leased:
            return
    raise AssertionError("jobs did not end")


def test_random_batches_from_three_servers_end_in_answers_or_refusals_and_every_job_ends(database_url):
    """F8, F25, M1-M14, G1-G9, L1-L12: no deadlock or conflict reaches a caller."""
    with servers(database_url, 3, Settings(lanes=2)) as harnesses:
        one = harnesses[0]
        for tenant in TENANTS:
            one.tenant(tenant, active_jobs_max=12)
            for user in USERS:
                one.top_up(60, user, tenant)
        one.workflow("sketch", price=5, lease_seconds=20)
        one.workflow("film", price=9, stages=[stage("draw", tasks=2), stage("cut", approval=True)], lease_seconds=20)
        one.workflow("trial", price=0, stages=[stage("cut")], running_max=2, lease_seconds=20)
        shared = SharedState()
        errors = run_concurrently(
            *[partial(send_random_batches, harnesses[n % 3], shared, f"caller-{n}") for n in range(9)]
        )
        assert [error for several in errors for error in several] == []
        assert len(shared.jobs) > 50
        finish_all(one, shared)
        for _, job_id in set(shared.jobs):
            assert one.reads.fetch("jobs_unlocked", ids=[job_id])[0][10] in JOB.terminal
        for tenant in TENANTS:
            assert [one.wallet(user, tenant).reserved for user in USERS] == [0, 0, 0]


def test_a_submit_in_the_batch_that_changes_its_workflow_uses_the_newest_version(database_url):
    """In one transaction the second version replaces the first, and the job uses it."""
    with servers(database_url, 1, Settings(lanes=1)) as (one,):
        one.tenant()
        definitions = [WorkflowDefinition(name="sketch", stages=[stage()], price=0, priority=n) for n in (1, 2)]
        puts: list[Command] = [PutWorkflow(definition=definition) for definition in definitions]
        answers = one.engine.execute_many([*puts, one.submission(input={"prompt": "a cat"})])
        assert [answer.version for answer in answers[:2]] == [1, 2]
        job = one.job(answers[2].job_id)
        assert (job.workflow_version, job.priority) == (2, 2)
        one.workflow(price=0, priority=3)
        assert one.job(one.submit_job()).workflow_version == 3
