"""Files that a task hands in: what was checked when it was put is not read again, and one looks for all who ask."""

import asyncio
import random
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from callsheet.blobs.s3 import S3Blobs
from callsheet.blobs.sigv4 import S3Keys
from callsheet.core import commands, rows
from callsheet.core.commands import Made
from callsheet.http.handing import Handing
from callsheet.http.problem import Problem
from tests.http.yard import Machine, Yard, made_of, said
from tests.support.reading import bytes_read
from tests.support.s3double import ACCESS, REGION, SECRET, Double
from tests.support.served import Served
from tests.support.stores import s3_at
from tests.support.waiting import wait_until

MEGABYTE = 1024 * 1024
FILM = b"\x89PNG\r\n\x1a\n" + random.Random(8).randbytes(8 * MEGABYTE)


@pytest.fixture
def yard(served: Served) -> Yard:
    return Yard(served)


# -- read once


def handed_in(task: dict[str, Any], machine: Machine, made: dict[str, Any], status: int = 200) -> int:
    """Complete a task; return how many bytes were read for it."""
    before = bytes_read()
    said(machine.say("complete", task, files=[made]), status)
    return bytes_read() - before


def test_what_was_put_is_handed_in_without_reading_it_again(yard: Yard) -> None:
    # R243
    yard.submit()
    machine = yard.machine()
    (task,) = machine.claim()
    assert handed_in(task, machine, machine.put(task, FILM)) < MEGABYTE


def test_what_was_touched_since_is_read_and_what_was_changed_is_found(yard: Yard) -> None:
    yard.submit()
    machine = yard.machine()
    (task,) = machine.claim()
    made = machine.put(task, FILM)
    lease = task["lease"]
    path = yard.served.blobs.path(f"default/jobs/{lease['job_id']}/{lease['task_id']}/{lease['attempt']}/1")
    path.write_bytes(bytes(reversed(FILM)))
    assert handed_in(task, machine, made, 422) >= len(FILM)
    path.write_bytes(FILM)
    assert handed_in(task, machine, made) >= len(FILM)


def test_bytes_that_were_checked_cannot_be_changed_by_an_address_of_ours(yard: Yard) -> None:
    yard.submit()
    machine = yard.machine()
    (task,) = machine.claim()
    made = machine.put(task, FILM)
    for other in (made, made_of(bytes(reversed(FILM)))):
        grant = said(machine.say("files", task, puts=[other]))["puts"][0]["put"]
        body = FILM if other == made else bytes(reversed(FILM))
        assert machine.http.put(grant["url"], headers=grant["headers"], content=body).status_code == 412
    preview = said(machine.say("files", task, preview=True))["preview"]
    assert machine.http.put(preview["url"], headers=preview["headers"], content=b"small").status_code == 204
    assert handed_in(task, machine, made) < MEGABYTE


# -- one look for all


@pytest.fixture
def double() -> Iterator[Double]:
    with Double() as made:
        yield made


@pytest.fixture
def bucket(double: Double) -> Iterator[S3Blobs]:
    blobs = s3_at(double.endpoint, REGION, S3Keys(ACCESS, SECRET))
    assert blobs.weaknesses() == ()
    yield blobs
    blobs.close()


class Report:
    """A task whose file lies in the bucket, and what says so."""

    def __init__(self, yard: Yard, bucket: S3Blobs, double: Double) -> None:
        yard.submit()
        (leased,) = yard.served.engine.execute(commands.Claim(worker_id="w", kinds=(yard.kind,)))
        lease = leased.lease
        found = yard.served.engine.read.fetch("task_of_job", id=lease.task_id, job=lease.job_id)
        self.task = rows.Task(*found[0])
        self.handing = Handing(yard.served.engine, bucket)
        self.double = double
        bucket.put(f"default/jobs/{lease.job_id}/{lease.task_id}/{lease.attempt}/1", b"a film")
        double.seen.clear()

    def check(self, body: bytes = b"a film") -> "asyncio.Task[None]":
        made = msgspec.convert(made_of(body), Made)
        return asyncio.create_task(self.handing.check(self.task, [made]))

    @property
    def looks(self) -> int:
        return [method for method, _ in self.double.seen].count("HEAD")

    async def twice(self, body: bytes = b"a film") -> list[Any]:
        """Report the same twice, the second time while the first one is looked at."""
        self.double.fail("hung", method="HEAD")
        both = self.check(body), self.check(body)
        await self.hangs()
        self.double.release.set()
        return list(await asyncio.gather(*both, return_exceptions=True))

    async def hangs(self) -> None:
        """Wait until a look has begun, and does not end."""
        await asyncio.to_thread(wait_until, lambda: self.looks == 1)


@pytest.fixture
def report(yard: Yard, bucket: S3Blobs, double: Double) -> Report:
    return Report(yard, bucket, double)


def test_a_report_and_its_repeat_are_looked_at_once(report: Report) -> None:
    assert asyncio.run(report.twice()) == [None, None]
    assert report.looks == 1

    async def later() -> None:
        await report.check()

    asyncio.run(later())
    assert report.looks == 2, "what has ended is nobody's answer any more"


def test_whoever_waits_hears_what_was_found(report: Report) -> None:
    found = asyncio.run(report.twice(b"a lie!"))
    assert [(type(one), one.code) for one in found] == [(Problem, "digest_mismatch")] * 2
    assert report.looks == 1


def test_another_report_waits_and_is_looked_at_for_itself(report: Report) -> None:
    report.double.fail("hung", method="HEAD")

    async def two() -> list[Any]:
        true, lie = report.check(), report.check(b"a lie!")
        await report.hangs()
        assert not lie.done()
        report.double.release.set()
        return list(await asyncio.gather(true, lie, return_exceptions=True))

    first, second = asyncio.run(two())
    assert (first, second.code, report.looks) == (None, "digest_mismatch", 2)


def test_whoever_goes_away_does_not_take_the_answer_with_him(report: Report) -> None:
    report.double.fail("hung", method="HEAD")

    async def two() -> None:
        gone, left = report.check(), report.check()
        await report.hangs()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        report.double.release.set()
        await left

    asyncio.run(two())
    assert report.looks == 1


def test_two_loops_share_one_look(report: Report) -> None:
    """Workers of the same process each have a loop of their own."""
    report.double.fail("hung", method="HEAD")
    waits = threading.Event()

    async def another() -> None:
        check = report.check()
        await asyncio.sleep(0)  # until it waits
        waits.set()
        await check

    async def two() -> None:
        check = report.check()
        await report.hangs()
        other = asyncio.create_task(asyncio.to_thread(asyncio.run, another()))
        await asyncio.to_thread(waits.wait, 30)
        report.double.release.set()
        await asyncio.gather(check, other)

    asyncio.run(two())
    assert (waits.is_set(), report.looks) == (True, 1)
