"""Verification of output files: verified bytes are not read again, and equal reports share one lookup."""

import asyncio
import random
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from callsheet.blobs.s3.sigv4 import S3Credentials
from callsheet.blobs.s3.store import S3Blobs
from callsheet.core.model import commands, rows
from callsheet.core.model.commands import OutputFile
from callsheet.core.model.errors import BadInput
from callsheet.dispatch.task_payloads import TaskPayloads
from tests.http.worker_sandbox import HttpWorker, WorkerSandbox, expect_json, output_file_of
from tests.support.doubles.blob_stores import open_s3_blobs
from tests.support.doubles.s3_double import ACCESS, REGION, SECRET, S3Double
from tests.support.io_counter import bytes_read
from tests.support.wait import wait_until

MEGABYTE = 1024 * 1024
FILM = b"\x89PNG\r\n\x1a\n" + random.Random(8).randbytes(8 * MEGABYTE)


# -- verified bytes


def complete_and_count_bytes(
    task: dict[str, Any], http_worker: HttpWorker, file: dict[str, Any], status: int = 200
) -> int:
    """Complete a task and return the number of bytes read for it."""
    before = bytes_read()
    expect_json(http_worker.post_lease("complete", task, files=[file]), status)
    return bytes_read() - before


def test_an_uploaded_file_is_not_read_again_when_it_is_reported(sandbox: WorkerSandbox) -> None:
    sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    assert complete_and_count_bytes(task, http_worker, http_worker.put(task, FILM)) < MEGABYTE


def test_a_file_that_was_written_again_is_read_and_a_changed_one_is_refused(sandbox: WorkerSandbox) -> None:
    sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    uploaded = http_worker.put(task, FILM)
    lease = task["lease"]
    path = sandbox.live_server.blobs.path(f"default/jobs/{lease['job_id']}/{lease['task_id']}/{lease['attempt']}/1")
    path.write_bytes(bytes(reversed(FILM)))
    assert complete_and_count_bytes(task, http_worker, uploaded, 422) >= len(FILM)
    path.write_bytes(FILM)
    assert complete_and_count_bytes(task, http_worker, uploaded) >= len(FILM)


def test_a_completion_without_its_stored_file_is_refused_and_the_lease_stays(sandbox: WorkerSandbox) -> None:
    # H9
    sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    refused = expect_json(http_worker.post_lease("complete", task, files=[output_file_of(FILM)]), 422)
    assert refused["code"] == "file_not_uploaded"
    assert complete_and_count_bytes(task, http_worker, http_worker.put(task, FILM)) < MEGABYTE


def test_verified_bytes_cannot_be_changed_with_a_signed_url(sandbox: WorkerSandbox) -> None:
    sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    uploaded = http_worker.put(task, FILM)
    for other in (uploaded, output_file_of(bytes(reversed(FILM)))):
        grant = expect_json(http_worker.post_lease("files", task, uploads=[other]))["uploads"][0]["upload"]
        body = FILM if other == uploaded else bytes(reversed(FILM))
        assert http_worker.http.put(grant["url"], headers=grant["headers"], content=body).status_code == 412
    preview = expect_json(http_worker.post_lease("files", task, preview=True))["preview"]
    assert http_worker.http.put(preview["url"], headers=preview["headers"], content=b"small").status_code == 204
    assert complete_and_count_bytes(task, http_worker, uploaded) < MEGABYTE


# -- shared lookups


@pytest.fixture
def double() -> Iterator[S3Double]:
    with S3Double() as server:
        yield server


@pytest.fixture
def bucket(double: S3Double) -> Iterator[S3Blobs]:
    blobs = open_s3_blobs(double.endpoint, REGION, S3Credentials(ACCESS, SECRET))
    assert blobs.weaknesses() == ()
    yield blobs
    blobs.close()


