"""Storage quotas: bytes count from their announcement, every end of an attempt releases them, no limit is exceeded.

The fixture of the harness checks every rule of `verify` after each test.
"""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from callsheet.blobs import object_keys
from callsheet.core.model import commands as c
from callsheet.core.model.commands import Lease, OutputFile
from callsheet.core.model.errors import Conflict, RateLimited
from callsheet.core.model.rows import File, StorageUsage
from callsheet.core.policy.engine_limits import Limits
from callsheet.settings import Settings
from tests.support.engine.engine_harness import TENANT, EngineHarness, OpenHarness, stage

FILES = (OutputFile(1, "a.png", "image/png", 10, "a" * 64), OutputFile(2, "b.png", "image/png", 5, "b" * 64))
PREVIEW_BYTES = 3
ANNOUNCED_BYTES = 18


def usage(harness: EngineHarness, tenant: str = TENANT) -> tuple[int, int]:
    """Return the stored and the pending bytes of a tenant."""
    found = StorageUsage(*harness.reads.fetch("usage_of_tenant", id=tenant)[0])
    return found.stored_bytes, found.pending_bytes


def upload(size: int, user: str = "ada") -> c.CreateUpload:
    return c.CreateUpload(tenant=TENANT, user=user, name="a.png", media_type="image/png", bytes=size, sha256="c" * 64)


def announce(harness: EngineHarness, lease: Lease, *files: OutputFile, preview_bytes: int = 0) -> None:
    harness.do(c.AnnounceOutputs(lease=lease, files=files, preview_bytes=preview_bytes))


def lease_with_announcement(harness: EngineHarness) -> Lease:
    """Submit a job, claim its task, and announce two files and a preview."""
    harness.submit_job()
    lease = harness.claim_one()
    announce(harness, lease, *FILES, preview_bytes=PREVIEW_BYTES)
    assert usage(harness)[1] == ANNOUNCED_BYTES
    return lease


def discarded(harness: EngineHarness) -> list[tuple[int, tuple[str, ...]]]:
    """Return the attempts whose objects are to be deleted, and their names."""
    return [(one.attempt, one.names) for one in harness.engine.discarded_outputs]


@pytest.fixture
def limited(open_harness: OpenHarness) -> Callable[..., EngineHarness]:
    """Opens a harness with limits."""
    return lambda **limits: open_harness(Settings(limits=Limits(**limits), database_retry_seconds=5))


# -- uploads


def test_an_upload_is_pending_until_it_is_finished_and_stored_until_it_is_deleted(harness: EngineHarness) -> None:
    first, second = (harness.do(upload(size)) for size in (100, 11))
    assert usage(harness) == (0, 111)
    for _ in range(2):  # a repetition counts nothing twice
        harness.do(c.FinishUpload(tenant=TENANT, file_id=first.id))
        assert usage(harness) == (100, 11)
    harness.do(c.DeleteFiles(tenant=TENANT, file_ids=(second.id,)))
    assert usage(harness) == (100, 0)
    harness.do(c.DeleteFiles(tenant=TENANT, file_ids=(first.id,)))
    assert usage(harness) == (0, 0)


def test_an_expired_upload_is_no_longer_pending(harness: EngineHarness) -> None:
    expired = harness.do(upload(100))
    harness.clock.advance(86_401)
    harness.do(c.DeleteFiles(file_ids=(expired.id,), requested_by="retention"))
    assert usage(harness) == (0, 0)


def test_uploads_stop_at_the_quota_of_the_tenant_and_the_error_names_it(harness: EngineHarness) -> None:
    harness.tenant(storage_bytes_max=100)
    harness.do(c.FinishUpload(tenant=TENANT, file_id=harness.do(upload(60)).id))
    harness.do(upload(40))
    refusal = harness.expect_refusal(upload(1))
    assert (type(refusal), refusal.code) == (Conflict, "storage_quota_exceeded")
    assert refusal.details == {"limit": "storage_bytes_max", "used": 100, "requested": 1, "max": 100}
    assert refusal.message == (
        "This tenant has stored 60 bytes and announced 40; 1 more would exceed its limit of 100 (storage_bytes_max): "
        "delete files, or ask the operator for a higher limit."
    )
    harness.do(upload(0))
    harness.tenant("other")
    harness.do(replace(upload(101), tenant="other"))


