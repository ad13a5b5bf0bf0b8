"""Streams of several servers: a server that stops, two servers on one database, and lost database connections."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.settings import HttpSettings, Settings
from callsheet.store.dialect import CURRENT_TRANSACTION
from tests.support.databases.database_pool import DatabasePool
from tests.support.engine.concurrency import ANSWER_SECONDS
from tests.support.http.raw_http import RawConnection
from tests.support.http.sse import STREAM, Frame, open_stream, read_events
from tests.support.processes.live_server import TENANT, LiveServer
from tests.support.wait import wait_until

FREE_WORKFLOW = WorkflowDefinition(name="free", price=0, stages=[StageSpec(name="draw", kind="draw")])
NO_HEARTBEATS = HttpSettings(heartbeat_seconds=60, body_timeout_seconds=5)
"""No heartbeat within a test: every frame is an event that was pushed."""


@pytest.fixture
def postgresql(database_pool: DatabasePool) -> Iterator[str]:
    """An empty PostgreSQL database."""
    url = database_pool.acquire()
    yield url
    database_pool.release(url)


# -- shutdown


def test_a_stopping_server_ends_its_streams_and_clients_resume_at_the_next_one(
    database_url: str, tmp_path: Path
) -> None:
    with LiveServer(database_url, tmp_path, NO_HEARTBEATS) as first:
        job = first.submit()["id"]
        paths = (f"/v1/jobs/{job}/events", "/v1/events")
        with ThreadPoolExecutor(2) as threads:
            reading = [threads.submit(read_events, first, path) for path in paths]
            wait_until(lambda: first.callsheet.state.broadcaster.count == 2)
            first.stop()
            before = [one.result(ANSWER_SECONDS) for one in reading]
    assert [frame.event for frame in before[0]] == ["job.created"]
    with LiveServer(database_url, tmp_path, NO_HEARTBEATS) as second:
        other = second.submit()["id"]
        second.work()
        second.work()
        rest = read_events(second, paths[0], before[0][-1].id)
        with open_stream(second, paths[1], before[1][-1].id) as frames:
            expected = {(one, event.seq) for one in (job, other) for event in second.engine.reads.events(one)}
            later = [next(frame for frame in frames if frame.id) for _ in range(len(expected) - len(before[1]))]
        numbers = [event.seq for event in second.engine.reads.events(job)]
        assert [frame.data["seq"] for frame in before[0] + rest] == numbers
    everything = [(frame.data["job_id"], frame.data["seq"]) for frame in before[1] + later]
    assert (len(everything), set(everything)) == (len(expected), expected)


def test_a_stopping_server_answers_open_requests(database_url: str, tmp_path: Path) -> None:
    with LiveServer(database_url, tmp_path, NO_HEARTBEATS) as live_server:
        job = live_server.submit()
        with RawConnection(live_server.url) as slow, ThreadPoolExecutor(2) as threads:
            body = b'{"workflow":"sketch","user":"ann","input":{}}'
            slow.send(slow.head("POST", "/v1/jobs", live_server.keys["client"], body) + body[:10])
            polling = threads.submit(live_server.client("client").get, f"/v1/jobs/{job['id']}?wait_seconds=60")
            wait_until(lambda: live_server.callsheet.state.broadcaster.count)
            stopping = threads.submit(live_server.stop)
            assert polling.result(ANSWER_SECONDS).json() == job
            slow.send(body[10:])
            assert slow.read_response().status == 201
            stopping.result(ANSWER_SECONDS)
            assert slow.wait_closed()
        with pytest.raises(ConnectionError):
            RawConnection(live_server.url)


def test_a_slow_reader_does_not_block_a_stopping_server(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = HttpSettings(shutdown_timeout_seconds=1)
    with LiveServer(tmp_path / "callsheet.db", tmp_path, settings, send_bytes=4_096) as live_server:
        with RawConnection(live_server.url, receive_bytes=4_096) as reader:
            reader.send_request("GET", "/v1/events", live_server.keys["client"], accept=STREAM)
            live_server.engine.execute(commands.PutWorkflow(definition=FREE_WORKFLOW))
            many = [commands.Submit(tenant=TENANT, user="ann", workflow="free") for _ in range(1_000)]
            assert len(live_server.engine.execute_many(many)) == 1_000
            wait_until(lambda: live_server.callsheet.state.broadcaster.count)
            live_server.stop()
        assert live_server.callsheet.state.broadcaster.count == 0
    assert capfd.readouterr().err == ""


# -- several servers, one PostgreSQL


def test_a_stream_of_one_server_has_the_events_of_another(postgresql: str, tmp_path: Path) -> None:
    with (
        LiveServer(postgresql, tmp_path, NO_HEARTBEATS) as here,
        LiveServer(postgresql, tmp_path, NO_HEARTBEATS) as there,
    ):
        job = here.submit()["id"]
        with ThreadPoolExecutor(3) as threads:
            reading = threads.submit(read_events, there, f"/v1/jobs/{job}/events")
            polling = threads.submit(there.client("client").get, f"/v1/jobs/{job}?wait_seconds=60")
            wait_until(lambda: there.callsheet.state.broadcaster.count == 2)
            here.work()
            seen, polled = reading.result(ANSWER_SECONDS), polling.result(ANSWER_SECONDS)
        assert [frame.data["seq"] for frame in seen] == [event.seq for event in here.engine.reads.events(job)]
        assert polled.json()["status"] == "completed"


def test_a_client_can_resume_a_stream_at_another_server(postgresql: str, tmp_path: Path) -> None:
    with (
        LiveServer(postgresql, tmp_path, NO_HEARTBEATS) as here,
        LiveServer(postgresql, tmp_path, NO_HEARTBEATS) as there,
    ):
        jobs = [here.submit()["id"] for _ in range(3)]
        last: str | None = None
        seen: list[Frame] = []
        for number, live_server in enumerate([here, there] * 3):
            with open_stream(live_server, "/v1/events", last) as frames:
                if number < 3:
                    here.work()
                many = 4 if number < 5 else _count(here, jobs) - len(seen)
                seen += [next(frame for frame in frames if frame.id) for _ in range(many)]
            last = seen[-1].id
        received = [(frame.data["job_id"], frame.data["seq"]) for frame in seen]
        assert len(received) == len(set(received)) == _count(here, jobs)


def test_events_of_overlapping_transactions_are_sent_in_the_order_of_their_numbers(
    postgresql: str, tmp_path: Path
) -> None:
    # A transaction that began earlier touches the job later: in the global order its event comes first.
    with LiveServer(postgresql, tmp_path, NO_HEARTBEATS) as live_server, psycopg.connect(postgresql) as early:
        job = live_server.submit()["id"]
        early.execute("SELECT pg_current_xact_id()")
        with open_stream(live_server, f"/v1/jobs/{job}/events") as frames:
            assert next(frame for frame in frames if frame.id).id == "1"
            live_server.engine.execute(commands.Pause(tenant=TENANT, job_id=job))
            _append_event(early, job)
            early.commit()
            seen = [next(frame for frame in frames if frame.id) for _ in range(2)]
        order = [placed.event.seq for placed in live_server.engine.reads.feed() if placed.event.subject == job]
        assert order == [1, 3, 2]
        assert [(frame.id, frame.event) for frame in seen] == [("2", "job.paused"), ("3", "job.noted")]


def test_a_long_transaction_of_another_writer_does_not_delay_the_stream_of_a_job(
    postgresql: str, tmp_path: Path
) -> None:
    """It does not delay a long poll either."""
    with LiveServer(postgresql, tmp_path, NO_HEARTBEATS) as live_server, psycopg.connect(postgresql) as other_writer:
        job = live_server.submit()["id"]
        other_writer.execute("SELECT pg_current_xact_id()")
        with open_stream(live_server, f"/v1/jobs/{job}/events") as frames, ThreadPoolExecutor(1) as threads:
            polling = threads.submit(live_server.client("client").get, f"/v1/jobs/{job}?wait_seconds=60")
            wait_until(lambda: live_server.callsheet.state.broadcaster.count == 2)
            live_server.work()
            seen = [frame for frame in frames if frame.id]
            answer = polling.result(ANSWER_SECONDS)
        assert (seen[-1].event, answer.json()["status"]) == ("job.completed", "completed")
        assert [placed.event.seq for placed in live_server.engine.reads.feed() if placed.event.subject == job] == [1]
        other_writer.rollback()


def test_streams_survive_lost_database_connections(postgresql: str, tmp_path: Path) -> None:
    with LiveServer(postgresql, tmp_path, NO_HEARTBEATS, Settings(poll_seconds=0.05)) as live_server:
        job = live_server.submit()["id"]
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(read_events, live_server, f"/v1/jobs/{job}/events")
            wait_until(lambda: live_server.callsheet.state.broadcaster.count)
            with psycopg.connect(postgresql, autocommit=True) as admin:
                broken = admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                ).fetchall()
            assert len(broken) > 2
            live_server.work()
            seen: list[Frame] = reading.result(ANSWER_SECONDS)
        assert [frame.data["seq"] for frame in seen] == [event.seq for event in live_server.engine.reads.events(job)]


# -- helpers


def _count(live_server: LiveServer, jobs: list[str]) -> int:
    return sum(len(live_server.engine.reads.events(job)) for job in jobs)


def _append_event(connection: "psycopg.Connection[tuple[object, ...]]", job: str) -> None:
    """Append an event to a job as the engine does: with the lock of the job and its next number."""
    connection.execute("UPDATE job SET seq = seq + 1 WHERE id = %s", (job,))
    connection.execute(
        "INSERT INTO event (subject, seq, tenant, run, at, type, actor, tx) SELECT id, seq, tenant, run, updated_at,"
        f" 'job.noted', 'system', {CURRENT_TRANSACTION} FROM job WHERE id = %s".encode(),
        (job,),
    )
