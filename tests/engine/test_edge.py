"""What the HTTP edge leans on: quoted prices, previews, watchers, an idle house, and rows that are written early."""

import json
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from callsheet.config import Settings
from callsheet.core.commands import Claim, Complete, Heartbeat, Made, PutTenant, Submit, TopUp
from callsheet.core.limits import Limits
from callsheet.engine import Engine
from callsheet.engine.loops import Relay
from callsheet.engine.reading import Placed
from tests.engine.conftest import OpenStudio, furnished
from tests.support.faulty import faulty_engine, once
from tests.support.places import Places
from tests.support.studio import TENANT, USER, Studio
from tests.support.waiting import wait_until

PATIENT = Settings(poll_seconds=60)
HASHES = re.compile(r"[0-9a-f]{64}")


# -- quoted prices


def test_a_quoted_price_is_reserved_and_settled_in_place_of_the_workflows(studio: Studio) -> None:
    job = studio.ask(price=2)
    studio.workflow(price=50)
    assert studio.job(job).price == 2
    studio.finish(job)
    assert studio.ledger(job) == [("reserve", -2, 0), ("consume", 0, 2)]


def test_a_quote_of_nothing_is_a_price(studio: Studio) -> None:
    job = studio.ask(price=0)
    studio.finish(job)
    assert (studio.job(job).price, studio.ledger(job)) == (0, [])


@pytest.mark.parametrize("price", [-1, 10**12 + 1])
def test_a_price_that_cannot_be_is_refused(studio: Studio, price: int) -> None:
    assert studio.refused(studio.submission(price=price)).code == "out_of_range"


def test_a_quote_that_the_wallet_cannot_pay_is_refused(studio: Studio) -> None:
    assert studio.refused(studio.submission(price=101)).code == "insufficient_credits"
    assert studio.balance() == 100


def test_the_same_key_finds_the_same_job_whatever_was_quoted(studio: Studio) -> None:
    first = studio.submit(price=2, idempotency_key="k")
    again = studio.submit(price=9, idempotency_key="k")
    assert (again.job_id, again.price, again.replay) == (first.job_id, 2, True)


# -- previews


def told(studio: Studio, job: str) -> list[dict[str, Any]]:
    events = studio.read.events(job)
    return [json.loads(event.data or "{}") for event in events if event.type == "task.progressed"]


def test_a_preview_is_told_with_the_progress(studio: Studio) -> None:
    job = studio.ask()
    lease = studio.take()
    studio.beat(lease, progress=10)
    studio.beat(lease, progress=20, message="Half.", preview=1)
    assert told(studio, job) == [
        {"progress": 10, "message": None}, {"progress": 20, "message": "Half.", "preview": 1},
    ]  # fmt: skip


def test_a_preview_alone_is_told_and_keeps_the_progress(studio: Studio) -> None:
    job = studio.ask()
    lease = studio.take()
    studio.beat(lease, progress=30, message="Here.")
    studio.beat(lease, preview=7)
    assert told(studio, job)[-1] == {"progress": 30, "message": None, "preview": 7}
    assert (studio.tasks(job)[0].progress, studio.tasks(job)[0].message) == (30, "Here.")


def test_a_beat_without_news_tells_nothing(studio: Studio) -> None:
    job = studio.ask()
    lease = studio.take()
    studio.beat(lease)
    assert told(studio, job) == []


# -- watchers


def test_watchers_are_called_after_every_commit_and_for_nothing_else(studio: Studio) -> None:
    seen: list[int] = []
    studio.engine.watchers.append(lambda: seen.append(len(studio.read.fetch("tenants", ids=["w1", "w2", "w3"]))))
    studio.tenant("w1")
    studio.tenant("w2")
    assert seen == [1, 2], "what they are told of is there"
    studio.refused(PutTenant(tenant="bad name"))
    assert studio.claim() == []
    studio.tenant("w2")
    assert seen == [1, 2]
    studio.engine.execute_many([PutTenant(tenant="w3"), PutTenant(tenant="w4")])
    assert seen == [1, 2, 3], "once for a batch"


def test_watchers_hear_of_commits_of_another_server(places: Places) -> None:
    """Only PostgreSQL passes it on; with a poll of a minute, only a notification can have."""
    url = places.lend()
    with Engine.open(url, PATIENT) as here, Engine.open(url, PATIENT) as there:
        heard = threading.Event()
        here.watchers.append(heard.set)
        numbers = iter(range(10_000))

        def told_of_it() -> bool:
            there.execute(PutTenant(tenant=f"there-{next(numbers)}"))
            return heard.is_set()

        wait_until(told_of_it)
        assert heard.is_set()
    places.give_back(url)


# -- an idle house


