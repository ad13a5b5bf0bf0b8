"""Streams and long polls end when their key or token expires or is revoked."""

from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.settings import HttpSettings
from tests.support.engine.concurrency import ANSWER_SECONDS
from tests.support.http.raw_http import RawConnection
from tests.support.http.sse import STREAM, open_stream
from tests.support.processes.live_server import TENANT, LiveServer
from tests.support.wait import wait_until


def test_the_stream_of_a_revoked_key_ends(fast_stream_server: LiveServer) -> None:
    operator = fast_stream_server.client("operator")
    made = operator.post("/v1/admin/keys", json={"name": "short", "role": "viewer", "tenant": TENANT}).json()
    fast_stream_server.keys["short"] = made["secret"]
    with open_stream(fast_stream_server, "/v1/events?cursor=now", role="short") as frames:
        assert next(frames).comment == "alive"
        operator.delete(f"/v1/admin/keys/{made['key']['id']}").raise_for_status()
        assert "invalid_key" in {frame.comment for frame in islice(frames, 200)}
    with (
        pytest.raises(httpx.HTTPStatusError, match="invalid_key"),
        open_stream(fast_stream_server, "/v1/events", role="short"),
    ):
        pass


def test_the_stream_of_a_revoked_key_ends_even_if_its_client_does_not_read(tmp_path: Path, database_url: str) -> None:
    settings = HttpSettings(heartbeat_seconds=0.2)
    with LiveServer(database_url, tmp_path, settings, send_bytes=4_096) as live_server:
        broadcaster, operator = live_server.callsheet.state.broadcaster, live_server.client("operator")
        free = WorkflowDefinition(name="free", price=0, stages=[StageSpec(name="draw", kind="draw")])
        live_server.engine.execute(commands.PutWorkflow(definition=free))
        made = operator.post("/v1/admin/keys", json={"name": "short", "role": "viewer", "tenant": TENANT}).json()
        with RawConnection(live_server.url, receive_bytes=4_096) as reader:
            reader.send_request("GET", "/v1/events?cursor=now", made["secret"], accept=STREAM)
            reader.read_until(b"retry: 1000\n\n")
            (channel,) = broadcaster._channels.values()  # noqa: SLF001 - the test waits until the stream cannot send
            submits = [commands.Submit(tenant=TENANT, user="ann", workflow="free")] * 200
            for _ in range(100):
                if not channel.batches_from(0):
                    live_server.engine.execute_many(submits)
            operator.delete(f"/v1/admin/keys/{made['key']['id']}").raise_for_status()
            wait_until(lambda: broadcaster.count == 0)
            assert not broadcaster._channels  # noqa: SLF001


def create_key(server: LiveServer, **fields: Any) -> str:
    """Create a key, add it to the server's keys as `short`, and return its id."""
    body = {"name": "short", "role": "client", "tenant": TENANT} | fields
    made = server.client("operator").post("/v1/admin/keys", json=body).raise_for_status().json()
    server.keys["short"] = made["secret"]
    return str(made["key"]["id"])


def stream_comments(server: LiveServer) -> set[str]:
    """Return the comments of a tenant's or user's stream, from its first one to its end."""
    job = server.submit()["id"]
    with open_stream(server, f"/v1/jobs/{job}/events", role="short") as frames:
        return {frame.comment for frame in islice(frames, 2_000) if frame.comment}


def test_the_stream_of_an_expired_key_ends(fast_stream_server: LiveServer) -> None:
    create_key(fast_stream_server, expires_in_seconds=1)
    assert "invalid_key" in stream_comments(fast_stream_server)


def test_the_stream_of_an_expired_user_token_ends(fast_stream_server: LiveServer) -> None:
    token = fast_stream_server.client("client").post("/v1/tokens", json={"user": "ann", "expires_in_seconds": 1})
    fast_stream_server.keys["short"] = token.raise_for_status().json()["token"]
    assert "invalid_key" in stream_comments(fast_stream_server)


def test_the_stream_of_a_user_token_ends_when_its_key_is_revoked(fast_stream_server: LiveServer) -> None:
    key_id = create_key(fast_stream_server)
    token = fast_stream_server.client("short").post("/v1/tokens", json={"user": "ann"}).json()["token"]
    fast_stream_server.keys["short"] = token
    job = fast_stream_server.submit()["id"]
    with open_stream(fast_stream_server, f"/v1/jobs/{job}/events", role="short") as frames:
        assert next(frame for frame in frames if frame.comment == "alive")
        fast_stream_server.client("operator").delete(f"/v1/admin/keys/{key_id}").raise_for_status()
        assert "invalid_key" in {frame.comment for frame in islice(frames, 200)}


def test_a_stream_continues_while_its_tenant_is_suspended(fast_stream_server: LiveServer) -> None:
    operator = fast_stream_server.client("operator")
    try:
        with open_stream(fast_stream_server, "/v1/events?cursor=now", role="client") as frames:
            operator.put(f"/v1/admin/tenants/{TENANT}", json={"status": "suspended"}).raise_for_status()
            assert {frame.comment for frame in islice(frames, 20)} == {"alive"}
    finally:
        operator.put(f"/v1/admin/tenants/{TENANT}", json={"status": "active"}).raise_for_status()


@pytest.mark.parametrize("change", [True, False])
def test_a_long_poll_of_a_revoked_key_returns_401(fast_stream_server: LiveServer, change: bool) -> None:
    """Whether or not the job changes meanwhile."""
    key_id = create_key(fast_stream_server, role="viewer")
    job = fast_stream_server.submit()["id"]
    with ThreadPoolExecutor(1) as threads:
        polling = threads.submit(fast_stream_server.client("short").get, f"/v1/jobs/{job}?wait_seconds=3600")
        wait_until(lambda: fast_stream_server.callsheet.state.broadcaster.count)
        fast_stream_server.client("operator").delete(f"/v1/admin/keys/{key_id}").raise_for_status()
        if change:
            fast_stream_server.work()
        answer = polling.result(ANSWER_SECONDS)
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_key")
    assert fast_stream_server.callsheet.state.broadcaster.count == 0
