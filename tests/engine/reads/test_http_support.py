"""What the HTTP edge leans on: quoted prices, previews, watchers, an idle house, and rows that are written early."""

import json
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from callsheet.config import Settings
from callsheet.core.model.commands import Claim, Complete, Heartbeat, OutputFile, PutTenant, Submit, TopUp
from callsheet.core.policy.engine_limits import Limits
from callsheet.engine import Engine
from callsheet.engine.loops.relay import Relay
from callsheet.engine.reads.synchronous import PositionedEvent
from tests.support.databases.database_pool import DatabasePool
from tests.support.databases.faulty_database import fail_once, faulty_engine
from tests.support.engine.engine_harness import TENANT, USER, EngineHarness, OpenHarness, set_up
from tests.support.wait import wait_until

PATIENT = Settings(poll_seconds=60)
HASHES = re.compile(r"[0-9a-f]{64}")


# -- quoted prices


def test_a_quoted_price_is_reserved_and_settled_in_place_of_the_workflows(harness: EngineHarness) -> None:
    job = harness.submit_job(price=2)
    harness.workflow(price=50)
    assert harness.job(job).price == 2
    harness.finish(job)
    assert harness.ledger(job) == [("reserve", -2, 0), ("consume", 0, 2)]


def test_a_quote_of_nothing_is_a_price(harness: EngineHarness) -> None:
    job = harness.submit_job(price=0)
    harness.finish(job)
    assert (harness.job(job).price, harness.ledger(job)) == (0, [])


@pytest.mark.parametrize("price", [-1, 10**12 + 1])
def test_a_price_that_cannot_be_is_refused(harness: EngineHarness, price: int) -> None:
    assert harness.expect_refusal(harness.submission(price=price)).code == "out_of_range"


def test_a_quote_that_the_wallet_cannot_pay_is_refused(harness: EngineHarness) -> None:
    assert harness.expect_refusal(harness.submission(price=101)).code == "insufficient_credits"
    assert harness.balance() == 100


def test_the_same_key_finds_the_same_job_whatever_was_quoted(harness: EngineHarness) -> None:
    first = harness.submit(price=2, idempotency_key="k")
    again = harness.submit(price=9, idempotency_key="k")
    assert (again.job_id, again.price, again.replay) == (first.job_id, 2, True)


# -- previews


def progress_events(harness: EngineHarness, job: str) -> list[dict[str, Any]]:
    events = harness.reads.events(job)
    return [json.loads(event.data or "{}") for event in events if event.type == "task.progressed"]


def test_a_preview_is_reported_with_the_progress(harness: EngineHarness) -> None:
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.heartbeat(lease, progress=10)
    harness.heartbeat(lease, progress=20, message="Half.", preview=1)
    assert progress_events(harness, job) == [
        {"progress": 10, "message": None}, {"progress": 20, "message": "Half.", "preview": 1},
    ]  # fmt: skip


def test_a_preview_alone_is_reported_and_keeps_the_progress(harness: EngineHarness) -> None:
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.heartbeat(lease, progress=30, message="Here.")
    harness.heartbeat(lease, preview=7)
    assert progress_events(harness, job)[-1] == {"progress": 30, "message": None, "preview": 7}
    assert (harness.tasks(job)[0].progress, harness.tasks(job)[0].message) == (30, "Here.")


def test_a_tick_without_news_prints_nothing(harness: EngineHarness) -> None:
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.heartbeat(lease)
    assert progress_events(harness, job) == []


# -- watchers


def test_watchers_are_called_after_every_commit_and_for_nothing_else(harness: EngineHarness) -> None:
    seen: list[int] = []
    harness.engine.commit_listeners.append(
        lambda: seen.append(len(harness.reads.fetch("tenants", ids=["w1", "w2", "w3"])))
    )
    harness.tenant("w1")
    harness.tenant("w2")
    assert seen == [1, 2], "what they are told of is there"
    harness.expect_refusal(PutTenant(tenant="bad name"))
    assert harness.claim() == []
    harness.tenant("w2")
    assert seen == [1, 2]
    harness.engine.execute_many([PutTenant(tenant="w3"), PutTenant(tenant="w4")])
    assert seen == [1, 2, 3], "once for a batch"


def test_watchers_hear_of_commits_of_another_server(database_pool: DatabasePool) -> None:
    """Only PostgreSQL passes it on; with a poll of a minute, only a notification can have."""
    url = database_pool.acquire()
    with Engine.open(url, PATIENT) as here, Engine.open(url, PATIENT) as there:
        heard = threading.Event()
        here.commit_listeners.append(heard.set)
        numbers = iter(range(10_000))

        def told_of_it() -> bool:
            there.execute(PutTenant(tenant=f"there-{next(numbers)}"))
            return heard.is_set()

        wait_until(told_of_it)
        assert heard.is_set()
    database_pool.release(url)


# -- an idle house


