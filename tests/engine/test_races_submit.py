"""Many at once ask for a job: one key makes one job, a balance is never overdrawn, a cap is never passed."""

from functools import partial
from typing import Any

import pytest

from callsheet.core.commands import Submitted
from callsheet.store.postgres import PostgresDatabase
from tests.support.processes import Child, all_at_once
from tests.support.racing import accepted, amiss, at_once, refusals, servers
from tests.support.studio import Studio

MANY = 20


def furnish(studio: Studio, credits_: int = 100, price: int = 5, **tenant: Any) -> None:
    studio.tenant(**tenant)
    studio.workflow(price=price)
    if credits_:
        studio.top_up(credits_, key="welcome")


def jobs_in(studio: Studio) -> int:
    connection = studio.database.connect(reading=True)
    try:
        return int(connection.run("SELECT count(*) FROM job")[0][0])
    finally:
        connection.close()


def test_one_key_sent_twenty_times_at_once_makes_one_job_and_one_reserve(place):
    """R88, H2, S1, M4."""
    with servers(place, 3) as studios:
        furnish(studios[0])
        answers = at_once(
            *[partial(s.submit, idempotency_key="k", input={"p": 1}) for s in studios * 7][:MANY],
        )
        assert len({answer.job_id for answer in answers}) == 1
        assert [answer.replay for answer in answers].count(False) == 1
        assert jobs_in(studios[0]) == 1
        assert studios[0].ledger() == [("topup", 100, 0), ("reserve", -5, 0)]


def test_one_key_with_two_bodies_at_once_makes_one_job_and_refuses_the_other_body(place):
    """H3: each answer is the one job, or that its key was used for another body."""
    with servers(place, 3) as studios:
        furnish(studios[0])
        calls = [(studios[n % 3], n % 2) for n in range(MANY)]
        answers = at_once(*[partial(s.submit, idempotency_key="k", input={"b": body}) for s, body in calls])
        made = accepted(answers)
        assert len({answer.job_id for answer in made}) == 1
        assert refusals(answers) == ["idempotency_key_reused"] * (MANY // 2)
        winners = {body for (_, body), answer in zip(calls, answers, strict=True) if isinstance(answer, Submitted)}
        assert len(winners) == 1
        assert studios[0].ledger() == [("topup", 100, 0), ("reserve", -5, 0)]


def test_twenty_submits_against_a_balance_for_one_accept_one(place):
    """R34, R271, R272, M2, H5: price 6, balance 10."""
    with servers(place, 3) as studios:
        furnish(studios[0], credits_=10, price=6)
        answers = at_once(*[s.submit for s in studios * 7][:MANY])
        assert len(accepted(answers)) == 1
        assert refusals(answers) == ["insufficient_credits"] * (MANY - 1)
        assert (studios[0].wallet().balance, studios[0].wallet().held) == (4, 6)
        assert jobs_in(studios[0]) == 1


@pytest.mark.parametrize("price", [5, 0], ids=["priced", "free-and-no-wallet-yet"])
def test_twenty_submits_against_a_cap_of_five_accept_five(place, price):
    """R172, S3; also for users whose wallet does not exist yet, so that there is no row to lock."""
    with servers(place, 3) as studios:
        furnish(studios[0], price=price, active_jobs_max=5)
        for user in ("bob", "cyd", "dan", "eve"):
            if price:
                studios[0].top_up(1_000, user)
            answers = at_once(*[partial(s.submit, user=user) for s in studios * 7][:MANY])
            assert len(accepted(answers)) == 5
            assert refusals(answers) == ["too_many_active_jobs"] * (MANY - 5)
        assert jobs_in(studios[0]) == 20


def test_a_top_up_sent_twenty_times_at_once_is_paid_in_once(place):
    """H2 for money: the first top-up also makes the wallet."""
    with servers(place, 3) as studios:
        studios[0].tenant()
        answers = at_once(*[partial(s.top_up, 50, key="receipt-1") for s in studios * 7][:MANY])
        assert [answer.replay for answer in answers].count(False) == 1
        assert studios[0].ledger() == [("topup", 50, 0)]


PROCESSES, EACH = 3, 7
PROCESS_RACES = [
    ("one-key", "k", {}, {}, 1),
    ("balance-for-one", "", {"credits_": 10, "price": 6}, {"insufficient_credits"}, 1),
    ("cap-of-five", "", {"credits_": 1_000, "active_jobs_max": 5}, {"too_many_active_jobs"}, 5),
]


@pytest.mark.parametrize(
    ("key", "furniture", "refused", "jobs"), [race[1:] for race in PROCESS_RACES], ids=[r[0] for r in PROCESS_RACES]
)
def test_the_same_races_from_several_processes(place, key, furniture, refused, jobs):
    """R34, R88, R172 across processes: on SQLite the file's lock must do what PostgreSQL's row locks do."""
    with Studio(place) as studio:
        furnish(studio, **furniture)
        children = [Child("submit_many", place, EACH, key) for _ in range(PROCESSES)]
        try:
            told = [line for lines in all_at_once(children) for line in lines]
        finally:
            for child in children:
                child.kill()
        assert len(told) == PROCESSES * EACH
        made = [line["job_id"] for line in told if "job_id" in line]
        assert len(set(made)) == jobs == jobs_in(studio)
        assert len(made) == (PROCESSES * EACH if key else jobs)
        assert {line["refused"] for line in told if "refused" in line} == set(refused)
        assert amiss(studio) == []


def test_several_processes_that_open_a_new_database_at_once_all_find_it_ready(place):
    """Migrations race too: every one of them may be the first."""
    if place.startswith("postgresql"):
        emptied(place)
    children = [Child("open_new", place) for _ in range(6)]
    try:
        told = all_at_once(children)
    finally:
        for child in children:
            child.kill()
    assert told == [["open"]] * 6
    with Studio(place) as studio:
        furnish(studio)
        assert studio.submit().status == "queued"


def emptied(url: str) -> None:
    connection = PostgresDatabase(url).connect()
    connection.run("DROP SCHEMA public CASCADE")
    connection.run("CREATE SCHEMA public")
    connection.close()
