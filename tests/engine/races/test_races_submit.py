"""Many at once ask for a job: one key makes one job, a balance is never overdrawn, a cap is never passed."""

from functools import partial
from typing import Any

import pytest

from callsheet.core.model.commands import SubmitResult
from callsheet.store.postgres import PostgresDatabase
from tests.support.engine.concurrency import accepted, find_violations, refusals, run_concurrently, servers
from tests.support.engine.engine_harness import EngineHarness
from tests.support.processes.child_process import Child, start_together

MANY = 20


def set_up(harness: EngineHarness, credits_: int = 100, price: int = 5, **tenant: Any) -> None:
    harness.tenant(**tenant)
    harness.workflow(price=price)
    if credits_:
        harness.top_up(credits_, key="welcome")


def jobs_in(harness: EngineHarness) -> int:
    connection = harness.database.connect(reading=True)
    try:
        return int(connection.run("SELECT count(*) FROM job")[0][0])
    finally:
        connection.close()


def test_one_key_sent_twenty_times_at_once_makes_one_job_and_one_reserve(database_url):
    """R88, H2, S1, M4."""
    with servers(database_url, 3) as harnesses:
        set_up(harnesses[0])
        answers = run_concurrently(
            *[partial(s.submit, idempotency_key="k", input={"p": 1}) for s in harnesses * 7][:MANY],
        )
        assert len({answer.job_id for answer in answers}) == 1
        assert [answer.replay for answer in answers].count(False) == 1
        assert jobs_in(harnesses[0]) == 1
        assert harnesses[0].ledger() == [("topup", 100, 0), ("reserve", -5, 0)]


def test_one_key_with_two_bodies_at_once_makes_one_job_and_refuses_the_other_body(database_url):
    """H3: each answer is the one job, or that its key was used for another body."""
    with servers(database_url, 3) as harnesses:
        set_up(harnesses[0])
        calls = [(harnesses[n % 3], n % 2) for n in range(MANY)]
        answers = run_concurrently(*[partial(s.submit, idempotency_key="k", input={"b": body}) for s, body in calls])
        made = accepted(answers)
        assert len({answer.job_id for answer in made}) == 1
        assert refusals(answers) == ["idempotency_key_reused"] * (MANY // 2)
        winners = {body for (_, body), answer in zip(calls, answers, strict=True) if isinstance(answer, SubmitResult)}
        assert len(winners) == 1
        assert harnesses[0].ledger() == [("topup", 100, 0), ("reserve", -5, 0)]


def test_twenty_submits_against_a_balance_for_one_accept_one(database_url):
    """R34, R271, R272, M2, H5: price 6, balance 10."""
    with servers(database_url, 3) as harnesses:
        set_up(harnesses[0], credits_=10, price=6)
        answers = run_concurrently(*[s.submit for s in harnesses * 7][:MANY])
        assert len(accepted(answers)) == 1
        assert refusals(answers) == ["insufficient_credits"] * (MANY - 1)
        assert (harnesses[0].wallet().balance, harnesses[0].wallet().reserved) == (4, 6)
        assert jobs_in(harnesses[0]) == 1


@pytest.mark.parametrize("price", [5, 0], ids=["priced", "free-and-no-wallet-yet"])
def test_twenty_submits_against_a_cap_of_five_accept_five(database_url, price):
    """R172, S3; also for users whose wallet does not exist yet, so that there is no row to lock."""
    with servers(database_url, 3) as harnesses:
        set_up(harnesses[0], price=price, active_jobs_max=5)
        for user in ("bob", "cyd", "dan", "eve"):
            if price:
                harnesses[0].top_up(1_000, user)
            answers = run_concurrently(*[partial(s.submit, user=user) for s in harnesses * 7][:MANY])
            assert len(accepted(answers)) == 5
            assert refusals(answers) == ["too_many_active_jobs"] * (MANY - 5)
        assert jobs_in(harnesses[0]) == 20


def test_a_top_up_sent_twenty_times_at_once_is_paid_in_once(database_url):
    """H2 for money: the first top-up also makes the wallet."""
    with servers(database_url, 3) as harnesses:
        harnesses[0].tenant()
        answers = run_concurrently(*[partial(s.top_up, 50, key="receipt-1") for s in harnesses * 7][:MANY])
        assert [answer.replay for answer in answers].count(False) == 1
        assert harnesses[0].ledger() == [("topup", 50, 0)]


PROCESSES, EACH = 3, 7
PROCESS_RACES = [
    ("one-key", "k", {}, {}, 1),
    ("balance-for-one", "", {"credits_": 10, "price": 6}, {"insufficient_credits"}, 1),
    ("cap-of-five", "", {"credits_": 1_000, "active_jobs_max": 5}, {"too_many_active_jobs"}, 5),
]


@pytest.mark.parametrize(
    ("key", "furniture", "refused", "jobs"), [race[1:] for race in PROCESS_RACES], ids=[r[0] for r in PROCESS_RACES]
)
def test_the_same_races_from_several_processes(database_url, key, furniture, refused, jobs):
    """R34, R88, R172 across processes: on SQLite the file's lock must do what PostgreSQL's row locks do."""
    with EngineHarness(database_url) as harness:
        set_up(harness, **furniture)
        children = [Child("submit_many", database_url, EACH, key) for _ in range(PROCESSES)]
        try:
            told = [line for lines in start_together(children) for line in lines]
        finally:
            for child in children:
                child.kill()
        assert len(told) == PROCESSES * EACH
        made = [line["job_id"] for line in told if "job_id" in line]
        assert len(set(made)) == jobs == jobs_in(harness)
        assert len(made) == (PROCESSES * EACH if key else jobs)
        assert {line["refused"] for line in told if "refused" in line} == set(refused)
        assert find_violations(harness) == []


def test_several_processes_that_open_a_new_database_at_once_all_find_it_ready(database_url):
    """Migrations race too: every one of them may be the first."""
    if database_url.startswith("postgresql"):
        empty_database(database_url)
    children = [Child("open_new", database_url) for _ in range(6)]
    try:
        told = start_together(children)
    finally:
        for child in children:
            child.kill()
    assert told == [["open"]] * 6
    with EngineHarness(database_url) as harness:
        set_up(harness)
        assert harness.submit().status == "queued"


def empty_database(url: str) -> None:
    connection = PostgresDatabase(url).connect()
    connection.run("DROP SCHEMA public CASCADE")
    connection.run("CREATE SCHEMA public")
    connection.close()