def test_a_relay_writes_nothing_while_there_is_nothing_new(harness: EngineHarness) -> None:
    commits: list[None] = []
    got: list[PositionedEvent] = []

    def consume(events: Sequence[PositionedEvent]) -> None:
        got.extend(events)

    job = harness.submit_job()
    harness.finish(job)
    expected = len(harness.reads.events(job))
    with faulty_engine(harness.database, lambda: commits.append(None)) as engine:
        relay = Relay(engine, "log", "me", consume)
        wait_until(lambda: relay.run_once(0) or len(got) >= expected)
        wait_until(lambda: not relay.run_once(0) and len(got) >= expected)
        busy = len(commits)
        assert busy >= 2
        assert [relay.run_once(0) for _ in range(20)] == [0] * 20
        assert len(commits) == busy
        harness.submit_job()
        wait_until(lambda: relay.run_once(0))
        assert len(commits) > busy


def test_a_second_relay_of_the_same_name_stays_idle_too(harness: EngineHarness) -> None:
    commits: list[None] = []
    got: list[PositionedEvent] = []
    harness.submit_job()
    with faulty_engine(harness.database, lambda: commits.append(None)) as engine:
        relays = [Relay(engine, "log", name, got.extend) for name in ("one", "two")]
        wait_until(lambda: got or relays[0].run_once(0))
        for relay in relays:
            relay.run_once(0)
        before = len(commits)
        assert [relay.run_once(0) for relay in relays * 10] == [0] * 20
        assert len(commits) == before
        assert len(got) == len({placed.place for placed in got})


# -- rows that are written before the batch ends


def run_batches(harness: EngineHarness) -> dict[str, list[str]]:
    """Live a short life in large batches; return every row, with hashes of random tokens made alike."""
    set_up(harness)
    ids = [f"0197{n:04x}-0000-7000-8000-{n:012x}" for n in range(1, 13)]
    asked: list[Any] = [Submit(tenant=TENANT, user=USER, workflow="sketch", input={"n": n}, id=name)
                        for n, name in enumerate(ids)]  # fmt: skip
    asked[3:3] = [Submit(tenant=TENANT, user=USER, workflow="nowhere"), TopUp(tenant=TENANT, user="x", amount=-1)]
    harness.engine.execute_many(asked)
    leased = harness.claim(count=12)
    beats = [Heartbeat(lease=one.lease, progress=n, message=str(n)) for n, one in enumerate(leased)]
    harness.engine.execute_many(beats)
    made = (OutputFile(1, "a.png", "image/png", 1, "c" * 64),)
    ends = [Complete(lease=one.lease, output=n, files=made) for n, one in enumerate(leased)]
    ends[5:5] = [Complete(lease=leased[0].lease, delivered=0), Complete(lease=leased[1].lease, output=float("nan"))]
    harness.engine.execute_many(ends)
    found = harness.snapshot()
    del found["event"], found["audit"]  # numbered by the database and by chance: looked at below
    facts = [repr(event) for name in ids for event in harness.reads.events(name)]
    return {table: [HASHES.sub("#", row) for row in rows] for table, rows in found.items()} | {"event": facts}


@pytest.fixture
def second_database(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Any:
    """Another database of the same kind."""
    if not database_url.startswith("postgres"):
        yield str(tmp_path / "second.db")
        return
    database_pool: DatabasePool = request.getfixturevalue("database_pool")
    url = database_pool.acquire()
    yield url
    database_pool.release(url)


def settings(flush_every: int) -> Settings:
    return Settings(limits=Limits(flush_every=flush_every), database_retry_seconds=5)


def test_rows_written_early_are_the_same_rows(database_url: str, second_database: str) -> None:
    with EngineHarness(database_url, settings(2)) as early, EngineHarness(second_database, settings(10**9)) as late:
        first, other = run_batches(early), run_batches(late)
        assert first == other
        assert len(first["event"]) == 12 * 8
        assert (len(first["file"]), len(first["document"])) == (12, 24)
        assert early.broken() == late.broken() == []


@pytest.mark.parametrize("flush_every", [1, 2, 10**9])
def test_a_batch_that_is_written_early_is_committed_once(open_harness: OpenHarness, flush_every: int) -> None:
    """Written twice, its rows would be refused, and each command would be tried again alone."""
    harness = open_harness(settings(flush_every))
    commits: list[None] = []
    with faulty_engine(harness.database, lambda: commits.append(None), settings(flush_every)) as engine:
        made = engine.execute_many([harness.submission(input=n) for n in range(9)])
    assert len(commits) == 1
    assert [harness.events(one.job_id) for one in made] == [["job.created"]] * 9


@pytest.mark.parametrize("flush_every", [1, 2, 10**9])
def test_a_batch_whose_commit_was_cut_leaves_nothing_that_was_written_early(
    open_harness: OpenHarness, flush_every: int
) -> None:
    harness = open_harness(settings(flush_every))
    with faulty_engine(harness.database, fail_once("before"), settings(flush_every)) as engine:
        made = engine.execute_many([harness.submission(input=n) for n in range(9)])
    jobs = [one.job_id for one in made]
    assert len(set(jobs)) == 9
    assert [len(harness.reads.documents(job)) for job in jobs] == [1] * 9
    assert [harness.events(job) for job in jobs] == [["job.created"]] * 9
    assert len(harness.engine.execute(Claim(worker_id="w", kinds=("draw",), count=20))) == 9