class Report:
    """A leased task with a file in the bucket, and reports about this file."""

    def __init__(self, sandbox: WorkerSandbox, bucket: S3Blobs, double: S3Double) -> None:
        sandbox.submit()
        (leased,) = sandbox.live_server.engine.execute(commands.Claim(worker_id="w", kinds=(sandbox.kind,)))
        lease = leased.lease
        found = sandbox.live_server.engine.reads.fetch("task_of_job", id=lease.task_id, job=lease.job_id)
        self.task = rows.Task(*found[0])
        self.payloads = TaskPayloads(sandbox.live_server.engine, bucket)
        self.double = double
        bucket.put(f"default/jobs/{lease.job_id}/{lease.task_id}/{lease.attempt}/1", b"a film")
        double.requests.clear()

    def verify(self, body: bytes = b"a film") -> "asyncio.Task[None]":
        file = msgspec.convert(output_file_of(body), OutputFile)
        return asyncio.create_task(self.payloads.verify_files(self.task, [file]))

    @property
    def lookups(self) -> int:
        return [method for method, _ in self.double.requests].count("HEAD")

    async def verify_twice(self, body: bytes = b"a film") -> list[Any]:
        """Report the same file twice, the second time during the first lookup."""
        self.double.fail("hung", method="HEAD")
        both = self.verify(body), self.verify(body)
        await self.wait_for_lookup()
        self.double.release.set()
        return list(await asyncio.gather(*both, return_exceptions=True))

    async def wait_for_lookup(self) -> None:
        """Wait until a lookup has begun."""
        await asyncio.to_thread(wait_until, lambda: self.lookups == 1)


@pytest.fixture
def task_report(sandbox: WorkerSandbox, bucket: S3Blobs, double: S3Double) -> Report:
    return Report(sandbox, bucket, double)


def test_a_report_and_its_repetition_share_one_lookup(task_report: Report) -> None:
    assert asyncio.run(task_report.verify_twice()) == [None, None]
    assert task_report.lookups == 1

    async def later() -> None:
        await task_report.verify()

    asyncio.run(later())
    assert task_report.lookups == 2, "a later report does not use the ended lookup"


def test_all_waiting_reports_get_the_result_of_the_lookup(task_report: Report) -> None:
    found = asyncio.run(task_report.verify_twice(b"other!"))
    assert [(type(one), one.code) for one in found] == [(BadInput, "digest_mismatch")] * 2
    assert task_report.lookups == 1


def test_a_different_report_waits_and_has_its_own_lookup(task_report: Report) -> None:
    task_report.double.fail("hung", method="HEAD")

    async def two() -> list[Any]:
        first, other = task_report.verify(), task_report.verify(b"other!")
        await task_report.wait_for_lookup()
        assert not other.done()
        task_report.double.release.set()
        return list(await asyncio.gather(first, other, return_exceptions=True))

    first, second = asyncio.run(two())
    assert (first, second.code, task_report.lookups) == (None, "digest_mismatch", 2)


def test_a_canceled_report_does_not_cancel_the_lookup_of_others(task_report: Report) -> None:
    task_report.double.fail("hung", method="HEAD")

    async def two() -> None:
        canceled, other = task_report.verify(), task_report.verify()
        await task_report.wait_for_lookup()
        canceled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await canceled
        task_report.double.release.set()
        await other

    asyncio.run(two())
    assert task_report.lookups == 1


def test_two_event_loops_share_one_lookup(task_report: Report) -> None:
    """Each worker of a process has its own event loop."""
    task_report.double.fail("hung", method="HEAD")
    is_waiting = threading.Event()

    async def another() -> None:
        verification = task_report.verify()
        await asyncio.sleep(0)  # until it waits
        is_waiting.set()
        await verification

    async def two() -> None:
        verification = task_report.verify()
        await task_report.wait_for_lookup()
        other = asyncio.create_task(asyncio.to_thread(asyncio.run, another()))
        await asyncio.to_thread(is_waiting.wait, 30)
        task_report.double.release.set()
        await asyncio.gather(verification, other)

    asyncio.run(two())
    assert (is_waiting.is_set(), task_report.lookups) == (True, 1)
