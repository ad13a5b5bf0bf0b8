"""A server is killed at any point: what it acknowledged is stored, nothing is half done, and every job can end."""

import random
import time
from typing import Any

from callsheet.core.model.clock import SECOND
from callsheet.core.model.state_machines import JOB
from tests.support.doubles.virtual_clock import VirtualClock
from tests.support.engine.engine_harness import EngineHarness
from tests.support.processes.child_process import Child
from tests.support.processes.child_programs import KIND, TENANT, USER

ROUNDS = 4
ACKNOWLEDGED_MAX = 90


def set_up(database_url: str) -> None:
    with EngineHarness(database_url) as harness:
        harness.tenant()
        harness.workflow(price=5)
        harness.top_up(100_000)


def clock_of_tomorrow() -> VirtualClock:
    """Return a clock that shows tomorrow: every lease of the killed server has expired."""
    return VirtualClock(time.time_ns() // 1_000 + 86_400 * SECOND)


def find_missing(harness: EngineHarness, answer: dict[str, Any]) -> str | None:
    """Return what is missing of an answer that a killed server acknowledged, or None."""
    command = answer["command"]
    if command == "submit":
        found = harness.job(answer["job_id"]).status in JOB.statuses and harness.reads.documents(answer["job_id"])
        return None if found else "no such job"
    if command == "claim":
        missing = [lease for lease in answer["leases"] if not _outcome(harness, lease)]
        return f"no such leases: {missing}" if missing else None
    if command == "report":
        outcome = _outcome(harness, answer["lease"])
        return None if outcome == answer["outcome"] else f"the attempt is {outcome}"
    if command == "cancel":
        status = harness.status(answer["job_id"])
        return None if status == "canceled" else f"the job is {status}"
    entries = harness.reads.ledger(TENANT, USER, count=100_000)
    return None if any((entry.dedup_key or "").endswith(f"/{answer['key']}") for entry in entries) else "no such entry"


def _outcome(harness: EngineHarness, lease: dict[str, Any]) -> str | None:
    attempts = [one for one in harness.reads.attempts(lease["task_id"]) if one.no == lease["attempt"]]
    return attempts[0].outcome or "running" if attempts else None


def finish_all(harness: EngineHarness) -> list[str]:
    """Sweep, claim and complete until nothing is left; return the statuses of all jobs."""
    while harness.advance(600) + len(leased := harness.claim(KIND, count=500)):
        for one in leased:
            harness.complete(one.lease)
    return [status for (status,) in harness.query("SELECT DISTINCT status FROM job ORDER BY status")]


def test_what_a_killed_server_acknowledged_is_stored_and_every_job_can_end(database_url):
    """H1, F16, R36, R104, R151, R153, R273, R432: SIGKILL under load, several times, on one database."""
    set_up(database_url)
    chance = random.Random(20)
    answers = []
    for number in range(ROUNDS):
        with Child("live", database_url, number) as child:
            answers += child.kill_after(chance.randint(1, ACKNOWLEDGED_MAX))
    assert len(answers) >= ROUNDS
    with EngineHarness(database_url, clock=clock_of_tomorrow()) as harness:
        assert [(one, why) for one in answers if (why := find_missing(harness, one))] == []
        statuses = finish_all(harness)
        assert set(statuses) <= {"completed", "failed", "canceled"}
        assert harness.find_violations() == []
        assert harness.wallet().reserved == 0
