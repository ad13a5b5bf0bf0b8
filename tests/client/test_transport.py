"""Requests: their URL, headers, timeouts and proxies."""

import asyncio
from importlib.metadata import version
from typing import Any

import httpx
import pytest

from callsheet.client import (
    AsyncClient,
    CallsheetError,
    Client,
)
from tests.client.both_clients import ClientFactory
from tests.client.stub_server import JOB, ScriptedResponse, StubServer, problem


def test_requests_name_the_client_and_its_version(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [ScriptedResponse(200, JOB)]
    client_of(stub.url).jobs.get("j1")
    assert stub.requests[0].headers["user-agent"] == f"callsheet-python/{version('callsheet')}"


def test_a_redirect_is_not_followed_because_the_key_is_for_one_server(
    stub: StubServer, client_of: ClientFactory
) -> None:
    stub.responses = [ScriptedResponse(307, "", {"location": f"{stub.url}/elsewhere"})]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url, "k").jobs.get("j1")
    assert (refused.value.code, len(stub.requests)) == ("http_307", 1)


def test_a_server_on_this_machine_is_reached_without_a_proxy(
    stub: StubServer, client_of: ClientFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    stub.responses = [ScriptedResponse(200, JOB)]
    assert client_of(stub.url).jobs.get("j1").id == "j1"


def test_names_are_escaped_in_paths(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [problem(404, "job_not_found")]
    with pytest.raises(CallsheetError):
        client_of(stub.url).jobs.get("../admin/keys?x=1#y")
    assert stub.requests[0].path == "/v1/jobs/..%2Fadmin%2Fkeys%3Fx%3D1%23y"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_requires_a_valid_url_key_and_tenant(
    kind: type[Client | AsyncClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CALLSHEET_URL", raising=False)
    for url, key, code in (
        (None, None, "invalid_url"),
        ("ftp://x", None, "invalid_url"),
        ("http://x:port", None, "invalid_url"),
        ("http://x", "a\nb", "invalid_key"),
    ):
        with pytest.raises(CallsheetError) as refused:
            kind(url, key)
        assert refused.value.code == code
    for url, reason in (
        ("127.0.0.1:8787", "it must start with"),
        ("http://", "it has no host"),
        ("http://x:p", "port"),
    ):
        with pytest.raises(CallsheetError, match=f"^'{url}' is not a valid URL: .*{reason}"):
            kind(url)
        monkeypatch.setenv("CALLSHEET_URL", url)
        with pytest.raises(CallsheetError, match=f"^CALLSHEET_URL='{url}' is not a valid URL: "):
            kind()
    monkeypatch.setenv("CALLSHEET_URL", "http://127.0.0.1:9/")
    with pytest.raises(CallsheetError, match="The tenant contains invalid characters"):
        kind(tenant="ünder")
    assert repr(kind()) == f"{kind.__name__}('http://127.0.0.1:9')"


def test_every_request_has_a_timeout_and_that_of_a_wait_is_longer() -> None:
    timeouts: list[dict[str, float | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        timeouts.append(request.extensions["timeout"])
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
    assert len(timeouts) == 9
    assert all(seconds is not None for one in timeouts for seconds in one.values())
    assert {(one["connect"], one["write"]) for one in timeouts} == {(30.0, 30.0)}
    assert max(one["read"] or 0 for one in timeouts) > 30