def test_the_quota_of_the_server_applies_to_tenants_without_their_own(limited: Callable[..., EngineHarness]) -> None:
    harness = limited(storage_bytes_max=50)
    assert harness.expect_refusal(upload(51)).details["max"] == 50
    harness.tenant(storage_bytes_max=60)
    harness.do(upload(51))
    harness.tenant(storage_bytes_max=None)
    assert harness.expect_refusal(upload(1)).code == "storage_quota_exceeded"
    harness.tenant(storage_bytes_max=0)
    assert harness.expect_refusal(upload(1)).details["max"] == 0


def test_pending_bytes_have_their_own_limit_which_passes(limited: Callable[..., EngineHarness]) -> None:
    harness = limited(pending_bytes_max=100)
    first = harness.do(upload(70))
    refusal = harness.expect_refusal(upload(31))
    assert (type(refusal), refusal.code) == (RateLimited, "too_many_pending_bytes")
    assert refusal.details == {"limit": "pending_bytes_max", "used": 70, "requested": 31, "max": 100}
    harness.do(c.FinishUpload(tenant=TENANT, file_id=first.id))
    harness.do(upload(100))
    too_large = harness.expect_refusal(upload(101))
    assert (too_large.code, too_large.details["limit"]) == ("storage_quota_exceeded", "pending_bytes_max")


# -- outputs


def test_an_announcement_counts_each_object_once(harness: EngineHarness) -> None:
    job = harness.submit_job()
    lease = harness.claim_one()
    for _ in range(2):
        announce(harness, lease, *FILES, preview_bytes=PREVIEW_BYTES)
        assert (usage(harness), harness.job(job).output_bytes) == ((0, 18), 18)
    announce(harness, lease, OutputFile(2, "b.png", "image/png", 6, "b" * 64))
    assert usage(harness) == (0, 19)


def complete_all(harness: EngineHarness, lease: Lease) -> None:
    harness.do(c.Complete(lease=lease, files=FILES))


def complete_one(harness: EngineHarness, lease: Lease) -> None:
    harness.do(c.Complete(lease=lease, files=FILES[1:]))


def fail(harness: EngineHarness, lease: Lease) -> None:
    harness.fail(lease)


def fail_with_retry(harness: EngineHarness, lease: Lease) -> None:
    harness.fail(lease, retryable=True)


def requeue(harness: EngineHarness, lease: Lease) -> None:
    harness.requeue(lease)


def lose_lease(harness: EngineHarness, lease: Lease) -> None:
    harness.advance(100_000)
    assert harness.expect_refusal(c.Heartbeat(lease=lease)).code == "lease_lost"


def cancel(harness: EngineHarness, lease: Lease) -> None:
    harness.cancel(lease.job_id, grace_seconds=0)


def cancel_with_grace(harness: EngineHarness, lease: Lease) -> None:
    harness.cancel(lease.job_id, grace_seconds=5)
    assert usage(harness)[1] == ANNOUNCED_BYTES, "the worker may still report"
    harness.advance(6)


ENDS: list[tuple[Callable[[EngineHarness, Lease], None], int, tuple[str, ...]]] = [
    (complete_all, 15, ("preview",)),
    (complete_one, 5, ("1", "preview")),
    *((end, 0, ("1", "2", "preview"))
      for end in (fail, fail_with_retry, requeue, lose_lease, cancel, cancel_with_grace)),
]  # fmt: skip


@pytest.mark.parametrize(("end", "stored", "names"), ENDS, ids=[end[0].__name__ for end in ENDS])
def test_every_end_of_an_attempt_releases_what_it_announced_and_discards_what_it_did_not_report(
    harness: EngineHarness, end: Callable[[EngineHarness, Lease], None], stored: int, names: tuple[str, ...]
) -> None:
    lease = lease_with_announcement(harness)
    end(harness, lease)
    assert usage(harness) == (stored, 0)
    assert discarded(harness) == [(1, names)]


def test_a_deleted_job_counts_nothing_and_its_objects_are_left_to_the_caller(harness: EngineHarness) -> None:
    lease = lease_with_announcement(harness)
    harness.delete(lease.job_id)
    assert (usage(harness), discarded(harness)) == ((0, 0), [])


def test_the_objects_of_the_next_attempt_are_not_discarded(harness: EngineHarness) -> None:
    lease = lease_with_announcement(harness)
    harness.requeue(lease)
    second = harness.claim_one()
    announce(harness, second, *FILES)
    assert harness.expect_refusal(c.AnnounceOutputs(lease=lease, files=FILES)).code == "lease_lost"
    assert discarded(harness) == [(1, ("1", "2", "preview"))]
    harness.do(c.Complete(lease=second, files=FILES))
    assert (usage(harness), discarded(harness)) == ((15, 0), [(1, ("1", "2", "preview"))])


