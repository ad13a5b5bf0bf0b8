"""`submit_many`: requests within the server's limits, and an outcome for every job."""

from typing import Any

import pytest
from msgspec import json
from msgspec.structs import replace

from callsheet.client import APIConnectionError, CallsheetError, NewJob
from tests.client.both_clients import ClientFactory
from tests.client.stub_server import ScriptedResponse, StubServer, problem
from tests.support.processes.live_server import LiveServer

CREATED = {"status": 201, "job_id": "j1"}
UNAVAILABLE = {"status": 503, "problem": {"code": "unavailable"}}


def results(*outcomes: dict[str, Any]) -> ScriptedResponse:
    return ScriptedResponse(200, {"results": outcomes})


def job(name: str, **more: Any) -> NewJob:
    return NewJob(workflow=name, user="ann", **more)


def sent_jobs(stub: StubServer) -> list[str]:
    """Return the jobs of each request, by the one-letter names of their workflows."""
    return ["".join(one["workflow"] for one in request.body["jobs"]) for request in stub.requests]


def idempotency_keys(stub: StubServer) -> dict[str, str]:
    return {one["workflow"]: one["idempotency_key"] for request in stub.requests for one in request.body["jobs"]}


@pytest.fixture
def two_jobs_per_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callsheet.client.batched_submit._JOBS_MAX", 2)


def test_requests_stay_within_the_size_limit_and_a_large_job_is_sent_alone(
    stub: StubServer, client_of: ClientFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = [job(name, idempotency_key=name, input="x" * 100) for name in "abcef"], job("d", input="x" * 1_000)
    monkeypatch.setattr("callsheet.client.batched_submit._BYTES_MAX", 2 * len(json.encode(small[0])))
    stub.responses = [results(CREATED, CREATED), results(CREATED), results(CREATED), results(CREATED, CREATED)]
    outcomes = client_of(stub.url).jobs.submit_many([*small[:3], large, *small[3:]])
    assert sent_jobs(stub) == ["ab", "c", "d", "ef"]
    assert [outcome.idempotency_key for outcome in outcomes] == list(idempotency_keys(stub).values())


def test_jobs_that_exceed_the_limit_of_one_request_are_all_accepted(
    live_server: LiveServer, client_of: ClientFactory
) -> None:
    client = client_of(live_server.url, live_server.keys["client"])
    new = NewJob(workflow="sketch", user="ann", input={"prompt": "x" * 250_000}, labels={"bulk": "large"})
    outcomes = client.jobs.submit_many([new] * 70)
    assert {outcome.status for outcome in outcomes} == {201}
    for outcome in outcomes:
        client.jobs.cancel(outcome.job_id)


@pytest.mark.usefixtures("two_jobs_per_request")
def test_a_rejected_request_is_the_outcome_of_its_jobs_only(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [results(CREATED, CREATED), problem(413, "body_too_large", bytes_max=7), results(CREATED)]
    outcomes = client_of(stub.url).jobs.submit_many([job(name) for name in "abcde"])
    assert [outcome.status for outcome in outcomes] == [201, 201, 413, 413, 201]
    assert outcomes[2].problem == {
        "code": "body_too_large", "message": "Not now.", "status": 413, "request_id": "r1", "bytes_max": 7,
    }  # fmt: skip
    assert sent_jobs(stub) == ["ab", "cd", "e"]
    assert [outcome.idempotency_key for outcome in outcomes] == list(idempotency_keys(stub).values())


@pytest.mark.usefixtures("two_jobs_per_request")
@pytest.mark.parametrize(("failure", "status", "code"), [
    (problem(503, "unavailable"), 503, "unavailable"), (ScriptedResponse(drop=True), 0, "connection_failed"),
])  # fmt: skip
def test_after_a_server_failure_nothing_more_is_sent_and_accepted_jobs_are_returned(
    stub: StubServer, client_of: ClientFactory, failure: ScriptedResponse, status: int, code: str
) -> None:
    stub.responses = [results(CREATED, CREATED), failure]
    outcomes = client_of(stub.url).jobs.submit_many([job(name) for name in "abcdefg"])
    assert [outcome.status for outcome in outcomes] == [201, 201, *[status] * 5]
    assert {outcome.problem["code"] for outcome in outcomes[2:]} == {code}
    assert set(sent_jobs(stub)) == {"ab", "cd"}
    assert len({outcome.idempotency_key for outcome in outcomes}) == 7


@pytest.mark.usefixtures("two_jobs_per_request")
def test_a_failure_of_the_first_request_is_raised(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [problem(401, "unauthorized")]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url).jobs.submit_many([job(name) for name in "abc"])
    assert (refused.value.code, sent_jobs(stub)) == ("unauthorized", ["ab"])
    with pytest.raises(APIConnectionError):
        client_of("http://127.0.0.1:1").jobs.submit_many([job("a")])


def test_accepted_jobs_of_a_request_are_returned_when_resending_the_others_fails(
    stub: StubServer, client_of: ClientFactory
) -> None:
    stub.responses = [results(CREATED, UNAVAILABLE), problem(401, "unauthorized")]
    outcomes = client_of(stub.url).jobs.submit_many([job("a"), job("b")])
    assert [outcome.status for outcome in outcomes] == [201, 503]
    assert sent_jobs(stub) == ["ab", "b"]


@pytest.mark.usefixtures("two_jobs_per_request")
def test_nothing_is_sent_if_one_job_cannot_be_encoded(stub: StubServer, client_of: ClientFactory) -> None:
    with pytest.raises(TypeError):
        client_of(stub.url).jobs.submit_many([*(job(name) for name in "abcd"), job("e", input=object())])
    assert stub.requests == []


def test_a_job_sent_again_with_the_key_of_its_outcome_is_a_replay(
    live_server: LiveServer, client_of: ClientFactory
) -> None:
    client = client_of(live_server.url, live_server.keys["client"])
    new = NewJob(workflow="sketch", user="ann", input={})
    [first] = client.jobs.submit_many([new])
    [again] = client.jobs.submit_many([replace(new, idempotency_key=first.idempotency_key)])
    assert (first.status, again.status, again.replay, again.job_id) == (201, 200, True, first.job_id)
    client.jobs.cancel(first.job_id)
