"""The load: priced jobs of a hundred users in four tenants, submitted by callers that also run the tasks.

A caller submits a job, claims a task (of this job or another) and completes it, and repeats that.
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
    """Create tenants, a priced workflow and wallets with enough credits."""
    raise_first_error(engine.execute_many([PutTenant(tenant=tenant) for tenant in TENANTS]))
    definition = WorkflowDefinition(name=WORKFLOW, price=PRICE, stages=[StageSpec(name="draw", kind=KIND)])
    engine.execute(PutWorkflow(definition=definition))
    raise_first_error(engine.execute_many([top_up(*user) for user in users()]))


def users() -> list[tuple[str, str]]:
    return [(TENANTS[n % len(TENANTS)], f"user-{n:03}") for n in range(USERS)]


def top_up(tenant: str, user: str) -> TopUp:
    return TopUp(tenant=tenant, user=user, amount=10**9, idempotency_key="start")


def submits(count: int, seed: int) -> list[Submit]:
    """Return submits of random users, each with a small input."""
    rng = random.Random(seed)
    known = users()
    return [_submit(*rng.choice(known), n, rng) for n in range(count)]


def claim(count: int = 1, worker: str = "worker-1") -> Claim:
    return Claim(worker_id=worker, kinds=(KIND,), count=count)


def complete(leased: LeasedTask) -> Complete:
    return Complete(lease=leased.lease, output={"image": "made", "width": 1024})


def shares(jobs: Sequence[Submit], callers: int) -> list[Sequence[Submit]]:
    return [jobs[n::callers] for n in range(callers)]


# -- callers


def run_tasks(engine: Engine, jobs: Sequence[Submit], callers: int) -> None:
    """Run the jobs with asyncio tasks on one loop, each of which sends one command at a time."""

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
    """Run the jobs with threads, each of which sends one command at a time."""
    errors: list[BaseException] = []

    def caller(share: Sequence[Submit], worker: str) -> None:
        try:
            for job in share:
                engine.execute(job)
                while not (leased := engine.execute(claim(worker=worker))):
                    pass
                engine.execute(complete(leased[0]))
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
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
    """Run the jobs with one thread and bulk calls: `size` submits, a claim of as many tasks, as many completions."""
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
