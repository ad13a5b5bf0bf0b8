"""Programs of child processes: `python -m tests.support.processes.child_programs PROGRAM DATABASE_URL …`.

Each writes one JSON line per answered command.
"""

import os
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from callsheet.core.model import commands
from callsheet.core.model.commands import Lease
from callsheet.core.model.errors import Refusal
from callsheet.engine import Engine

TENANT, USER, WORKFLOW, KIND = "acme", "ada", "sketch", "draw"
THREADS = 3


def write_json_line(message: Any) -> None:
    """Write a line with one system call, so that a kill cannot leave half of it."""
    os.write(1, msgspec.json.encode(message) + b"\n")


def submit_many(engine: Engine, count: str, key: str, workflow: str = "sketch") -> None:
    """Wait for the start, submit `count` times from as many threads, with one key or none, and write the answers."""
    write_json_line("ready")
    sys.stdin.readline()

    def one(number: int) -> None:
        try:
            answer = engine.execute(
                commands.Submit(tenant=TENANT, user=USER, workflow=workflow, idempotency_key=key or None)
            )
        except Refusal as refusal:
            write_json_line({"number": number, "refused": refusal.code})
        else:
            write_json_line({"number": number, "job_id": answer.job_id})

    threads = [threading.Thread(target=one, args=(number,)) for number in range(int(count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_forever(engine: Engine, seed: str) -> None:
    """Submit, claim, report, cancel and top up from several threads until killed, and write each answer."""
    threads = [
        threading.Thread(target=_run_thread, args=(engine, random.Random(f"{seed}/{number}"), f"{seed}-{number}"))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _run_thread(engine: Engine, rng: random.Random, name: str) -> None:
    leases: list[Lease] = []
    jobs: list[str] = []
    number = 0
    steps: list[Callable[[], dict[str, Any] | None]] = [
        lambda: _submit(engine, jobs),
        lambda: _claim(engine, name, leases),
        lambda: _report(engine, leases, rng),
        lambda: _report(engine, leases, rng),
        lambda: _cancel(engine, jobs, rng),
        lambda: _top_up(engine, f"{name}-{number}"),
    ]
    while True:
        number += 1
        step = rng.choices(steps, weights=[6, 6, 4, 4, 1, 1])[0]
        try:
            report = step()
        except Refusal:
            continue
        if report:
            write_json_line(report)


def _submit(engine: Engine, jobs: list[str]) -> dict[str, Any]:
    submitted = engine.execute(commands.Submit(tenant=TENANT, user=USER, workflow=WORKFLOW, input={"prompt": "a cat"}))
    jobs.append(submitted.job_id)
    return {"command": "submit", "job_id": submitted.job_id}


def _claim(engine: Engine, name: str, leases: list[Lease]) -> dict[str, Any] | None:
    leased = engine.execute(commands.Claim(worker_id=name, kinds=(KIND,), count=2))
    leases.extend(one.lease for one in leased)
    return {"command": "claim", "leases": [one.lease for one in leased]} if leased else None


def _report(engine: Engine, leases: list[Lease], rng: random.Random) -> dict[str, Any] | None:
    if not leases:
        return None
    lease = leases.pop(rng.randrange(len(leases)))
    outcome = rng.choice(["completed", "completed", "failed", "requeued"])
    command: commands.Command = commands.Complete(lease=lease, output={"seen": lease.task_id})
    if outcome == "failed":
        command = commands.Fail(lease=lease, message="It broke.", retryable=True)
    elif outcome == "requeued":
        command = commands.Requeue(lease=lease, reason="spot notice")
    state = engine.execute(command)
    return None if state.skipped else {"command": "report", "lease": lease, "outcome": outcome}


def _cancel(engine: Engine, jobs: list[str], rng: random.Random) -> dict[str, Any] | None:
    if not jobs:
        return None
    job_id = jobs.pop(rng.randrange(len(jobs)))
    engine.execute(commands.Cancel(tenant=TENANT, job_id=job_id, grace_seconds=0))
    return {"command": "cancel", "job_id": job_id}


def _top_up(engine: Engine, key: str) -> dict[str, Any]:
    engine.execute(commands.TopUp(tenant=TENANT, user=USER, amount=7, idempotency_key=key))
    return {"command": "top_up", "key": key}


def open_database(database_url: str) -> None:
    """Wait for the start, then open a database that may not exist yet."""
    write_json_line("ready")
    sys.stdin.readline()
    with Engine.open(database_url):
        write_json_line("open")


PROGRAMS: dict[str, Callable[..., None]] = {"submit_many": submit_many, "live": run_forever}

if __name__ == "__main__":
    program, database_url, *arguments = sys.argv[1:]
    if program == "open_new":
        open_database(database_url)
    else:
        with Engine.open(database_url) as opened:
            PROGRAMS[program](opened, *arguments)
