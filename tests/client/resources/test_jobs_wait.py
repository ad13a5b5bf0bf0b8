"""`jobs.wait` and its timeout, on a virtual clock, with a driver that never sleeps."""

import json
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import httpx
import pytest

from callsheet.client import APIConnectionError, CallsheetError
from callsheet.client.clients import BaseClient
from callsheet.client.drivers.sync import SyncDriver
from callsheet.client.operation_effects import IterableOperation, Operation, Reply, Request, Send, Sleep, TransportError
from callsheet.client.transport import build_request
from callsheet.core.model.state_machines import JOB as JOB_MACHINE
from tests.client.stub_server import JOB

T = TypeVar("T")
URL = "http://ann:secret@film.example:8787"
Rule = Callable[[int, float, float], tuple[float, Reply | TransportError]]
"""Takes the number of the request, the seconds the server may hold it, and the read timeout; returns when which
response arrives."""


TIMEOUT_SECONDS = 30.0


class ClockedDriver(SyncDriver):
    """A driver whose clock advances only by the effects it performs."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(httpx.Client(base_url=URL), TIMEOUT_SECONDS)
        self.now = 100.0
        self.requests = 0
        self._rule = rule

    @property
    def elapsed(self) -> float:
        return self.now - 100.0

    def run(self, operation: Operation[T]) -> T:
        answer: Any = None
        while True:
            try:
                effect = operation.throw(answer) if isinstance(answer, TransportError) else operation.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = self._perform(effect)

    def each(self, operation: IterableOperation[T]) -> Generator[T, None, None]:
        raise NotImplementedError

    def _perform(self, effect: Any) -> Any:
        match effect:
            case Send(request):
                return self._respond(request)
            case Sleep(seconds):
                self.now += seconds
        return None

    def _respond(self, request: Request) -> Any:
        self.requests += 1
        timeout = build_request(self._http, request, TIMEOUT_SECONDS, None).extensions["timeout"]["read"]
        seconds, answer = self._rule(self.requests, float(request.query["wait_seconds"]), timeout)
        self.now += min(seconds, timeout)
        return answer if seconds <= timeout else TransportError("timed out", sent=True)


class ClockedClient(BaseClient[SyncDriver]):
    """A client on a ClockedDriver."""

    def __init__(self, driver: ClockedDriver) -> None:
        super().__init__(driver, URL, None)
        self.driver = driver

    @property
    def requests(self) -> int:
        return self.driver.requests

    @property
    def elapsed(self) -> float:
        return self.driver.elapsed


@pytest.fixture
def make_clocked_client(monkeypatch: pytest.MonkeyPatch) -> Callable[[Rule], ClockedClient]:
    def make(rule: Rule) -> ClockedClient:
        driver = ClockedDriver(rule)
        monkeypatch.setattr("callsheet.client.deadline.monotonic", lambda: driver.now)
        return ClockedClient(driver)

    return make


def row(status: str = "running", **more: Any) -> Reply:
    return Reply(200, {}, json.dumps(JOB | {"status": status, **more}).encode())


def refusing(_no: int, _hold: float, _timeout: float) -> tuple[float, Reply | TransportError]:
    return 0.0, TransportError("connection refused", sent=False)


def silent(_no: int, _hold: float, timeout: float) -> tuple[float, Reply | TransportError]:
    return timeout + 1, row()


def busy(_no: int, _hold: float, _timeout: float) -> tuple[float, Reply | TransportError]:
    body = {"code": "unavailable", "message": "Not now.", "status": 503}
    return 0.01, Reply(503, {"retry-after": "60"}, json.dumps(body).encode())


def working(_no: int, hold: float, _timeout: float) -> tuple[float, Reply | TransportError]:
    return hold + 0.02, row()


@pytest.mark.parametrize("rule", [refusing, silent])
@pytest.mark.parametrize("timeout", [1, 5.0])
def test_a_server_that_never_answers_is_a_connection_error_after_the_timeout(
    make_clocked_client: Callable[[Rule], ClockedClient], rule: Rule, timeout: float
) -> None:
    client = make_clocked_client(rule)
    with pytest.raises(APIConnectionError, match=r"^No response from http://film\.example:8787: ") as refused:
        client.jobs.wait("j1", timeout=timeout)
    assert client.elapsed == pytest.approx(timeout, abs=0.002)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("rule", [refusing, silent, busy])
@pytest.mark.parametrize("timeout", [1, 35])
def test_a_server_that_stops_answering_is_a_timeout_that_names_the_last_status(
    make_clocked_client: Callable[[Rule], ClockedClient], rule: Rule, timeout: float
) -> None:
    def first_running(no: int, hold: float, read_timeout: float) -> tuple[float, Reply | TransportError]:
        return (hold, row()) if no == 1 else rule(no, hold, read_timeout)

    client = make_clocked_client(first_running)
    with pytest.raises(TimeoutError, match="Job j1 was running when it was last read"):
        client.jobs.wait("j1", timeout=timeout)
    assert client.elapsed == pytest.approx(timeout, abs=0.002)


def test_a_retry_after_beyond_the_timeout_is_not_awaited(
    make_clocked_client: Callable[[Rule], ClockedClient],
) -> None:
    client = make_clocked_client(busy)
    with pytest.raises(CallsheetError) as refused:
        client.jobs.wait("j1", timeout=5)
    assert (refused.value.code, client.requests) == ("unavailable", 1)
    assert client.elapsed == pytest.approx(5, abs=0.002)


@pytest.mark.parametrize("timeout", [0.5, 10, 65])
def test_a_job_that_does_not_end_is_a_timeout_that_names_its_status(
    make_clocked_client: Callable[[Rule], ClockedClient], timeout: float
) -> None:
    client = make_clocked_client(working)
    with pytest.raises(TimeoutError, match=f"Job j1 is still running after {timeout} seconds"):
        client.jobs.wait("j1", timeout=timeout)
    assert timeout - 0.05 <= client.elapsed <= timeout
    assert client.requests <= timeout // 30 + 5, "the server holds each response"


def test_a_timeout_of_0_sends_one_request_that_may_take_a_second(
    make_clocked_client: Callable[[Rule], ClockedClient],
) -> None:
    client = make_clocked_client(lambda _no, hold, _timeout: (hold + 0.9, row("queued")))
    with pytest.raises(TimeoutError, match="is still queued after 0 seconds"):
        client.jobs.wait("j1", timeout=0)
    assert client.requests == 1
    with pytest.raises(APIConnectionError):
        make_clocked_client(silent).jobs.wait("j1", timeout=0)


def test_a_rejection_is_raised_even_after_the_timeout(
    make_clocked_client: Callable[[Rule], ClockedClient],
) -> None:
    deleted = Reply(404, {}, json.dumps({"code": "job_not_found", "message": "Gone.", "status": 404}).encode())
    client = make_clocked_client(lambda no, hold, timeout: (hold, row()) if no == 1 else (timeout, deleted))
    with pytest.raises(CallsheetError) as refused:
        client.jobs.wait("j1", timeout=5)
    assert refused.value.code == "job_not_found"


def test_a_wait_without_a_timeout_survives_as_many_failures_as_the_retry_policy_allows(
    make_clocked_client: Callable[[Rule], ClockedClient],
) -> None:
    done = row("completed", finished_at="2026-01-31T12:00:09.000Z")
    client = make_clocked_client(lambda no, hold, timeout: (hold, done) if no == 6 else refusing(no, hold, timeout))
    assert client.jobs.wait("j1").completed
    assert client.requests == 6


@pytest.mark.parametrize("status", sorted(JOB_MACHINE.terminal))
def test_a_wait_ends_at_every_terminal_status(
    make_clocked_client: Callable[[Rule], ClockedClient], status: str
) -> None:
    # R265
    ended = row(status, finished_at="2026-01-31T12:00:09.000Z")
    client = make_clocked_client(lambda no, hold, _timeout: (hold, row() if no == 1 else ended))
    assert client.jobs.wait("j1").status == status
    assert client.requests == 2
