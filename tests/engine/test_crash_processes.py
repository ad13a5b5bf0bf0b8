"""A server is killed at any moment: what it had answered is there, nothing is half done, and all of it can be ended."""

import random
import time
from typing import Any

from callsheet.core.clock import SECOND
from callsheet.core.machine import JOB
from tests.support.children import KIND, TENANT, USER
from tests.support.clocked import VirtualClock
from tests.support.processes import Child
from tests.support.racing import amiss
from tests.support.studio import Studio

ROUNDS = 4
ACKNOWLEDGED_MAX = 90


def furnished(place: str) -> None:
    with Studio(place) as studio:
        studio.tenant()
        studio.workflow(price=5)
        studio.top_up(100_000)


def later() -> VirtualClock:
    """Return a clock that shows tomorrow: every lease that the killed server had given has run out."""
    return VirtualClock(time.time_ns() // 1_000 + 86_400 * SECOND)


def lost(studio: Studio, told: dict[str, Any]) -> str | None:
    """Say what is missing of something that a killed server had answered."""
    did = told["did"]
    if did == "submit":
        found = studio.job(told["job_id"]).status in JOB.statuses and studio.read.documents(told["job_id"])
        return None if found else "no such job"
    if did == "claim":
        gone = [lease for lease in told["leases"] if not _attempt(studio, lease)]
        return f"no such leases: {gone}" if gone else None
    if did == "report":
        outcome = _attempt(studio, told["lease"])
        return None if outcome == told["outcome"] else f"the attempt is {outcome}"
    if did == "cancel":
        status = studio.status(told["job_id"])
        return None if status == "canceled" else f"the job is {status}"
    entries = studio.read.ledger(TENANT, USER, count=100_000)
    return None if any((entry.idem or "").endswith(f"/{told['key']}") for entry in entries) else "no such entry"


def _attempt(studio: Studio, lease: dict[str, Any]) -> str | None:
    attempts = [one for one in studio.read.attempts(lease["task_id"]) if one.no == lease["attempt"]]
    return attempts[0].outcome or "running" if attempts else None


def end_all(studio: Studio) -> list[str]:
    """Sweep, claim and complete until there is nothing left; return the statuses that jobs then have."""
    while studio.advance(600) + len(leased := studio.claim(KIND, count=500)):
        for one in leased:
            studio.complete(one.lease)
    connection = studio.database.connect(reading=True)
    try:
        return [str(row[0]) for row in connection.run("SELECT DISTINCT status FROM job ORDER BY status")]
    finally:
        connection.close()


def test_what_a_killed_server_had_answered_is_there_and_everything_can_be_ended(place):
    """H1, F16, R36, R104, R151, R153, R181, R273, R432: SIGKILL under load, several times, on one database."""
    furnished(place)
    chance = random.Random(20)
    told = []
    for number in range(ROUNDS):
        with Child("live", place, number) as child:
            told += child.killed_after(chance.randint(1, ACKNOWLEDGED_MAX))
    assert len(told) >= ROUNDS
    with Studio(place, clock=later()) as studio:
        assert [(one, why) for one in told if (why := lost(studio, one))] == []
        statuses = end_all(studio)
        assert set(statuses) <= {"completed", "failed", "canceled"}
        assert amiss(studio) == []
        assert studio.wallet().held == 0
