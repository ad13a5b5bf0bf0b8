"""The load: priced jobs of a hundred users in four tenants, asked for by callers who also do the work.

A caller submits a job, claims one (its own or another's) and completes it, over and over.
"""

import asyncio
import random
import threading
from collections.abc import Sequence
from typing import Any

from callsheet.core.model.commands import Claim, Complete, LeasedTask, PutTenant, PutWorkflow, Submit, TopUp
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.engine import Engine

TENANTS = ("north", "east", "south", "west")
USERS = 100
KIND = "draw"
WORKFLOW = "sketch"
PRICE = 5


def set_up(engine: Engine) -> None:
    """Make tenants, a priced workflow and full wallets."""
    raise_first_error(engine.execute_many([PutTenant(tenant=tenant) for tenant in TENANTS]))
    definition = WorkflowDefinition(name=WORKFLOW, price=PRICE, stages=[StageSpec(name="draw", kind=KIND)])
    engine.execute(PutWorkflow(definition=definition))
    raise_first_error(engine.execute_many([top_up(*who) for who in users()]))


def users() -> list[tuple[str, str]]:
    return [(TENANTS[n % len(TENANTS)], f"user-{n:03}") for n in range(USERS)]


def top_up(tenant: str, user: str) -> TopUp:
    return TopUp(tenant=tenant, user=user, amount=10**9, idempotency_key="start")


def submits(count: int, seed: int) -> list[Submit]:
    """Return requests of random users, each with a small input."""
    rng = random.Random(seed)
    who = users()
    return [_submit(*rng.choice(who), n, rng) for n in range(count)]


def claim(count: int = 1, worker: str = "worker-1") -> Claim:
    return Claim(worker_id=worker, kinds=(KIND,), count=count)


def complete(leased: LeasedTask) -> Complete:
    return Complete(lease=leased.lease, output={"image": "made", "width": 1024})


def shares(jobs: Sequence[Submit], callers: int) -> list[Sequence[Submit]]:
    return [jobs[n::callers] for n in range(callers)]


# -- callers


def run_tasks(engine: Engine, jobs: Sequence[Submit], callers: int) -> None:
    """Let asyncio tasks on one loop do the jobs, one command at a time each."""

    async def caller(share: Sequence[Submit], worker: str) -> None:
        for job in share:
            await engine.aexecute(job)
            leased: list[LeasedTask] = []
            while not leased:
                leased = await engine.aexecute(claim(worker=worker))
            await engine.aexecute(complete(leased[0]))

    async def run_all() -> None:
        await asyncio.gather(*(caller(share, f"worker-{n}") for n, share in enumerate(shares(jobs, callers))))

    asyncio.run(run_all())


def run_threads(engine: Engine, jobs: Sequence[Submit], callers: int) -> None:
    """Let threads do the jobs, one command at a time each."""
    errors: list[BaseException] = []

    def caller(share: Sequence[Submit], worker: str) -> None:
        try:
            for job in share:
                engine.execute(job)
                while not (leased := engine.execute(claim(worker=worker))):
                    pass
                engine.execute(complete(leased[0]))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the main thread
            errors.append(error)

    threads = [
        threading.Thread(target=caller, args=(share, f"worker-{n}")) for n, share in enumerate(shares(jobs, callers))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def run_bulk(engine: Engine, jobs: Sequence[Submit], size: int) -> None:
    """Let one thread do the jobs in calls of many: so many submits, one claim of as many, as many completes."""
    for start in range(0, len(jobs), size):
        chunk = jobs[start : start + size]
        raise_first_error(engine.execute_many(chunk))
        remaining = len(chunk)
        while remaining:
            leased = engine.execute(claim(remaining))
            raise_first_error(engine.execute_many([complete(one) for one in leased]))
            remaining -= len(leased)


def _submit(tenant: str, user: str, number: int, rng: random.Random) -> Submit:
    body = {"prompt": f"a lighthouse at dusk, number {number}", "seed": rng.randrange(2**31), "steps": 28}
    return Submit(tenant=tenant, user=user, workflow=WORKFLOW, input=body)


def raise_first_error(results: Sequence[Any]) -> None:
    """Raise the first error among results."""
    for result in results:
        if isinstance(result, Exception):
            raise result
