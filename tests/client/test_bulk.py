"""Many jobs at once: requests that a server takes, and no outcome of what it accepted is lost."""

from typing import Any

import pytest
from msgspec import json
from msgspec.structs import replace

from callsheet.client import APIConnectionError, CallsheetError, NewJob
from tests.client.both_clients import ClientFactory
from tests.client.stub_server import ScriptedResponse, StubServer, problem
from tests.support.processes.live_server import LiveServer

DONE = {"status": 201, "job_id": "j1"}
AWAY = {"status": 503, "problem": {"code": "unavailable"}}


def results(*outcomes: dict[str, Any]) -> ScriptedResponse:
    return ScriptedResponse(200, {"results": outcomes})


def job(name: str, **more: Any) -> NewJob:
    return NewJob(workflow=name, user="ann", **more)


def sent_jobs(stub: StubServer) -> list[str]:
    """Return the jobs of each request, by the letters of their workflows."""
    return ["".join(one["workflow"] for one in asked.body["jobs"]) for asked in stub.asked]


def keys(stub: StubServer) -> dict[str, str]:
    return {one["workflow"]: one["idempotency_key"] for asked in stub.asked for one in asked.body["jobs"]}


@pytest.fixture
def two_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callsheet.client.bulk_submit._JOBS_MAX", 2)


def test_a_request_stays_below_what_a_server_takes_and_a_large_job_goes_alone(
    stub: StubServer, client_of: ClientFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = [job(name, idempotency_key=name, input="x" * 100) for name in "abcef"], job("d", input="x" * 1_000)
    monkeypatch.setattr("callsheet.client.bulk_submit._BYTES_MAX", 2 * len(json.encode(small[0])))
    stub.responses = [results(DONE, DONE), results(DONE), results(DONE), results(DONE, DONE)]
    outcomes = client_of(stub.url).jobs.submit_many([*small[:3], large, *small[3:]])
    assert sent_jobs(stub) == ["ab", "c", "d", "ef"]
    assert [outcome.idempotency_key for outcome in outcomes] == list(keys(stub).values())


def test_jobs_that_together_are_larger_than_a_server_takes_are_all_accepted(
    live_server: LiveServer, client_of: ClientFactory
) -> None:
    client = client_of(live_server.url, live_server.keys["client"])
    new = NewJob(workflow="sketch", user="ann", input={"prompt": "x" * 250_000}, labels={"bulk": "large"})
    outcomes = client.jobs.submit_many([new] * 70)
    assert {outcome.status for outcome in outcomes} == {201}
    for outcome in outcomes:
        client.jobs.cancel(outcome.job_id)


@pytest.mark.usefixtures("two_a_request")
def test_a_request_that_is_refused_is_the_outcome_of_its_jobs_and_the_others_keep_theirs(
    stub: StubServer, client_of: ClientFactory
) -> None:
    stub.responses = [results(DONE, DONE), problem(413, "body_too_large", bytes_max=7), results(DONE)]
    outcomes = client_of(stub.url).jobs.submit_many([job(name) for name in "abcde"])
    assert [outcome.status for outcome in outcomes] == [201, 201, 413, 413, 201]
    assert outcomes[2].problem == {
        "code": "body_too_large", "message": "Not now.", "status": 413, "request_id": "r1", "bytes_max": 7,
    }  # fmt: skip
    assert sent_jobs(stub) == ["ab", "cd", "e"]
    assert [outcome.idempotency_key for outcome in outcomes] == list(keys(stub).values())


@pytest.mark.usefixtures("two_a_request")
@pytest.mark.parametrize(("said", "status", "code"), [
    (problem(503, "unavailable"), 503, "unavailable"), (ScriptedResponse(drop=True), 0, "connection_failed"),
])  # fmt: skip
def test_a_server_that_goes_away_is_not_asked_for_the_rest_and_what_it_accepted_is_returned(
    stub: StubServer, client_of: ClientFactory, said: ScriptedResponse, status: int, code: str
) -> None:
    stub.responses = [results(DONE, DONE), said]
    outcomes = client_of(stub.url).jobs.submit_many([job(name) for name in "abcdefg"])
    assert [outcome.status for outcome in outcomes] == [201, 201, *[status] * 5]
    assert {outcome.problem["code"] for outcome in outcomes[2:]} == {code}
    assert set(sent_jobs(stub)) == {"ab", "cd"}
    assert len({outcome.idempotency_key for outcome in outcomes}) == 7


@pytest.mark.usefixtures("two_a_request")
def test_what_fails_before_anything_was_answered_is_raised(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [problem(401, "unauthorized")]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url).jobs.submit_many([job(name) for name in "abc"])
    assert (refused.value.code, sent_jobs(stub)) == ("unauthorized", ["ab"])
    with pytest.raises(APIConnectionError):
        client_of("http://127.0.0.1:1").jobs.submit_many([job("a")])


def test_accepted_jobs_of_a_request_are_returned_when_resending_the_others_fails(
    stub: StubServer, client_of: ClientFactory
) -> None:
    stub.responses = [results(DONE, AWAY), problem(401, "unauthorized")]
    outcomes = client_of(stub.url).jobs.submit_many([job("a"), job("b")])
    assert [outcome.status for outcome in outcomes] == [201, 503]
    assert sent_jobs(stub) == ["ab", "b"]


@pytest.mark.usefixtures("two_a_request")
def test_nothing_is_sent_if_one_of_them_cannot_be(stub: StubServer, client_of: ClientFactory) -> None:
    with pytest.raises(TypeError):
        client_of(stub.url).jobs.submit_many([*(job(name) for name in "abcd"), job("e", input=object())])
    assert stub.asked == []


def test_an_outcomes_key_makes_it_safe_to_send_its_job_again(live_server: LiveServer, client_of: ClientFactory) -> None:
    client = client_of(live_server.url, live_server.keys["client"])
    new = NewJob(workflow="sketch", user="ann", input={})
    [first] = client.jobs.submit_many([new])
    [again] = client.jobs.submit_many([replace(new, idempotency_key=first.idempotency_key)])
    assert (first.status, again.status, again.replay, again.job_id) == (201, 200, True, first.job_id)
    client.jobs.cancel(first.job_id)
