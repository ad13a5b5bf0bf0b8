"""A server with more requests than it handles: some are refused at once, and reports and health checks are not."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import httpx
import pytest

from callsheet.core.policy.admission import QueueLimits, WorkClass
from callsheet.engine.reads.batched import BatchedReader
from callsheet.http.admission import RequestAdmission
from callsheet.http.listener.burst_accept import BurstAcceptor
from callsheet.http.listener.uvicorn_server import bind
from callsheet.settings import HttpSettings
from tests.http.prometheus_samples import sample_key, scrape
from tests.http.server_on_each_database import DATABASES, start_server
from tests.http.worker_sandbox import WorkerSandbox, get_job
from tests.support.engine.held_lane import hold_lane
from tests.support.http.raw_http import RawConnection, RawResponse
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

REQUESTS_MAX = 2
JOB = {"workflow": "sketch", "user": "ann", "input": {}}
BODY = b'{"workflow": "sketch", "user": "ann", "input": {}}'
ORIGIN = "https://app.example"


@pytest.fixture(scope="module", params=DATABASES)
def small_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    http = HttpSettings(writes_in_progress_max=REQUESTS_MAX, reads_in_progress_max=REQUESTS_MAX, cors_origins=(ORIGIN,))
    with start_server(request, tmp_path_factory.mktemp("small"), http) as server:
        yield server


@contextmanager
def overload(server: LiveServer) -> Iterator[list[Future[httpx.Response]]]:
    """Keep as many submits in progress as the server handles. At the end, they are answered."""
    in_progress = server.callsheet.state.admission.in_progress
    with ThreadPoolExecutor(REQUESTS_MAX) as threads, hold_lane(server.engine):
        futures = [threads.submit(server.client("client").post, "/v1/jobs", json=JOB) for _ in range(REQUESTS_MAX)]
        wait_until(lambda: in_progress[WorkClass.WRITE] == REQUESTS_MAX)
        yield futures


def test_a_submit_over_the_limit_gets_503_and_others_are_answered(small_server: LiveServer) -> None:
    before = scrape(small_server)
    known = small_server.submit()
    with overload(small_server) as submits:
        refused = small_server.client("client").post("/v1/jobs", json=JOB)
        assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["request_id"] == refused.headers["x-request-id"]
        assert "Nothing was changed." in refused.json()["message"]
        assert small_server.client().get("/healthz").status_code == 200
        assert small_server.client().get("/readyz").status_code == 200
        assert get_job(small_server, known)["status"] == "queued"
        found = scrape(small_server)
    assert [submit.result().status_code for submit in submits] == [201] * REQUESTS_MAX
    assert all(get_job(small_server, submit.result().json()) for submit in submits)
    key = sample_key("admission_refused_total", **{"class": "write"})
    assert found[key] - before.get(key, 0) == 1
    http_key = sample_key("http_requests_total", route="/v1/jobs", method="POST", status="503")
    assert found[http_key] - before.get(http_key, 0) == 1
    assert small_server.submit()["status"] == "queued"


def test_a_scrape_shows_how_long_commands_and_reads_waited(small_server: LiveServer) -> None:
    with overload(small_server):
        pass
    found = scrape(small_server)
    counts = [found[sample_key("admission_wait_seconds_count", **{"class": one})] for one in ("write", "read")]
    assert all(count >= REQUESTS_MAX for count in counts)


def test_a_scrape_works_while_long_reads_are_refused(small_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    full = BatchedReader(small_server.engine.database, "full", QueueLimits(0, 60.0, 8))
    monkeypatch.setattr(small_server.engine.reads, "_scans", full)
    assert small_server.client("client").get("/v1/jobs").json()["code"] == "overloaded"
    found = scrape(small_server)
    assert found[sample_key("database_up")] == 1
    assert found[sample_key("admission_refused_total", **{"class": "read"})] >= 1


def test_reports_of_workers_are_accepted_under_overload(small_server: LiveServer) -> None:
    sandbox = WorkerSandbox(small_server)
    worker = sandbox.http_worker()
    job = sandbox.submit()
    (task,) = worker.claim()
    with ThreadPoolExecutor(1) as threads:
        with overload(small_server):
            complete = threads.submit(worker.post_lease, "complete", task, output={})
            wait_until(lambda: small_server.callsheet.state.admission.in_progress[WorkClass.ESSENTIAL] >= 1)
        assert complete.result().status_code == 200
    assert get_job(small_server, job)["status"] == "completed"


def test_requests_that_wait_for_an_event_do_not_count(small_server: LiveServer) -> None:
    job = small_server.submit()
    url = f"/v1/jobs/{job['id']}"
    etag = {"if-none-match": small_server.client("client").get(url).headers["etag"]}
    streams = small_server.callsheet.state.broadcaster
    polls: list[Future[httpx.Response]] = []
    with ThreadPoolExecutor(REQUESTS_MAX + 1) as threads:
        for count in range(1, REQUESTS_MAX + 2):
            polls.append(
                threads.submit(small_server.client("client").get, f"{url}?wait_seconds=30", headers=etag)
            )  # fmt: skip
            wait_until(partial(lambda expected: streams.count == expected, count))
        assert get_job(small_server, job)["status"] == "queued"
        small_server.client("client").post(f"{url}/cancel", json={}).raise_for_status()
    assert [poll.result().status_code for poll in polls] == [200] * (REQUESTS_MAX + 1)


def refuse_and_accept(server: LiveServer, raw: RawConnection, **headers: str) -> tuple[RawResponse, int]:
    """Return the refusal of a request, and the status of the same request on the same connection after the overload."""
    with overload(server):
        server.client("client").post("/v1/jobs", json=JOB)  # from now on, the server refuses new requests early
        raw.send_request("POST", "/v1/jobs", server.keys["client"], BODY, **headers)
        refused = raw.read_response()
    raw.send_request("POST", "/v1/jobs", server.keys["client"], BODY, **headers)
    return refused, raw.read_response().status


def test_an_open_connection_can_be_used_after_a_refusal(small_server: LiveServer) -> None:
    with RawConnection(small_server.url) as connection:
        connection.send_request("GET", "/healthz")
        assert connection.read_response().status == 200
        refused, status = refuse_and_accept(small_server, connection)
        assert (refused.status, refused.json()["code"], status) == (503, "overloaded", 201)


@pytest.mark.parametrize(
    "headers", [{}, {"x_request_id": "from-the-client"}, {"origin": ORIGIN}, {"connection": "keep-alive"}]
)
def test_a_refusal_has_the_headers_of_every_response(small_server: LiveServer, headers: dict[str, str]) -> None:
    with RawConnection(small_server.url) as connection:
        refused, status = refuse_and_accept(small_server, connection, **headers)
    assert (refused.status, refused.json()["code"], status) == (503, "overloaded", 201)
    assert refused.headers["x-content-type-options"] == "nosniff"
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["x-request-id"] == refused.json()["request_id"]
    assert headers.get("x_request_id") in {None, refused.json()["request_id"]}
    assert ("access-control-allow-origin" in refused.headers) == ("origin" in headers)


def test_a_new_connection_is_refused_and_can_be_used_later(small_server: LiveServer) -> None:
    with overload(small_server):
        small_server.client("client").post("/v1/jobs", json=JOB)
        with RawConnection(small_server.url) as connection:
            for _ in range(3):
                connection.send_request("POST", "/v1/jobs", small_server.keys["client"], BODY)
                assert connection.read_response().status == 503
            connection.send_request("GET", "/healthz")
            assert connection.read_response().status == 200
            connection.send_request("POST", "/v1/jobs", small_server.keys["client"], BODY)
            assert connection.read_response().status == 503


def test_a_body_that_arrives_after_the_refusal_is_not_parsed_as_a_request(small_server: LiveServer) -> None:
    body = b"POST /v1/jobs HTTP/1.1\r\n\r\n"
    with overload(small_server):
        small_server.client("client").post("/v1/jobs", json=JOB)
        with RawConnection(small_server.url) as connection:
            connection.send(connection.head("POST", "/v1/jobs", small_server.keys["client"], body))
            assert connection.read_response().status == 503
            connection.send(body)
            connection.send_request("GET", "/healthz")
            assert connection.read_response().json() == {"status": "ok"}


def test_a_connection_that_the_client_wants_closed_is_closed_after_the_refusal(small_server: LiveServer) -> None:
    with overload(small_server):
        small_server.client("client").post("/v1/jobs", json=JOB)
        connections = [RawConnection(small_server.url) for _ in range(8)]  # a burst is accepted in one turn
        for connection in connections:
            connection.send_request("POST", "/v1/jobs", small_server.keys["client"], BODY, connection="close")
        for connection in connections:
            with connection:
                refused = connection.read_response()
                assert (refused.status, refused.headers["connection"]) == (503, "close")
                assert connection.wait_closed()


def test_a_request_is_admitted_if_another_ends_before_its_turn_to_be_refused(small_server: LiveServer) -> None:
    async def decide_later() -> list[bool]:
        admission = RequestAdmission(small_server.engine, HttpSettings(writes_in_progress_max=1))
        admitted: list[bool] = []
        for _ in range(2):
            admission.defer(lambda: admitted.append(admission.admits(WorkClass.WRITE)))
        assert admission.admits(WorkClass.WRITE)
        assert not admission.admits(WorkClass.WRITE)
        admission.in_progress[WorkClass.WRITE] -= 1
        await asyncio.sleep(0)
        return admitted

    assert asyncio.run(decide_later()) == [True, False]


def test_refusals_leave_time_for_requests_in_progress(small_server: LiveServer) -> None:
    async def count_decisions_of_a_turn(deferred: int) -> int:
        admission = RequestAdmission(small_server.engine, HttpSettings())
        slow: list[float] = []

        def decide() -> None:
            end = time.monotonic() + 0.001
            while time.monotonic() < end:
                pass
            slow.append(end)

        for _ in range(deferred):
            admission.defer(decide)
        await asyncio.sleep(0)
        return len(slow)

    assert asyncio.run(count_decisions_of_a_turn(100)) < 100


def test_connections_are_opened_for_as_many_requests_as_the_server_handles(small_server: LiveServer) -> None:
    async def open_connections() -> list[bool]:
        admission = RequestAdmission(small_server.engine, HttpSettings(writes_in_progress_max=2))
        opened: list[bool] = []
        for _ in range(3):
            opened.append(not admission.refuses(WorkClass.WRITE))
            if opened[-1]:
                admission.expect(WorkClass.WRITE)
        for _ in range(3):  # the clients have closed the connections before the server has read them
            await asyncio.sleep(0)
            opened.append(not admission.refuses(WorkClass.WRITE))
        return opened

    assert asyncio.run(open_connections()) == [True, True, False, False, True, True]


@pytest.mark.parametrize(("free", "accepted"), [(1_000, 50), (80, 40), (0, 32)])
def test_a_burst_of_connections_is_accepted_in_one_turn_of_the_event_loop(free: int, accepted: int) -> None:
    """Near the limit of connections, fewer are accepted in a turn."""
    burst = 50

    async def accept_burst() -> int:
        opened: list[asyncio.Protocol] = []

        def make_protocol() -> asyncio.Protocol:
            opened.append(asyncio.Protocol())
            return opened[-1]

        listening = bind("127.0.0.1", 0)
        listening.settimeout(0)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with ExitStack() as connections, closing(listening):
            for _ in range(burst):
                connections.enter_context(RawConnection(url))
            BurstAcceptor([listening], make_protocol, None, lambda: free).schedule()
            for _ in range(2):  # the first turn accepts the connections, the second one opens them
                await asyncio.sleep(0)
            return len(opened)

    assert asyncio.run(accept_burst()) == accepted
