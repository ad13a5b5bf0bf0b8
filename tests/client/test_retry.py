"""Retries: which requests are sent again, how long the client waits, and what it never sends twice."""

import asyncio
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from callsheet.client import (
    APIConnectionError,
    AsyncClient,
    CallsheetError,
    CorruptFileError,
    NewJob,
    RetryPolicy,
)
from callsheet.client.operation_effects import Reply, Request, Sleep
from callsheet.client.retry import send_with_retries
from tests.client.both_clients import ClientFactory
from tests.client.stub_server import JOB, ScriptedResponse, StubServer, problem

UNAVAILABLE = problem(503, "unavailable")
BUSY = ScriptedResponse(429, {"code": "busy", "message": "Later.", "status": 429}, {"retry-after": "0"})


def test_a_submit_is_retried_with_the_same_idempotency_key(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [
        UNAVAILABLE,
        ScriptedResponse(drop=True),
        ScriptedResponse(502, "<html>"),
        ScriptedResponse(201, JOB),
    ]
    assert client_of(stub.url, "k").jobs.submit("sketch", user="ann").id == "j1"
    keys = {request.body["idempotency_key"] for request in stub.requests}
    assert (len(stub.requests), len(keys), len(keys.pop())) == (4, 1, 32)
    assert {request.headers["authorization"] for request in stub.requests} == {"Bearer k"}


def test_every_submit_gets_its_own_idempotency_key_unless_the_caller_passes_one(
    stub: StubServer, client_of: ClientFactory
) -> None:
    stub.responses = [ScriptedResponse(201, JOB)]
    client = client_of(stub.url)
    client.jobs.submit("sketch", user="ann")
    client.jobs.submit("sketch", user="ann")
    client.jobs.submit("sketch", user="ann", idempotency_key="mine")
    first, second, third = (request.body["idempotency_key"] for request in stub.requests)
    assert first != second
    assert third == "mine"
    stub.responses = [ScriptedResponse(200, {"results": [{"status": 201}] * 2})]
    client.jobs.submit_many([NewJob(workflow="sketch", user="ann"), NewJob(workflow="sketch", user="ann")])
    many = stub.requests[-1].body["jobs"]
    assert len({job["idempotency_key"] for job in many}) == 2


def test_only_the_unavailable_jobs_of_a_bulk_submit_are_sent_again(stub: StubServer, client_of: ClientFactory) -> None:
    created, unavailable = {"status": 201, "job_id": "j1"}, {"status": 503, "problem": {"code": "unavailable"}}
    unpaid = {"status": 402, "problem": {"code": "insufficient_credits"}}
    stub.responses = [
        ScriptedResponse(200, {"results": [created, unavailable, unpaid, unavailable]}),
        ScriptedResponse(200, {"results": [unavailable, created]}),
        ScriptedResponse(200, {"results": [created]}),
    ]
    outcomes = client_of(stub.url).jobs.submit_many([NewJob(workflow=name, user="ann") for name in "abcd"])
    assert [outcome.status for outcome in outcomes] == [201, 201, 402, 201]
    sent = [{job["workflow"]: job["idempotency_key"] for job in request.body["jobs"]} for request in stub.requests]
    assert [list(some) for some in sent] == [["a", "b", "c", "d"], ["b", "d"], ["b"]]
    assert (sent[0]["b"], sent[0]["d"]) == (sent[2]["b"], sent[1]["d"])


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("jobs.delete", ("j1",)), ("jobs.add_tasks", ("j1", 1, [{}])), ("jobs.add_stage", ("j1", {})),
        ("keys.create", ("studio", "client")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("failure", [UNAVAILABLE, ScriptedResponse(drop=True)])
def test_a_request_that_is_not_idempotent_is_not_sent_again(
    stub: StubServer, client_of: ClientFactory, name: str, args: tuple[Any, ...], failure: ScriptedResponse
) -> None:
    stub.responses = [failure]
    with pytest.raises(CallsheetError):
        attrgetter(name)(client_of(stub.url))(*args)
    assert len(stub.requests) == 1


def test_a_request_that_was_rate_limited_is_sent_again_even_if_it_is_not_idempotent(
    stub: StubServer, client_of: ClientFactory
) -> None:
    stub.responses = [BUSY, BUSY, ScriptedResponse(200, {"files": 1, "bytes": 7, "pending": False})]
    assert client_of(stub.url).jobs.delete("j1").bytes == 7
    assert len(stub.requests) == 3


def test_a_request_that_an_overloaded_server_refused_is_sent_again_even_if_it_is_not_idempotent(
    stub: StubServer, client_of: ClientFactory
) -> None:
    overloaded = problem(503, "overloaded")
    stub.responses = [overloaded, overloaded, ScriptedResponse(200, {"files": 1, "bytes": 7, "pending": False})]
    assert client_of(stub.url).jobs.delete("j1").bytes == 7
    assert len(stub.requests) == 3


def test_a_random_delay_is_added_to_retry_after_so_that_clients_do_not_return_together() -> None:
    refused = Reply(503, {"retry-after": "5"}, b'{"code": "overloaded"}')
    context = SimpleNamespace(url="http://callsheet", retry_policy=RetryPolicy(retries_max=1, base_seconds=2.0))
    delays: set[float] = set()
    for _ in range(20):
        operation = send_with_retries(context, Request("GET", "/v1/me"))
        next(operation)
        sleep = operation.send(refused)
        assert isinstance(sleep, Sleep)
        delays.add(sleep.seconds)
    assert all(6.0 <= delay <= 7.0 for delay in delays)
    assert len(delays) > 1


def test_retrying_a_job_uses_one_idempotency_key_for_all_attempts_of_the_request(
    stub: StubServer, client_of: ClientFactory
) -> None:
    stub.responses = [UNAVAILABLE, ScriptedResponse(drop=True), ScriptedResponse(200, JOB | {"run": 2})]
    client = client_of(stub.url)
    assert client.jobs.retry("j1").run == 2
    (key,) = {request.body["idempotency_key"] for request in stub.requests}
    assert (len(stub.requests), len(key)) == (3, 32)
    client.jobs.retry("j1", "new_job", idempotency_key="mine")
    assert stub.requests[-1].body == {"retry_as": "new_job", "idempotency_key": "mine"}


@pytest.mark.parametrize(("key", "header", "replay"), [
    ("mine", {"idempotent-replay": "true"}, True), ("mine", {}, False), (None, {"idempotent-replay": "true"}, False),
])  # fmt: skip
def test_a_submit_reports_a_replay_only_of_the_callers_own_key(
    stub: StubServer, client_of: ClientFactory, key: str | None, header: dict[str, str], *, replay: bool
) -> None:
    """A replay of a generated key is an earlier attempt of the same call whose response was lost."""
    stub.responses = [ScriptedResponse(200, JOB, header)]
    client = client_of(stub.url)
    assert client.jobs.submit("sketch", user="ann", idempotency_key=key).replay is replay
    assert not hasattr(client.jobs.get("j1"), "replay")


def test_a_wait_survives_failed_polls(stub: StubServer, client_of: ClientFactory) -> None:
    """R268: a successful poll resets the count of failures."""
    running = ScriptedResponse(200, JOB | {"status": "running", "progress": 40})
    done = ScriptedResponse(200, JOB | {"status": "completed", "finished_at": "2026-01-31T12:00:09.000Z"})
    broken = [UNAVAILABLE, ScriptedResponse(drop=True), ScriptedResponse(502, "<html>"), BUSY]
    stub.responses = [running, *broken, running, *broken, done]
    assert client_of(stub.url).jobs.wait("j1").status == "completed"
    assert [request.path for request in stub.requests] == ["/v1/jobs/j1?wait_seconds=30.0"] * 11


def test_a_wait_sends_one_request_at_a_time() -> None:
    # R264
    statuses = iter(["running", "running", "completed"])
    open_requests: list[httpx.Request] = []
    overlaps: list[int] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        open_requests.append(request)
        for _ in range(10):  # other tasks of the event loop may run
            await asyncio.sleep(0)
        overlaps.append(len(open_requests))
        open_requests.remove(request)
        status = next(statuses)
        return httpx.Response(
            200, json=JOB | {"status": status, "finished_at": JOB["created_at"] if status == "completed" else None}
        )

    async def wait() -> str:
        async with AsyncClient("http://x", transport=httpx.MockTransport(answer)) as client:
            return (await client.jobs.wait("j1")).status

    assert (asyncio.run(wait()), overlaps) == ("completed", [1, 1, 1])


def test_a_limit_of_the_users_own_jobs_is_raised_at_once(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [problem(429, "too_many_active_jobs")._replace(headers=BUSY.headers)]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url).jobs.submit("sketch", user="ann")
    assert (refused.value.code, len(stub.requests)) == ("too_many_active_jobs", 1)


def test_after_the_last_retry_the_servers_error_is_raised(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [UNAVAILABLE]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url).jobs.get("j1")
    assert (refused.value.code, refused.value.status, refused.value.request_id) == ("unavailable", 503, "r1")
    assert len(stub.requests) == 5


def test_a_rejected_request_is_not_retried(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [problem(402, "insufficient_credits", required=3, balance=1)]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url).jobs.submit("sketch", user="ann")
    assert refused.value.details == {"required": 3, "balance": 1}
    assert len(stub.requests) == 1


def test_an_unreachable_url_is_reported_without_its_password(client_of: ClientFactory) -> None:
    with pytest.raises(APIConnectionError, match=r"^No response from http://127\.0\.0\.1:1: ") as refused:
        client_of("http://name:secret-key@127.0.0.1:1/base", "secret-key").jobs.retry("j1")
    assert (refused.value.code, "secret-key" in str(refused.value)) == ("connection_failed", False)


def test_a_response_from_another_kind_of_server_is_an_error_with_a_code(
    stub: StubServer, client_of: ClientFactory
) -> None:
    stub.responses = [ScriptedResponse(200, "<html>hello</html>")]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url).jobs.get("j1")
    assert refused.value.code == "invalid_response"
    stub.responses = [ScriptedResponse(500, "<html>oh</html>")]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url).jobs.get("j1")
    assert refused.value.code == "http_500"


def test_a_truncated_download_is_retried_and_a_corrupt_one_is_not_saved(
    stub: StubServer, client_of: ClientFactory, tmp_path: Path
) -> None:
    sha = "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7"  # of "data"
    stub.responses = [
        ScriptedResponse(200, "da", {"etag": f'"{sha}"'}, truncated=True),
        ScriptedResponse(200, "data", {"etag": f'"{sha}"'}),
    ]
    client = client_of(stub.url)
    assert client.files.download("f1", tmp_path / "f").read_bytes() == b"data"
    stub.responses = [ScriptedResponse(200, "dada", {"etag": f'"{sha}"'})]
    with pytest.raises(CorruptFileError):
        client.files.download("f1", tmp_path / "g")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_delays_double_up_to_a_limit_and_are_random() -> None:
    retry_policy = RetryPolicy(base_seconds=1, max_seconds=8)
    for failures, upper in ((1, 1), (2, 2), (3, 4), (4, 8), (9, 8)):
        delays = [retry_policy.delay_seconds(failures) for _ in range(50)]
        assert all(upper / 2 <= delay <= upper for delay in delays)
        assert len(set(delays)) > 1
