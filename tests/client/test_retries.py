"""What is tried again, how long it waits, and what is never sent twice."""

import asyncio
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import Any

import httpx
import pytest

from callsheet.client import (
    APIConnectionError,
    AsyncClient,
    CallsheetError,
    Client,
    CorruptFileError,
    NewJob,
    RetryPolicy,
)
from tests.client.both_clients import ClientFactory
from tests.client.stub_server import JOB, ScriptedResponse, StubServer, problem

AWAY = problem(503, "unavailable")
BUSY = ScriptedResponse(429, {"code": "busy", "message": "Later.", "status": 429}, {"retry-after": "0"})


def test_a_submit_is_tried_again_with_the_same_key(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [AWAY, ScriptedResponse(drop=True), ScriptedResponse(502, "<html>"), ScriptedResponse(201, JOB)]
    assert client_of(stub.url, "k").jobs.submit("sketch", user="ann").id == "j1"
    keys = {asked.body["idempotency_key"] for asked in stub.asked}
    assert (len(stub.asked), len(keys), len(keys.pop())) == (4, 1, 32)
    assert {asked.headers["authorization"] for asked in stub.asked} == {"Bearer k"}


def test_a_server_learns_which_client_of_which_version_speaks_to_it(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [ScriptedResponse(200, JOB)]
    client_of(stub.url).jobs.get("j1")
    assert stub.asked[0].headers["user-agent"] == f"callsheet-python/{version('callsheet')}"


def test_every_submit_has_a_key_of_its_own_and_a_given_one_is_kept(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [ScriptedResponse(201, JOB)]
    client = client_of(stub.url)
    client.jobs.submit("sketch", user="ann")
    client.jobs.submit("sketch", user="ann")
    client.jobs.submit("sketch", user="ann", idempotency_key="mine")
    first, second, third = (asked.body["idempotency_key"] for asked in stub.asked)
    assert first != second
    assert third == "mine"
    stub.responses = [ScriptedResponse(200, {"results": [{"status": 201}] * 2})]
    client.jobs.submit_many([NewJob(workflow="sketch", user="ann"), NewJob(workflow="sketch", user="ann")])
    many = stub.asked[-1].body["jobs"]
    assert len({job["idempotency_key"] for job in many}) == 2


def test_those_of_a_bulk_that_got_no_answer_are_sent_again_and_no_others(
    stub: StubServer, client_of: ClientFactory
) -> None:
    done, away = {"status": 201, "job_id": "j1"}, {"status": 503, "problem": {"code": "unavailable"}}
    broke = {"status": 402, "problem": {"code": "insufficient_credits"}}
    stub.responses = [ScriptedResponse(200, {"results": [done, away, broke, away]}), ScriptedResponse(200,
    {"results": [away, done]}),
                 ScriptedResponse(200, {"results": [done]})]  # fmt: skip
    outcomes = client_of(stub.url).jobs.submit_many([NewJob(workflow=name, user="ann") for name in "abcd"])
    assert [outcome.status for outcome in outcomes] == [201, 201, 402, 201]
    sent = [{job["workflow"]: job["idempotency_key"] for job in asked.body["jobs"]} for asked in stub.asked]
    assert [list(some) for some in sent] == [["a", "b", "c", "d"], ["b", "d"], ["b"]]
    assert (sent[0]["b"], sent[0]["d"]) == (sent[2]["b"], sent[1]["d"])


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("jobs.delete", ("j1",)), ("jobs.add_tasks", ("j1", 1, [{}])), ("jobs.add_stage", ("j1", {})),
        ("keys.create", ("studio", "client")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("said", [AWAY, ScriptedResponse(drop=True)])
def test_what_could_be_done_twice_is_not_sent_again(
    stub: StubServer, client_of: ClientFactory, name: str, args: tuple[Any, ...], said: ScriptedResponse
) -> None:
    stub.responses = [said]
    with pytest.raises(CallsheetError):
        attrgetter(name)(client_of(stub.url))(*args)
    assert len(stub.asked) == 1


def test_what_was_turned_away_is_sent_again_whatever_it_is(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [BUSY, BUSY, ScriptedResponse(200, {"files": 1, "bytes": 7, "pending": False})]
    assert client_of(stub.url).jobs.delete("j1").bytes == 7
    assert len(stub.asked) == 3


def test_a_retry_is_tried_again_with_the_same_key_and_a_given_one_is_kept(
    stub: StubServer, client_of: ClientFactory
) -> None:
    stub.responses = [AWAY, ScriptedResponse(drop=True), ScriptedResponse(200, JOB | {"run": 2})]
    client = client_of(stub.url)
    assert client.jobs.retry("j1").run == 2
    (made,) = {asked.body["idempotency_key"] for asked in stub.asked}
    assert (len(stub.asked), len(made)) == (3, 32)
    client.jobs.retry("j1", "new_job", idempotency_key="mine")
    assert stub.asked[-1].body == {"retry_as": "new_job", "idempotency_key": "mine"}


@pytest.mark.parametrize(("key", "header", "replay"), [
    ("mine", {"idempotent-replay": "true"}, True), ("mine", {}, False), (None, {"idempotent-replay": "true"}, False),
])  # fmt: skip
def test_a_submit_says_whether_its_key_made_the_job_before(
    stub: StubServer, client_of: ClientFactory, key: str | None, header: dict[str, str], *, replay: bool
) -> None:
    """Behind a key that was made for this call there is only our own first try, whose answer was lost."""
    stub.responses = [ScriptedResponse(200, JOB, header)]
    client = client_of(stub.url)
    assert client.jobs.submit("sketch", user="ann", idempotency_key=key).replay is replay
    assert not hasattr(client.jobs.get("j1"), "replay")


def test_a_wait_outlives_polls_that_fail_and_asks_one_at_a_time(stub: StubServer, client_of: ClientFactory) -> None:
    """R264, R268: every failure but the last of its patience, and each success begins it anew."""
    running = ScriptedResponse(200, JOB | {"status": "running", "progress": 40})
    done = ScriptedResponse(200, JOB | {"status": "completed", "finished_at": "2026-01-31T12:00:09.000Z"})
    broken = [AWAY, ScriptedResponse(drop=True), ScriptedResponse(502, "<html>"), BUSY]
    stub.responses = [running, *broken, running, *broken, done]
    assert client_of(stub.url).jobs.wait("j1").status == "completed"
    assert [asked.path for asked in stub.asked] == ["/v1/jobs/j1?wait_seconds=30.0"] * 11


def test_a_cap_of_the_callers_own_is_raised_at_once(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [problem(429, "too_many_active_jobs")._replace(headers=BUSY.headers)]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url).jobs.submit("sketch", user="ann")
    assert (refused.value.code, len(stub.asked)) == ("too_many_active_jobs", 1)


def test_patience_ends_and_the_servers_word_is_the_error(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [AWAY]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url).jobs.get("j1")
    assert (refused.value.code, refused.value.status, refused.value.request_id) == ("unavailable", 503, "r1")
    assert len(stub.asked) == 5


def test_a_refusal_is_not_tried_again(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [problem(402, "insufficient_credits", required=3, balance=1)]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url).jobs.submit("sketch", user="ann")
    assert refused.value.details == {"required": 3, "balance": 1}
    assert len(stub.asked) == 1


def test_an_address_where_nobody_answers_is_said_in_a_sentence(client_of: ClientFactory) -> None:
    with pytest.raises(APIConnectionError, match=r"^No response from http://127\.0\.0\.1:1: ") as refused:
        client_of("http://name:secret-key@127.0.0.1:1/base", "secret-key").jobs.retry("j1")
    assert (refused.value.code, "secret-key" in str(refused.value)) == ("connection_failed", False)


def test_a_redirect_is_not_followed_because_the_key_is_for_one_server(
    stub: StubServer, client_of: ClientFactory
) -> None:
    stub.responses = [ScriptedResponse(307, "", {"location": f"{stub.url}/elsewhere"})]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url, "k").jobs.get("j1")
    assert (refused.value.code, len(stub.asked)) == ("http_307", 1)


def test_an_answer_that_is_not_callsheets_is_an_error_with_a_code(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [ScriptedResponse(200, "<html>hello</html>")]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url).jobs.get("j1")
    assert refused.value.code == "invalid_response"
    stub.responses = [ScriptedResponse(500, "<html>oh</html>")]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url).jobs.get("j1")
    assert refused.value.code == "http_500"


def test_a_server_on_this_machine_is_not_looked_for_behind_a_proxy(
    stub: StubServer, client_of: ClientFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    stub.responses = [ScriptedResponse(200, JOB)]
    assert client_of(stub.url).jobs.get("j1").id == "j1"


def test_names_in_paths_cannot_leave_them(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [problem(404, "job_not_found")]
    with pytest.raises(CallsheetError):
        client_of(stub.url).jobs.get("../admin/keys?x=1#y")
    assert stub.asked[0].path == "/v1/jobs/..%2Fadmin%2Fkeys%3Fx%3D1%23y"


def test_a_download_that_breaks_is_begun_again_and_one_that_is_damaged_is_not_kept(
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


def test_waits_double_up_to_a_limit_and_are_never_in_step() -> None:
    retry_policy = RetryPolicy(base_seconds=1, max_seconds=8)
    for failures, whole in ((1, 1), (2, 2), (3, 4), (4, 8), (9, 8)):
        drawn = [retry_policy.delay_seconds(failures) for _ in range(50)]
        assert all(whole / 2 <= wait <= whole for wait in drawn)
        assert len(set(drawn)) > 1


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_asks_for_an_address_and_a_key_that_can_be_sent(
    kind: type[Client | AsyncClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CALLSHEET_URL", raising=False)
    for url, key, code in ((None, None, "invalid_url"), ("ftp://x", None, "invalid_url"), ("http://x:port", None,
    "invalid_url"),
                           ("http://x", "a\nb", "invalid_key")):  # fmt: skip
        with pytest.raises(CallsheetError) as refused:
            kind(url, key)
        assert refused.value.code == code
    for url, why in (
        ("127.0.0.1:8787", "it must start with"),
        ("http://", "it has no host"),
        ("http://x:p", "port"),
    ):
        with pytest.raises(CallsheetError, match=f"^'{url}' is not a valid URL: .*{why}"):
            kind(url)
        monkeypatch.setenv("CALLSHEET_URL", url)
        with pytest.raises(CallsheetError, match=f"^CALLSHEET_URL='{url}' is not a valid URL: "):
            kind()
    monkeypatch.setenv("CALLSHEET_URL", "http://127.0.0.1:9/")
    with pytest.raises(CallsheetError, match="The tenant contains invalid characters"):
        kind(tenant="ünder")
    assert repr(kind()) == f"{kind.__name__}('http://127.0.0.1:9')"


def test_every_request_gives_up_some_time_and_a_wait_not_before_it_is_over() -> None:
    """R132."""
    given: list[dict[str, float | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        given.append(request.extensions["timeout"])
        if request.url.path.endswith("/events"):
            return httpx.Response(204)
        return httpx.Response(200, json=JOB | {"status": "completed", "finished_at": JOB["created_at"]})

    def calls(client: Any) -> list[Any]:
        return [
            client.jobs.submit("sketch", user="ann"),
            client.jobs.get("j1"),
            client.jobs.cancel("j1"),
            client.jobs.wait("j1"),
        ]

    with Client("http://x", transport=httpx.MockTransport(answer)) as client:
        calls(client)
        assert list(client.jobs.events("j1")) == []

    async def awaited() -> None:
        async with AsyncClient("http://x", transport=httpx.MockTransport(answer)) as other:
            for call in calls(other):
                await call

    asyncio.run(awaited())
    assert len(given) == 9
    assert all(delay_seconds is not None for one in given for delay_seconds in one.values())
    assert {(one["connect"], one["write"]) for one in given} == {(30.0, 30.0)}
    assert max(one["read"] or 0 for one in given) > 30
