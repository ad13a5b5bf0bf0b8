"""Files that a task hands in: what was checked when it was put is not read again, and one looks for all who ask."""

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
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

MEGABYTE = 1024 * 1024
FILM = b"\x89PNG\r\n\x1a\n" + random.Random(8).randbytes(8 * MEGABYTE)


@pytest.fixture
def sandbox(live_server: LiveServer) -> WorkerSandbox:
    return WorkerSandbox(live_server)


# -- read once


def complete_and_count_bytes(
    task: dict[str, Any], http_worker: HttpWorker, made: dict[str, Any], status: int = 200
) -> int:
    """Complete a task; return how many bytes were read for it."""
    before = bytes_read()
    expect_json(http_worker.post_lease("complete", task, files=[made]), status)
    return bytes_read() - before


def test_an_uploaded_file_is_reported_without_reading_it_again(sandbox: WorkerSandbox) -> None:
    # R243
    sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    assert complete_and_count_bytes(task, http_worker, http_worker.put(task, FILM)) < MEGABYTE


def test_what_was_touched_since_is_read_and_what_was_changed_is_found(sandbox: WorkerSandbox) -> None:
    sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    made = http_worker.put(task, FILM)
    lease = task["lease"]
    path = sandbox.live_server.blobs.path(f"default/jobs/{lease['job_id']}/{lease['task_id']}/{lease['attempt']}/1")
    path.write_bytes(bytes(reversed(FILM)))
    assert complete_and_count_bytes(task, http_worker, made, 422) >= len(FILM)
    path.write_bytes(FILM)
    assert complete_and_count_bytes(task, http_worker, made) >= len(FILM)


def test_bytes_that_were_checked_cannot_be_changed_by_an_address_of_ours(sandbox: WorkerSandbox) -> None:
    sandbox.submit()
    http_worker = sandbox.http_worker()
    (task,) = http_worker.claim()
    made = http_worker.put(task, FILM)
    for other in (made, output_file_of(bytes(reversed(FILM)))):
        grant = expect_json(http_worker.post_lease("files", task, uploads=[other]))["uploads"][0]["upload"]
        body = FILM if other == made else bytes(reversed(FILM))
        assert http_worker.http.put(grant["url"], headers=grant["headers"], content=body).status_code == 412
    preview = expect_json(http_worker.post_lease("files", task, preview=True))["preview"]
    assert http_worker.http.put(preview["url"], headers=preview["headers"], content=b"small").status_code == 204
    assert complete_and_count_bytes(task, http_worker, made) < MEGABYTE


# -- one look for all


@pytest.fixture
def double() -> Iterator[S3Double]:
    with S3Double() as made:
        yield made


@pytest.fixture
def bucket(double: S3Double) -> Iterator[S3Blobs]:
    blobs = open_s3_blobs(double.endpoint, REGION, S3Credentials(ACCESS, SECRET))
    assert blobs.weaknesses() == ()
    yield blobs
    blobs.close()


class Report:
    """A task whose file lies in the bucket, and what says so."""

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

    def check(self, body: bytes = b"a film") -> "asyncio.Task[None]":
        made = msgspec.convert(output_file_of(body), OutputFile)
        return asyncio.create_task(self.payloads.verify_files(self.task, [made]))

    @property
    def lookups(self) -> int:
        return [method for method, _ in self.double.requests].count("HEAD")

    async def twice(self, body: bytes = b"a film") -> list[Any]:
        """Report the same twice, the second time while the first one is looked at."""
        self.double.fail("hung", method="HEAD")
        both = self.check(body), self.check(body)
        await self.hangs()
        self.double.release.set()
        return list(await asyncio.gather(*both, return_exceptions=True))

    async def hangs(self) -> None:
        """Wait until a look has begun, and does not end."""
        await asyncio.to_thread(wait_until, lambda: self.lookups == 1)


@pytest.fixture
def task_report(sandbox: WorkerSandbox, bucket: S3Blobs, double: S3Double) -> Report:
    return Report(sandbox, bucket, double)


def test_a_report_and_its_repeat_are_looked_at_once(task_report: Report) -> None:
    assert asyncio.run(task_report.twice()) == [None, None]
    assert task_report.lookups == 1

    async def later() -> None:
        await task_report.check()

    asyncio.run(later())
    assert task_report.lookups == 2, "what has ended is nobody's answer any more"


def test_whoever_waits_hears_what_was_found(task_report: Report) -> None:
    found = asyncio.run(task_report.twice(b"a lie!"))
    assert [(type(one), one.code) for one in found] == [(BadInput, "digest_mismatch")] * 2
    assert task_report.lookups == 1


def test_another_report_waits_and_is_looked_at_for_itself(task_report: Report) -> None:
    task_report.double.fail("hung", method="HEAD")

    async def two() -> list[Any]:
        true, lie = task_report.check(), task_report.check(b"a lie!")
        await task_report.hangs()
        assert not lie.done()
        task_report.double.release.set()
        return list(await asyncio.gather(true, lie, return_exceptions=True))

    first, second = asyncio.run(two())
    assert (first, second.code, task_report.lookups) == (None, "digest_mismatch", 2)


def test_whoever_goes_away_does_not_take_the_answer_with_him(task_report: Report) -> None:
    task_report.double.fail("hung", method="HEAD")

    async def two() -> None:
        gone, left = task_report.check(), task_report.check()
        await task_report.hangs()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        task_report.double.release.set()
        await left

    asyncio.run(two())
    assert task_report.lookups == 1


def test_two_loops_share_one_look(task_report: Report) -> None:
    """Workers of the same process each have a loop of their own."""
    task_report.double.fail("hung", method="HEAD")
    waits = threading.Event()

    async def another() -> None:
        check = task_report.check()
        await asyncio.sleep(0)  # until it waits
        waits.set()
        await check

    async def two() -> None:
        check = task_report.check()
        await task_report.hangs()
        other = asyncio.create_task(asyncio.to_thread(asyncio.run, another()))
        await asyncio.to_thread(waits.wait, 30)
        task_report.double.release.set()
        await asyncio.gather(check, other)

    asyncio.run(two())
    assert (waits.is_set(), task_report.lookups) == (True, 1)
