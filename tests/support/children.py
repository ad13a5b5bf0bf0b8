"""What the children do: `python -m tests.support.children PROGRAM PLACE …`, one JSON line per answered command."""

import os
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from callsheet.core import commands
from callsheet.core.commands import Lease
from callsheet.core.errors import Refusal
from callsheet.engine import Engine

TENANT, USER, WORKFLOW, KIND = "acme", "ada", "sketch", "draw"
THREADS = 3


def tell(said: Any) -> None:
    """Write a line in one piece, so that a kill cannot cut into what a parent reads."""
    os.write(1, msgspec.json.encode(said) + b"\n")


def submit_many(engine: Engine, count: str, key: str, prices: str = "sketch") -> None:
    """Wait for the start; then submit `count` times from as many threads, under one key or none, and tell each end."""
    tell("ready")
    sys.stdin.readline()

    def one(number: int) -> None:
        try:
            answer = engine.execute(
                commands.Submit(tenant=TENANT, user=USER, workflow=prices, idempotency_key=key or None)
            )
        except Refusal as refusal:
            tell({"number": number, "refused": refusal.code})
        else:
            tell({"number": number, "job_id": answer.job_id})

    threads = [threading.Thread(target=one, args=(number,)) for number in range(int(count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def live(engine: Engine, seed: str) -> None:
    """Submit, claim, report, cancel and top up without end, from several threads, telling each answered command."""
    threads = [
        threading.Thread(target=_live, args=(engine, random.Random(f"{seed}/{number}"), f"{seed}-{number}"))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _live(engine: Engine, chance: random.Random, name: str) -> None:
    held: list[Lease] = []
    jobs: list[str] = []
    number = 0
    steps: list[Callable[[], dict[str, Any] | None]] = [
        lambda: _submitted(engine, jobs),
        lambda: _claimed(engine, name, held),
        lambda: _reported(engine, held, chance),
        lambda: _reported(engine, held, chance),
        lambda: _canceled(engine, jobs, chance),
        lambda: _topped_up(engine, f"{name}-{number}"),
    ]
    while True:
        number += 1
        step = chance.choices(steps, weights=[6, 6, 4, 4, 1, 1])[0]
        try:
            told = step()
        except Refusal:
            continue
        if told:
            tell(told)


def _submitted(engine: Engine, jobs: list[str]) -> dict[str, Any]:
    made = engine.execute(commands.Submit(tenant=TENANT, user=USER, workflow=WORKFLOW, input={"prompt": "a cat"}))
    jobs.append(made.job_id)
    return {"did": "submit", "job_id": made.job_id}


def _claimed(engine: Engine, name: str, held: list[Lease]) -> dict[str, Any] | None:
    leased = engine.execute(commands.Claim(worker_id=name, kinds=(KIND,), count=2))
    held.extend(one.lease for one in leased)
    return {"did": "claim", "leases": [one.lease for one in leased]} if leased else None


def _reported(engine: Engine, held: list[Lease], chance: random.Random) -> dict[str, Any] | None:
    if not held:
        return None
    lease = held.pop(chance.randrange(len(held)))
    how = chance.choice(["completed", "completed", "failed", "requeued"])
    command: commands.Command = commands.Complete(lease=lease, output={"seen": lease.task_id})
    if how == "failed":
        command = commands.Fail(lease=lease, message="It broke.", retryable=True)
    elif how == "requeued":
        command = commands.Requeue(lease=lease, reason="spot notice")
    state = engine.execute(command)
    return None if state.skipped else {"did": "report", "lease": lease, "outcome": how}


def _canceled(engine: Engine, jobs: list[str], chance: random.Random) -> dict[str, Any] | None:
    if not jobs:
        return None
    job_id = jobs.pop(chance.randrange(len(jobs)))
    engine.execute(commands.Cancel(tenant=TENANT, job_id=job_id, grace_seconds=0))
    return {"did": "cancel", "job_id": job_id}


def _topped_up(engine: Engine, key: str) -> dict[str, Any]:
    engine.execute(commands.TopUp(tenant=TENANT, user=USER, amount=7, idempotency_key=key))
    return {"did": "top_up", "key": key}


def open_new(place: str) -> None:
    """Wait for the start, then open a database that may not exist yet."""
    tell("ready")
    sys.stdin.readline()
    with Engine.open(place):
        tell("open")


PROGRAMS: dict[str, Callable[..., None]] = {"submit_many": submit_many, "live": live}

if __name__ == "__main__":
    program, place, *arguments = sys.argv[1:]
    if program == "open_new":
        open_new(place)
    else:
        with Engine.open(place) as opened:
            PROGRAMS[program](opened, *arguments)