def test_a_relay_writes_nothing_while_there_is_nothing_new(studio: Studio) -> None:
    commits: list[None] = []
    got: list[Placed] = []

    def take(events: Sequence[Placed]) -> None:
        got.extend(events)

    job = studio.ask()
    studio.finish(job)
    expected = len(studio.read.events(job))
    with faulty_engine(studio.database, lambda: commits.append(None)) as engine:
        relay = Relay(engine, "log", "me", take)
        wait_until(lambda: relay.run_once(0) or len(got) >= expected)
        wait_until(lambda: not relay.run_once(0) and len(got) >= expected)
        busy = len(commits)
        assert busy >= 2
        assert [relay.run_once(0) for _ in range(20)] == [0] * 20
        assert len(commits) == busy
        studio.ask()
        wait_until(lambda: relay.run_once(0))
        assert len(commits) > busy


def test_a_second_relay_of_the_same_name_stays_idle_too(studio: Studio) -> None:
    commits: list[None] = []
    got: list[Placed] = []
    studio.ask()
    with faulty_engine(studio.database, lambda: commits.append(None)) as engine:
        relays = [Relay(engine, "log", name, got.extend) for name in ("one", "two")]
        wait_until(lambda: got or relays[0].run_once(0))
        for relay in relays:
            relay.run_once(0)
        before = len(commits)
        assert [relay.run_once(0) for relay in relays * 10] == [0] * 20
        assert len(commits) == before
        assert len(got) == len({placed.place for placed in got})


# -- rows that are written before the batch ends


def lived(studio: Studio) -> dict[str, list[str]]:
    """Live a short life in large batches; return every row, with hashes of random tokens made alike."""
    furnished(studio)
    ids = [f"0197{n:04x}-0000-7000-8000-{n:012x}" for n in range(1, 13)]
    asked: list[Any] = [Submit(tenant=TENANT, user=USER, workflow="sketch", input={"n": n}, id=name)
                        for n, name in enumerate(ids)]  # fmt: skip
    asked[3:3] = [Submit(tenant=TENANT, user=USER, workflow="nowhere"), TopUp(tenant=TENANT, user="x", amount=-1)]
    studio.engine.execute_many(asked)
    leased = studio.claim(count=12)
    beats = [Heartbeat(lease=one.lease, progress=n, message=str(n)) for n, one in enumerate(leased)]
    studio.engine.execute_many(beats)
    made = (Made(1, "a.png", "image/png", 1, "c" * 64),)
    ends = [Complete(lease=one.lease, output=n, files=made) for n, one in enumerate(leased)]
    ends[5:5] = [Complete(lease=leased[0].lease, delivered=0), Complete(lease=leased[1].lease, output=float("nan"))]
    studio.engine.execute_many(ends)
    found = studio.snapshot()
    del found["event"], found["audit"]  # numbered by the database and by chance: looked at below
    facts = [repr(event) for name in ids for event in studio.read.events(name)]
    return {table: [HASHES.sub("#", row) for row in rows] for table, rows in found.items()} | {"event": facts}


@pytest.fixture
def second(request: pytest.FixtureRequest, place: str, tmp_path: Path) -> Any:
    """Another database of the same kind."""
    if not place.startswith("postgres"):
        yield str(tmp_path / "second.db")
        return
    places: Places = request.getfixturevalue("places")
    url = places.lend()
    yield url
    places.give_back(url)


def settings(unsaid_max: int) -> Settings:
    return Settings(limits=Limits(unsaid_max=unsaid_max), patience_seconds=5)


def test_rows_written_early_are_the_same_rows(place: str, second: str) -> None:
    with Studio(place, settings(2)) as early, Studio(second, settings(10**9)) as late:
        first, other = lived(early), lived(late)
        assert first == other
        assert len(first["event"]) == 12 * 8
        assert (len(first["file"]), len(first["document"])) == (12, 24)
        assert early.broken() == late.broken() == []


@pytest.mark.parametrize("unsaid_max", [1, 2, 10**9])
def test_a_batch_that_is_written_early_is_committed_once(open_studio: OpenStudio, unsaid_max: int) -> None:
    """Written twice, its rows would be refused, and each command would be tried again alone."""
    studio = open_studio(settings(unsaid_max))
    commits: list[None] = []
    with faulty_engine(studio.database, lambda: commits.append(None), settings(unsaid_max)) as engine:
        made = engine.execute_many([studio.submission(input=n) for n in range(9)])
    assert len(commits) == 1
    assert [studio.events(one.job_id) for one in made] == [["job.created"]] * 9


@pytest.mark.parametrize("unsaid_max", [1, 2, 10**9])
def test_a_batch_whose_commit_was_cut_leaves_nothing_that_was_written_early(
    open_studio: OpenStudio, unsaid_max: int
) -> None:
    studio = open_studio(settings(unsaid_max))
    with faulty_engine(studio.database, once("before"), settings(unsaid_max)) as engine:
        made = engine.execute_many([studio.submission(input=n) for n in range(9)])
    jobs = [one.job_id for one in made]
    assert len(set(jobs)) == 9
    assert [len(studio.read.documents(job)) for job in jobs] == [1] * 9
    assert [studio.events(job) for job in jobs] == [["job.created"]] * 9
    assert len(studio.engine.execute(Claim(worker_id="w", kinds=("draw",), count=20))) == 9
