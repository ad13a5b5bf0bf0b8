"""PostgreSQL is killed, cuts connections or drops notifications: callers are answered, nothing is lost or doubled."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Event
from typing import Any

import pytest

from callsheet.core.model.commands import Claim, Complete, PutTenant, PutWorkflow, Submit, TopUp
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.engine import Engine, Unavailable
from callsheet.settings import Settings
from callsheet.store import verify
from callsheet.store.connection import StoreError
from callsheet.store.postgres import PostgresConnection, PostgresDatabase
from tests.support.databases.postgres import Cluster
from tests.support.processes.child_process import Child, start_together
from tests.support.wait import wait_until

CALLERS = 6
LONG_SECONDS = 120.0
NEVER_SECONDS = 600.0
TENANT, USER = "acme", "ada"
SKETCH = WorkflowDefinition(name="sketch", price=5, stages=[StageSpec(name="draw", kind="draw")])
LISTENERS = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server for one test, which may kill it."""
    with Cluster(report=lambda _: None) as own:
        yield own


@pytest.fixture
def url(migrated_postgres: Cluster) -> Iterator[str]:
    database_url = migrated_postgres.create_database()
    yield database_url
    migrated_postgres.drop(database_url)


def set_up(engine: Engine) -> Engine:
    engine.execute(PutTenant(tenant=TENANT))
    engine.execute(PutWorkflow(definition=SKETCH))
    engine.execute(TopUp(tenant=TENANT, user=USER, amount=1_000_000))
    return engine


def submission() -> Submit:
    return Submit(tenant=TENANT, user=USER, workflow="sketch", input={"prompt": "a cat"})


class Load:
    """Callers that submit without a key, claim and complete, until `stop`."""

    def __init__(self, engines: list[Engine]) -> None:
        self.job_ids: list[str] = []
        self.completed: list[str] = []
        self.unavailable = 0
        self._stopping = Event()
        self._threads = ThreadPoolExecutor(CALLERS)
        self._running: list[Future[None]] = [
            self._threads.submit(self._call, engines[n % len(engines)], n) for n in range(CALLERS)
        ]

    def _call(self, engine: Engine, number: int) -> None:
        while not self._stopping.is_set():
            try:
                self.job_ids.append(engine.execute(submission()).job_id)
                for leased in engine.execute(Claim(worker_id=f"w{number}", kinds=("draw",), count=2)):
                    self.completed.append(engine.execute(Complete(lease=leased.lease)).job_id)
            except Unavailable:
                self.unavailable += 1

    def wait_for_jobs(self, count: int) -> None:
        """Wait until so many more jobs are acknowledged, or a caller has failed."""
        enough = len(self.job_ids) + count
        wait_until(lambda: len(self.job_ids) >= enough or any(one.done() for one in self._running), LONG_SECONDS)

    def stop(self) -> None:
        self._stopping.set()
        for one in self._running:
            one.result(LONG_SECONDS)
        self._threads.shutdown()


@contextmanager
def open_sql(url: str) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    """Run plain SQL on a database."""
    connection = PostgresDatabase(url).connect()
    try:
        yield lambda text: [tuple(row) for row in connection.run(text)]
    finally:
        connection.close()


def broken_rules(url: str) -> str:
    connection = PostgresDatabase(url).connect()
    try:
        return verify.report(verify.check(connection))
    finally:
        connection.close()


def test_nothing_acknowledged_is_lost_when_postgresql_is_killed(cluster):
    """F11, H1, H4: killed and restarted twice, under load from two servers."""
    url = cluster.create_database()
    with ExitStack() as opened:
        engines = [opened.enter_context(Engine.open(url)) for _ in range(2)]
        set_up(engines[0])
        load = Load(engines)
        for _ in range(2):
            load.wait_for_jobs(30)
            cluster.kill()
            cluster.start()
            load.wait_for_jobs(30)
        load.stop()
        with open_sql(url) as query:
            jobs = {row[0] for row in query("SELECT id FROM job")}
            done = {row[0] for row in query("SELECT id FROM job WHERE status = 'completed'")}
        assert set(load.job_ids) <= jobs
        assert set(load.completed) <= done
        assert len(jobs) - len(load.job_ids) <= load.unavailable
        assert len(set(load.job_ids)) == len(load.job_ids)
        assert broken_rules(url) == "Every rule holds."


def test_callers_get_an_error_if_postgresql_stays_down(cluster):
    """After `database_retry_seconds` the answer is Unavailable: whether the command took effect is unknown."""
    url = cluster.create_database()
    with Engine.open(url, Settings(database_retry_seconds=0.3)) as engine:
        set_up(engine)
        cluster.kill()
        answers = engine.execute_many([submission()] * 20)
        assert {type(answer) for answer in answers} == {Unavailable}
        with pytest.raises(StoreError):
            engine.reads.wallet(TENANT, USER)
        cluster.start()
        assert engine.execute(submission()).status == "queued"
        assert engine.reads.wallet(TENANT, USER).reserved == 5


