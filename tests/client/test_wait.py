"""Waiting for a job has an end: on a clock of its own, with a driver that answers by a rule and never sleeps."""

import json
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import httpx
import pytest

from callsheet.client import APIConnectionError, CallsheetError
from callsheet.client.clients import BaseClient
from callsheet.client.drivers.sync import SyncDriver
from callsheet.client.operations import IterableOperation, Operation, Reply, Request, Send, Sleep, TransportError
from callsheet.client.transport import build_request
from tests.client.stub_server import JOB

T = TypeVar("T")
URL = "http://ann:secret@film.example:8787"
Rule = Callable[[int, float, float], tuple[float, Reply | TransportError]]
"""Which request it is, how long the server is asked to hold it, how long it is waited for: when what comes."""


TIMEOUT_SECONDS = 30.0


class ClockedDriver(SyncDriver):
    """A driver whose clock advances only by the effects it performs."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(httpx.Client(base_url=URL), TIMEOUT_SECONDS)
        self.now = 100.0
        self.asked = 0
        self._rule = rule

    @property
    def passed(self) -> float:
        return self.now - 100.0

    def run(self, operation: Operation[T]) -> T:
        answer: Any = None
        while True:
            try:
                ask = operation.throw(answer) if isinstance(answer, TransportError) else operation.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = self._done(ask)

    def each(self, operation: IterableOperation[T]) -> Generator[T, None, None]:
        raise NotImplementedError

    def _done(self, ask: Any) -> Any:
        match ask:
            case Send(request):
                return self._answered(request)
            case Sleep(seconds):
                self.now += seconds
        return None

    def _answered(self, request: Request) -> Any:
        self.asked += 1
        patience = build_request(self._http, request, TIMEOUT_SECONDS, None).extensions["timeout"]["read"]
        seconds, answer = self._rule(self.asked, float(request.query["wait_seconds"]), patience)
        self.now += min(seconds, patience)
        return answer if seconds <= patience else TransportError("timed out", sent=True)


class ClockedClient(BaseClient[SyncDriver]):
    """A client on a ClockedDriver."""

    def __init__(self, driver: ClockedDriver) -> None:
        super().__init__(driver, URL, None)
        self.driver = driver

    @property
    def asked(self) -> int:
        return self.driver.asked

    @property
    def passed(self) -> float:
        return self.driver.passed


@pytest.fixture
def make_clocked_client(monkeypatch: pytest.MonkeyPatch) -> Callable[[Rule], ClockedClient]:
    def make(rule: Rule) -> ClockedClient:
        driver = ClockedDriver(rule)
        monkeypatch.setattr("callsheet.client.deadline.monotonic", lambda: driver.now)
        return ClockedClient(driver)

    return make


def row(status: str = "running", **more: Any) -> Reply:
    return Reply(200, {}, json.dumps(JOB | {"status": status, **more}).encode())


def refusing(_no: int, _hold: float, _patience: float) -> tuple[float, Reply | TransportError]:
    return 0.0, TransportError("connection refused", sent=False)


def silent(_no: int, _hold: float, patience: float) -> tuple[float, Reply | TransportError]:
    return patience + 1, row()


def busy(_no: int, _hold: float, _patience: float) -> tuple[float, Reply | TransportError]:
    body = {"code": "unavailable", "message": "Not now.", "status": 503}
    return 0.01, Reply(503, {"retry-after": "60"}, json.dumps(body).encode())


def working(_no: int, hold: float, _patience: float) -> tuple[float, Reply | TransportError]:
    return hold + 0.02, row()


@pytest.mark.parametrize("rule", [refusing, silent])
@pytest.mark.parametrize("timeout", [1, 5.0])
def test_a_server_that_never_answered_is_given_up_when_the_time_is_over(
    make_clocked_client: Callable[[Rule], ClockedClient], rule: Rule, timeout: float
) -> None:
    client = make_clocked_client(rule)
    with pytest.raises(APIConnectionError, match=r"^No response from http://film\.example:8787: ") as refused:
        client.jobs.wait("j1", timeout=timeout)
    assert client.passed == pytest.approx(timeout, abs=0.002)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("rule", [refusing, silent, busy])
@pytest.mark.parametrize("timeout", [1, 35])
def test_a_job_that_was_seen_before_the_server_fell_silent_is_a_timeout_that_says_so(
    make_clocked_client: Callable[[Rule], ClockedClient], rule: Rule, timeout: float
) -> None:
    def then(no: int, hold: float, patience: float) -> tuple[float, Reply | TransportError]:
        return (hold, row()) if no == 1 else rule(no, hold, patience)

    client = make_clocked_client(then)
    with pytest.raises(TimeoutError, match="Job j1 was running when it was last read"):
        client.jobs.wait("j1", timeout=timeout)
    assert client.passed == pytest.approx(timeout, abs=0.002)


def test_a_server_that_is_busy_for_longer_than_there_is_time_is_not_waited_for(
    make_clocked_client: Callable[[Rule], ClockedClient],
) -> None:
    client = make_clocked_client(busy)
    with pytest.raises(CallsheetError) as refused:
        client.jobs.wait("j1", timeout=5)
    assert (refused.value.code, client.asked) == ("unavailable", 1)
    assert client.passed == pytest.approx(5, abs=0.002)


@pytest.mark.parametrize("timeout", [0.5, 10, 65])
def test_a_job_that_has_not_ended_is_waited_for_up_to_the_end_and_its_status_is_returned(
    make_clocked_client: Callable[[Rule], ClockedClient], timeout: float
) -> None:
    client = make_clocked_client(working)
    with pytest.raises(TimeoutError, match=f"Job j1 is still running after {timeout} seconds"):
        client.jobs.wait("j1", timeout=timeout)
    assert timeout - 0.05 <= client.passed <= timeout
    assert client.asked <= timeout // 30 + 5, "the server holds each answer"


def test_who_has_no_time_gets_one_look_that_may_take_a_second(
    make_clocked_client: Callable[[Rule], ClockedClient],
) -> None:
    client = make_clocked_client(lambda _no, hold, _patience: (hold + 0.9, row("queued")))
    with pytest.raises(TimeoutError, match="is still queued after 0 seconds"):
        client.jobs.wait("j1", timeout=0)
    assert client.asked == 1
    with pytest.raises(APIConnectionError):
        make_clocked_client(silent).jobs.wait("j1", timeout=0)


def test_a_refusal_is_raised_as_it_is_also_when_the_time_is_over(
    make_clocked_client: Callable[[Rule], ClockedClient],
) -> None:
    gone = Reply(404, {}, json.dumps({"code": "job_not_found", "message": "Gone.", "status": 404}).encode())
    client = make_clocked_client(lambda no, hold, patience: (hold, row()) if no == 1 else (patience, gone))
    with pytest.raises(CallsheetError) as refused:
        client.jobs.wait("j1", timeout=5)
    assert refused.value.code == "job_not_found"


def test_without_a_time_the_server_may_be_away_for_as_long_as_patience_lasts(
    make_clocked_client: Callable[[Rule], ClockedClient],
) -> None:
    done = row("completed", finished_at="2026-01-31T12:00:09.000Z")
    client = make_clocked_client(lambda no, hold, patience: (hold, done) if no == 6 else refusing(no, hold, patience))
    assert client.jobs.wait("j1").completed
    assert client.asked == 6
