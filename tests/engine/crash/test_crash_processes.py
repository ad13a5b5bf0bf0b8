"""A server is killed at any moment: what it had answered is there, nothing is half done, and all of it can be ended."""

import random
import time
from typing import Any

from callsheet.core.model.clock import SECOND
from callsheet.core.model.state_machines import JOB
from tests.support.doubles.virtual_clock import VirtualClock
from tests.support.engine.concurrency import find_violations
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
    """Return a clock that shows tomorrow: every lease that the killed server had given has run out."""
    return VirtualClock(time.time_ns() // 1_000 + 86_400 * SECOND)


def find_missing(harness: EngineHarness, answer: dict[str, Any]) -> str | None:
    """Say what is missing of something that a killed server had answered."""
    did = answer["did"]
    if did == "submit":
        found = harness.job(answer["job_id"]).status in JOB.statuses and harness.reads.documents(answer["job_id"])
        return None if found else "no such job"
    if did == "claim":
        gone = [lease for lease in answer["leases"] if not _attempt(harness, lease)]
        return f"no such leases: {gone}" if gone else None
    if did == "report":
        outcome = _attempt(harness, answer["lease"])
        return None if outcome == answer["outcome"] else f"the attempt is {outcome}"
    if did == "cancel":
        status = harness.status(answer["job_id"])
        return None if status == "canceled" else f"the job is {status}"
    entries = harness.reads.ledger(TENANT, USER, count=100_000)
    return None if any((entry.dedup_key or "").endswith(f"/{answer['key']}") for entry in entries) else "no such entry"


def _attempt(harness: EngineHarness, lease: dict[str, Any]) -> str | None:
    attempts = [one for one in harness.reads.attempts(lease["task_id"]) if one.no == lease["attempt"]]
    return attempts[0].outcome or "running" if attempts else None


def end_all(harness: EngineHarness) -> list[str]:
    """Sweep, claim and complete until there is nothing left; return the statuses that jobs then have."""
    while harness.advance(600) + len(leased := harness.claim(KIND, count=500)):
        for one in leased:
            harness.complete(one.lease)
    connection = harness.database.connect(reading=True)
    try:
        return [str(row[0]) for row in connection.run("SELECT DISTINCT status FROM job ORDER BY status")]
    finally:
        connection.close()


def test_what_a_killed_server_had_answered_is_there_and_everything_can_be_ended(database_url):
    """H1, F16, R36, R104, R151, R153, R181, R273, R432: SIGKILL under load, several times, on one database."""
    set_up(database_url)
    chance = random.Random(20)
    answer = []
    for number in range(ROUNDS):
        with Child("live", database_url, number) as child:
            answer += child.kill_after(chance.randint(1, ACKNOWLEDGED_MAX))
    assert len(answer) >= ROUNDS
    with EngineHarness(database_url, clock=clock_of_tomorrow()) as harness:
        assert [(one, why) for one in answer if (why := find_missing(harness, one))] == []
        statuses = end_all(harness)
        assert set(statuses) <= {"completed", "failed", "canceled"}
        assert find_violations(harness) == []
        assert harness.wallet().reserved == 0