def test_connections_cut_under_load_lose_and_double_nothing(url):
    """F5, F7: all backends are terminated repeatedly; there are exactly as many jobs as were acknowledged."""
    with ExitStack() as opened:
        engines = [opened.enter_context(Engine.open(url)) for _ in range(2)]
        set_up(engines[0])
        load = Load(engines)
        with open_sql(url) as query:
            for _ in range(12):
                load.wait_for_jobs(8)
                query(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            load.stop()
            assert load.unavailable == 0
            assert len(set(load.job_ids)) == len(load.job_ids)
            assert {row[0] for row in query("SELECT id FROM job")} == set(load.job_ids)
            assert len(set(load.completed)) == len(load.completed)
            assert query("SELECT count(*) FROM entry WHERE kind = 'consume'") == [(len(load.completed),)]
    assert broken_rules(url) == "Every rule holds."


# -- notifications


def work_hint_event(engine: Engine, kind: str) -> Event:
    """Return an event that is set when the engine gets a hint of new work."""
    event = Event()
    assert engine.hints.subscribe((kind,), engine.hints.mark((kind,)), event.set)
    return event


def wait_for_listener(url: str) -> None:
    with open_sql(url) as query:
        wait_until(lambda: query(f"SELECT count(*) {LISTENERS}") == [(1,)], LONG_SECONDS)


def submit_in_another_process(url: str) -> None:
    with Child("submit_many", url, 1, "") as child:
        assert len(start_together([child])[0]) == 1


def test_work_submitted_in_another_process_wakes_a_waiting_claim(url):
    """The next poll is ten minutes away, so only a notification can wake the claim."""
    with Engine.open(url, Settings(poll_seconds=NEVER_SECONDS)) as engine, ThreadPoolExecutor(1) as threads:
        set_up(engine)
        wait_for_listener(url)
        hint = work_hint_event(engine, "draw")
        waiting = threads.submit(engine.claim, Claim(worker_id="w", kinds=("draw",)), NEVER_SECONDS)
        submit_in_another_process(url)
        assert hint.wait(LONG_SECONDS)
        assert len(waiting.result(LONG_SECONDS)) == 1


def test_a_lost_notification_costs_one_poll_and_the_listener_reconnects(url):
    """F13, V5."""
    with Engine.open(url, Settings(poll_seconds=0.1)) as engine, ThreadPoolExecutor(1) as threads:
        set_up(engine)
        wait_for_listener(url)
        waiting = threads.submit(engine.claim, Claim(worker_id="w", kinds=("draw",)), NEVER_SECONDS)
        with open_sql(url) as query:
            assert len(query(f"SELECT pg_terminate_backend(pid) {LISTENERS}")) == 1
        submit_in_another_process(url)
        assert len(waiting.result(LONG_SECONDS)) == 1
        wait_for_listener(url)
        hint = work_hint_event(engine, "draw")
        submit_in_another_process(url)
        assert hint.wait(LONG_SECONDS)


def test_with_transaction_pooling_polls_find_the_work_without_a_listener(url):
    """V5: in PgBouncer's transaction mode no notification arrives."""
    settings = Settings(poll_seconds=0.1, transaction_pooling=True)
    with Engine.open(url, settings) as engine, ThreadPoolExecutor(1) as threads:
        set_up(engine)
        waiting = threads.submit(engine.claim, Claim(worker_id="w", kinds=("draw",)), NEVER_SECONDS)
        submit_in_another_process(url)
        assert len(waiting.result(LONG_SECONDS)) == 1
        with open_sql(url) as query:
            assert query(f"SELECT count(*) {LISTENERS}") == [(0,)]


def test_the_time_of_a_command_is_read_after_its_rows_are_locked(url):
    """J4: a command that waited for a lock is later than the transaction that held it."""
    with Engine.open(url) as engine, ThreadPoolExecutor(1) as threads:
        set_up(engine)
        job = engine.execute(submission()).job_id
        (leased,) = engine.execute(Claim(worker_id="w", kinds=("draw",)))
        holder: PostgresConnection = PostgresDatabase(url).connect()
        holder.begin()
        holder.fetch("jobs", ids=[job])
        waiting = threads.submit(engine.execute, Complete(lease=leased.lease))
        with open_sql(url) as query:
            wait_until(
                lambda: query("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == [(1,)],
                LONG_SECONDS,
            )
        released_at = holder.now()
        holder.rollback()
        holder.close()
        assert waiting.result(LONG_SECONDS).job_status == "completed"
        assert (engine.reads.job(TENANT, job).finished_at or 0) >= released_at
