"""Concurrent submits: one key creates one job, no balance is overdrawn, and no limit of jobs is exceeded."""

from functools import partial
from typing import Any

import pytest

from callsheet.core.model.commands import SubmitResult
from callsheet.store.postgres import PostgresDatabase
from tests.support.engine.concurrency import accepted, refusals, run_concurrently, servers
from tests.support.engine.engine_harness import EngineHarness
from tests.support.processes.child_process import Child, start_together

MANY = 20


def set_up(harness: EngineHarness, credits_: int = 100, price: int = 5, **tenant: Any) -> None:
    harness.tenant(**tenant)
    harness.workflow(price=price)
    if credits_:
        harness.top_up(credits_, key="welcome")


def count_jobs(harness: EngineHarness) -> int:
    return int(harness.query("SELECT count(*) FROM job")[0][0])


def test_twenty_concurrent_submits_with_one_key_create_one_job_and_one_reservation(database_url):
    """R88, H2, S1, M4."""
    with servers(database_url, 3) as harnesses:
        set_up(harnesses[0])
        answers = run_concurrently(
            *[partial(s.submit, idempotency_key="k", input={"p": 1}) for s in harnesses * 7][:MANY],
        )
        assert len({answer.job_id for answer in answers}) == 1
        assert [answer.replay for answer in answers].count(False) == 1
        assert count_jobs(harnesses[0]) == 1
        assert harnesses[0].ledger() == [("topup", 100, 0), ("reserve", -5, 0)]


def test_of_concurrent_submits_with_one_key_and_two_bodies_one_body_wins(database_url):
    """H3: each answer is the one job, or the refusal that its key was used with another body."""
    with servers(database_url, 3) as harnesses:
        set_up(harnesses[0])
        calls = [(harnesses[n % 3], n % 2) for n in range(MANY)]
        answers = run_concurrently(*[partial(s.submit, idempotency_key="k", input={"b": body}) for s, body in calls])
        assert len({answer.job_id for answer in accepted(answers)}) == 1
        assert refusals(answers) == ["idempotency_key_reused"] * (MANY // 2)
        winners = {body for (_, body), answer in zip(calls, answers, strict=True) if isinstance(answer, SubmitResult)}
        assert len(winners) == 1
        assert harnesses[0].ledger() == [("topup", 100, 0), ("reserve", -5, 0)]


def test_of_twenty_concurrent_submits_with_credits_for_one_one_is_accepted(database_url):
    """R34, R271, R272, M2, H5: price 6, balance 10."""
    with servers(database_url, 3) as harnesses:
        set_up(harnesses[0], credits_=10, price=6)
        answers = run_concurrently(*[s.submit for s in harnesses * 7][:MANY])
        assert len(accepted(answers)) == 1
        assert refusals(answers) == ["insufficient_credits"] * (MANY - 1)
        assert (harnesses[0].wallet().balance, harnesses[0].wallet().reserved) == (4, 6)
        assert count_jobs(harnesses[0]) == 1


@pytest.mark.parametrize("price", [5, 0], ids=["priced", "free-and-no-wallet-yet"])
def test_of_twenty_concurrent_submits_with_a_limit_of_five_jobs_five_are_accepted(database_url, price):
    """R172: also for users whose wallet does not exist yet, so that there is no row to lock."""
    with servers(database_url, 3) as harnesses:
        set_up(harnesses[0], price=price, active_jobs_max=5)
        for user in ("bob", "cyd", "dan", "eve"):
            if price:
                harnesses[0].top_up(1_000, user)
            answers = run_concurrently(*[partial(s.submit, user=user) for s in harnesses * 7][:MANY])
            assert len(accepted(answers)) == 5
            assert refusals(answers) == ["too_many_active_jobs"] * (MANY - 5)
        assert count_jobs(harnesses[0]) == 20


def test_twenty_concurrent_top_ups_with_one_key_add_credits_once(database_url):
    """R375: the first top-up also creates the wallet."""
    with servers(database_url, 3) as harnesses:
        harnesses[0].tenant()
        answers = run_concurrently(*[partial(s.top_up, 50, key="receipt-1") for s in harnesses * 7][:MANY])
        assert [answer.replay for answer in answers].count(False) == 1
        assert harnesses[0].ledger() == [("topup", 50, 0)]


PROCESSES, EACH = 3, 7
PROCESS_RACES = [
    ("one-key", "k", {}, {}, 1),
    ("balance-for-one", "", {"credits_": 10, "price": 6}, {"insufficient_credits"}, 1),
    ("limit-of-five", "", {"credits_": 1_000, "active_jobs_max": 5}, {"too_many_active_jobs"}, 5),
]


@pytest.mark.parametrize(
    ("key", "setup", "refused", "jobs"), [race[1:] for race in PROCESS_RACES], ids=[r[0] for r in PROCESS_RACES]
)
def test_the_same_races_between_several_processes(database_url, key, setup, refused, jobs):
    """R34, R88, R172: on SQLite the lock of the file must do what row locks do on PostgreSQL."""
    with EngineHarness(database_url) as harness:
        set_up(harness, **setup)
        children = [Child("submit_many", database_url, EACH, key) for _ in range(PROCESSES)]
        try:
            answers = [line for lines in start_together(children) for line in lines]
        finally:
            for child in children:
                child.kill()
        assert len(answers) == PROCESSES * EACH
        job_ids = [answer["job_id"] for answer in answers if "job_id" in answer]
        assert len(set(job_ids)) == jobs == count_jobs(harness)
        assert len(job_ids) == (PROCESSES * EACH if key else jobs)
        assert {answer["refused"] for answer in answers if "refused" in answer} == set(refused)
        assert harness.find_violations() == []


def test_processes_that_open_a_new_database_concurrently_all_find_it_migrated(database_url):
    """Any of them may run the migrations first."""
    if database_url.startswith("postgresql"):
        empty_database(database_url)
    children = [Child("open_new", database_url) for _ in range(6)]
    try:
        lines = start_together(children)
    finally:
        for child in children:
            child.kill()
    assert lines == [["open"]] * 6
    with EngineHarness(database_url) as harness:
        set_up(harness)
        assert harness.submit().status == "queued"


def empty_database(url: str) -> None:
    connection = PostgresDatabase(url).connect()
    connection.run("DROP SCHEMA public CASCADE")
    connection.run("CREATE SCHEMA public")
    connection.close()
