"""Objects of an attempt that ended without reporting them are deleted at once, in a folder and in a bucket."""

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from callsheet.blobs import object_keys
from callsheet.blobs.base import Blobs, StorageUnavailableError
from callsheet.blobs.local import LocalBlobs
from callsheet.core.model import commands as c
from callsheet.core.model.commands import Lease, OutputFile
from callsheet.core.policy.storage_quota import DiscardedOutputs
from callsheet.engine.loops.discarded_outputs import DiscardedOutputDeletion
from tests.support.doubles import blob_stores
from tests.support.engine.engine_harness import TENANT, EngineHarness

FILES = tuple(OutputFile(no, "a.png", "image/png", 4, "a" * 64) for no in (1, 2))


@pytest.fixture(params=["folder", "s3 double"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Blobs]:
    if request.param == "folder":
        yield LocalBlobs(tmp_path / "files")
        return
    with blob_stores.double() as store:
        yield store.blobs


def keys_of(lease: Lease) -> list[str]:
    attempt = (TENANT, lease.job_id, lease.task_id, lease.attempt)
    return [*(object_keys.output_key(*attempt, file.no) for file in FILES), object_keys.preview_key(*attempt)]


def upload(harness: EngineHarness, blobs: Blobs, lease: Lease) -> None:
    """Announce and store two files and a preview."""
    harness.do(c.AnnounceOutputs(lease=lease, files=FILES, preview_bytes=4))
    for key in keys_of(lease):
        blobs.put(key, b"body")


def stored_keys(blobs: Blobs) -> list[str]:
    return [entry.key for entry in blobs.list("", "", 100)]


ENDS: dict[str, Callable[[EngineHarness, Lease], object]] = {
    "cancel": lambda harness, lease: harness.cancel(lease.job_id, grace_seconds=0),
    "failed attempt": lambda harness, lease: harness.fail(lease),
    "lost lease": lambda harness, _: harness.advance(100_000),
    "requeue": lambda harness, lease: harness.requeue(lease),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_attempt_that_ends_without_a_result_frees_its_bytes_and_no_others(
    harness: EngineHarness, blobs: Blobs, end: str
) -> None:
    loop = DiscardedOutputDeletion(harness.engine.discarded_outputs, blobs)
    harness.submit_job()
    completed = harness.claim_one()
    upload(harness, blobs, completed)
    harness.do(c.Complete(lease=completed, files=FILES))
    harness.submit_job()
    ended = harness.claim_one(worker="w2")
    upload(harness, blobs, ended)
    ENDS[end](harness, ended)
    harness.submit_job()
    live = harness.claim_one(worker="w3")
    upload(harness, blobs, live)
    assert loop.run_once(0) == 2
    assert stored_keys(blobs) == sorted([*keys_of(completed)[:2], *keys_of(live)])
    assert loop.run_once(0) == 0


def test_the_next_attempt_of_the_same_task_keeps_its_bytes(harness: EngineHarness, blobs: Blobs) -> None:
    harness.submit_job()
    first = harness.claim_one()
    upload(harness, blobs, first)
    harness.requeue(first)
    second = harness.claim_one()
    upload(harness, blobs, second)
    DiscardedOutputDeletion(harness.engine.discarded_outputs, blobs).run_once(0)
    assert stored_keys(blobs) == sorted(keys_of(second))


class FailingBlobs:
    """A storage that fails once."""

    def __init__(self) -> None:
        self.failures = 1
        self.deleted: list[str] = []

    def delete(self, keys: list[str]) -> None:
        if self.failures:
            self.failures -= 1
            raise StorageUnavailableError("no answer")
        self.deleted += keys


def test_objects_are_deleted_later_if_the_storage_does_not_answer() -> None:
    outputs = [DiscardedOutputs("acme", "job", "task", attempt, ("1",)) for attempt in (1, 2, 3)]
    waiting, blobs = deque(outputs), FailingBlobs()
    loop = DiscardedOutputDeletion(waiting, blobs, page=2)  # type: ignore[arg-type]
    with pytest.raises(StorageUnavailableError):
        loop.run_once(0)
    assert list(waiting) == outputs
    assert [loop.run_once(0) for _ in range(3)] == [2, 1, 0]
    assert blobs.deleted == [f"acme/jobs/job/task/{attempt}/1" for attempt in (1, 2, 3)]