def test_a_provider_that_completes_a_task_releases_what_its_worker_announced(harness: EngineHarness) -> None:
    lease = lease_with_announcement(harness)
    call = harness.do(c.RecordIntent(lease=lease, provider="fal")).call_id
    harness.do(c.HandOff(lease=lease, ref="ref-1"))
    harness.do(c.ReportOutcome(call_id=call, job_id=lease.job_id, outcome=c.Outcome("completed")))
    assert (usage(harness), discarded(harness)) == ((0, 0), [(1, ("1", "2", "preview"))])


def test_retention_and_deletion_of_a_job_free_its_outputs(harness: EngineHarness) -> None:
    harness.workflow(retention_seconds=10)
    lease = lease_with_announcement(harness)
    harness.do(c.Complete(lease=lease, files=FILES))
    harness.clock.advance(11)
    ids = tuple(File(*row).id for row in harness.reads.fetch("files_of", id=lease.job_id))
    harness.do(c.DeleteFiles(file_ids=ids[:1], requested_by="retention"))
    assert usage(harness) == (5, 0)
    harness.delete(lease.job_id)
    assert usage(harness) == (0, 0)


def test_a_job_that_is_completed_and_deleted_in_one_batch_stores_nothing(harness: EngineHarness) -> None:
    lease = lease_with_announcement(harness)
    results = harness.engine.execute_many(
        [c.Complete(lease=lease, files=FILES), c.Delete(tenant=TENANT, job_id=lease.job_id)]
    )
    assert not [result for result in results if isinstance(result, Exception)]
    assert usage(harness) == (0, 0)


def test_a_task_cannot_announce_or_report_more_than_the_quota(harness: EngineHarness) -> None:
    harness.tenant(storage_bytes_max=12)
    harness.submit_job()
    lease = harness.claim_one()
    announce(harness, lease, FILES[0])
    for refused in (c.AnnounceOutputs(lease=lease, files=FILES), c.Complete(lease=lease, files=FILES)):
        refusal = harness.expect_refusal(refused)
        assert (refusal.code, refusal.details["limit"]) == ("storage_quota_exceeded", "storage_bytes_max")
    harness.tenant(storage_bytes_max=1)
    harness.do(c.Complete(lease=lease, files=FILES[:1]))  # what was announced can always be reported
    assert usage(harness) == (10, 0)


def test_a_job_has_a_limit_of_output_bytes_over_all_its_tasks(limited: Callable[..., EngineHarness]) -> None:
    harness = limited(file_bytes_per_job_max=20)
    harness.workflow("film", stages=[stage("draw", tasks=2)])
    harness.submit_job("film")
    first, second = (one.lease for one in harness.claim(count=2))
    announce(harness, first, *FILES)
    refusal = harness.expect_refusal(c.AnnounceOutputs(lease=second, files=FILES))
    assert refusal.details == {"limit": "file_bytes_per_job_max", "used": 15, "requested": 15, "max": 20}
    announce(harness, second, FILES[1])
    harness.do(c.Complete(lease=first, files=FILES))
    assert harness.expect_refusal(c.Complete(lease=second, files=FILES)).code == "storage_quota_exceeded"
    harness.do(c.Complete(lease=second, files=FILES[1:]))


def test_a_file_with_an_invalid_number_name_or_size_is_not_announced(harness: EngineHarness) -> None:
    harness.submit_job()
    lease = harness.claim_one()
    for file, code in (
        (OutputFile(0, "a", "image/png", 1, "a" * 64), "out_of_range"),
        (OutputFile(65, "a", "image/png", 1, "a" * 64), "out_of_range"),
        (OutputFile(1, "../a", "image/png", 1, "a" * 64), "invalid_file"),
        (OutputFile(1, "a", "image/png", -1, "a" * 64), "out_of_range"),
    ):
        assert harness.expect_refusal(c.AnnounceOutputs(lease=lease, files=(file,))).code == code
    assert usage(harness) == (0, 0)


def test_discarded_objects_have_the_keys_of_their_attempt(harness: EngineHarness) -> None:
    lease = lease_with_announcement(harness)
    harness.fail(lease)
    (outputs,) = harness.engine.discarded_outputs
    attempt = (TENANT, lease.job_id, lease.task_id, 1)
    assert object_keys.discarded_keys(outputs) == [
        object_keys.output_key(*attempt, 1), object_keys.output_key(*attempt, 2), object_keys.preview_key(*attempt),
    ]  # fmt: skip
