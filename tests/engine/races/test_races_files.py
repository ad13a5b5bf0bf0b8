"""Concurrent uploads and outputs of one tenant: no byte is counted twice or lost, and no quota is exceeded."""

from functools import partial
from typing import Any

from callsheet.core.model import commands as c
from callsheet.core.model.commands import Lease, OutputFile
from callsheet.core.model.errors import Refusal
from tests.support.engine.concurrency import refusals, run_concurrently, servers
from tests.support.engine.engine_harness import TENANT, EngineHarness, set_up

ROUNDS = 15
FILE = OutputFile(1, "a.png", "image/png", 5, "a" * 64)


def usage(harness: EngineHarness) -> tuple[int, int]:
    (row,) = harness.reads.fetch("usage_of_tenant", id=TENANT)
    return row[1], row[2]


def upload_repeatedly(harness: EngineHarness, user: str) -> list[Any]:
    """Create uploads of 7 bytes, and finish and delete some of them."""
    answers: list[Any] = []
    for number in range(ROUNDS):
        create = c.CreateUpload(
            tenant=TENANT, user=user, name="a.png", media_type="image/png", bytes=7, sha256="c" * 64
        )
        (file,) = harness.engine.execute_many([create])
        answers.append(file)
        if isinstance(file, Refusal):
            continue
        if number % 3:
            harness.do(c.FinishUpload(tenant=TENANT, file_id=file.id))
        if number % 2:
            harness.do(c.DeleteFiles(tenant=TENANT, file_ids=(file.id,)))
    return answers


def complete_all(harness: EngineHarness, leases: list[Lease]) -> list[Any]:
    return [
        answer
        for lease in leases
        for answer in harness.engine.execute_many(
            [c.AnnounceOutputs(lease=lease, files=(FILE,)), c.Complete(lease=lease, files=(FILE,))]
        )
    ]


def run_race(database_url: str, storage_bytes_max: int | None) -> tuple[list[Any], tuple[int, int]]:
    """Upload and complete tasks on four servers at once; return the answers and the usage."""
    with servers(database_url, 4) as harnesses:  # which verifies all rules at the end
        first = set_up(harnesses[0])
        first.top_up(1_000)
        leases: list[Lease] = []
        for _ in range(ROUNDS):
            first.submit_job()
            leases.append(first.claim_one())
        first.tenant(storage_bytes_max=storage_bytes_max)
        answers = run_concurrently(
            *(partial(upload_repeatedly, harness, f"user-{number}") for number, harness in enumerate(harnesses)),
            partial(complete_all, harnesses[1], leases),
        )
        return [answer for many in answers for answer in many], usage(first)


def test_concurrent_changes_of_the_usage_lose_nothing(database_url):
    answers, (stored, pending) = run_race(database_url, None)
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    assert stored >= ROUNDS * FILE.bytes
    assert pending % 7 == 0


def test_concurrent_uploads_and_outputs_never_exceed_the_quota(database_url):
    answers, (stored, pending) = run_race(database_url, 100)
    assert set(refusals(answers)) == {"storage_quota_exceeded"}
    assert 85 < stored + pending <= 100
