"""Browsers: which web pages may call, and how one without headers shows its user's token."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from callsheet.blobs import object_keys as blob_keys
from callsheet.config import HttpSettings
from callsheet.core.model import commands
from callsheet.http.auth.authenticator import Caller
from callsheet.http.server.cors import Cors
from tests.support.databases.database_pool import DatabasePool
from tests.support.http.sse import STREAM, open_stream, read_events
from tests.support.processes.live_server import TENANT, LiveServer
from tests.support.wait import wait_until

OURS, FOREIGN = "https://app.example", "https://evil.example"
PICTURE = b"\x89PNG\r\n\x1a\n not much of a picture"


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def open_to_ours(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that lets one origin in."""
    data: Path = tmp_path_factory.mktemp("browser")
    http = HttpSettings(cors_origins=(OURS, "http://localhost:3000"), heartbeat_seconds=0.05)
    if request.param == "sqlite":
        with LiveServer(data / "callsheet.db", data, http) as made:
            yield made
        return
    database_pool: DatabasePool = request.getfixturevalue("database_pool")
    url = database_pool.acquire()
    with LiveServer(url, data, http) as made:
        yield made
    database_pool.release(url)


# -- origins


def test_a_listed_origin_may_read_every_answer(open_to_ours: LiveServer) -> None:
    client = open_to_ours.client("client", {"origin": OURS})
    for path, status in (("/v1/me", 200), ("/v1/jobs/none", 404), ("/nowhere", 404), ("/healthz", 200)):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, OURS)
        assert "origin" in answer.headers["vary"].lower()
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", [
    FOREIGN, "null", "https://app.example.evil.example", "https://app.example:444", "http://app.example", "*", "",
    "https://APP.example", f"{OURS}, {FOREIGN}",
])  # fmt: skip
def test_a_foreign_origin_gets_no_cors_headers(open_to_ours: LiveServer, origin: str) -> None:
    client = open_to_ours.client("client", {"origin": origin})
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    for answer in (client.get("/v1/me"), client.options("/v1/jobs", headers=asked)):
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["vary"] == "origin"


def test_a_preflight_request_is_answered_with_what_may_be_sent(open_to_ours: LiveServer) -> None:
    asked = {"origin": OURS, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    answer = open_to_ours.client().options("/v1/jobs", headers=asked)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, OURS)
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"]
    assert all(name in allowed for name in ("authorization", "content-type", "idempotency-key", "last-event-id"))


def test_options_without_the_question_is_405(open_to_ours: LiveServer) -> None:
    assert open_to_ours.client("client", {"origin": OURS}).options("/v1/jobs").status_code == 405


def test_without_listed_origins_no_page_may_call(live_server: LiveServer) -> None:
    asked = {"origin": OURS, "access-control-request-method": "POST"}
    client = live_server.client("client", asked)
    for answer in (client.get("/v1/me"), client.options("/v1/jobs")):
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_stream_may_be_read_by_a_listed_origin(open_to_ours: LiveServer) -> None:
    job = open_to_ours.submit()["id"]
    open_to_ours.work()
    answer = open_to_ours.client("client", {"origin": OURS, "accept": STREAM}).get(f"/v1/jobs/{job}/events")
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, OURS)


@pytest.mark.parametrize("origin", ["*", "https://", "app.example", "https://app.example/", "ftp://x", "null", ""])
def test_an_origin_that_is_none_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        Cors([origin])


# -- a token in the address


def test_a_browser_may_watch_a_job_with_its_user_s_token_in_the_address(open_to_ours: LiveServer) -> None:
    job = open_to_ours.submit()["id"]
    open_to_ours.work()
    path = f"/v1/jobs/{job}/events"
    whole = read_events(open_to_ours, path)
    with open_stream(open_to_ours, f"{path}?token={open_to_ours.keys['user']}&after=2", role=None) as coming:
        assert [frame for frame in coming if frame.id] == whole[2:]


def test_a_browser_may_fetch_a_file_with_its_user_s_token_in_the_address(open_to_ours: LiveServer) -> None:
    file = _file(open_to_ours)
    answer = httpx.get(f"{open_to_ours.url}/v1/files/{file}?token={open_to_ours.keys['user']}")
    assert (answer.status_code, answer.content) == (200, PICTURE)
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_another_user_s_token_finds_nothing(open_to_ours: LiveServer) -> None:
    file, job = _file(open_to_ours), open_to_ours.submit()["id"]
    token = open_to_ours.client("client").post("/v1/tokens", json={"user": "bob"}).json()["token"]
    for path in (f"/v1/jobs/{job}/events", f"/v1/files/{file}"):
        assert httpx.get(f"{open_to_ours.url}{path}?token={token}").status_code == 404
    open_to_ours.work()


@pytest.mark.parametrize("role", ["operator", "admin", "client", "viewer", "worker"])
def test_a_key_in_the_address_opens_nothing(
    open_to_ours: LiveServer, role: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file, job, key = _file(open_to_ours), open_to_ours.submit()["id"], open_to_ours.keys[role]
    for path in ("/v1/me", "/v1/jobs", f"/v1/jobs/{job}", f"/v1/jobs/{job}/events", f"/v1/files/{file}", "/v1/events"):
        for name in ("token", "key", "api_key", "access_token", "authorization"):
            answer = httpx.get(f"{open_to_ours.url}{path}?{name}={key}")
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert key not in answer.text
    written = capfd.readouterr()
    assert key not in written.out + written.err
    open_to_ours.work()


@pytest.mark.parametrize("path", ["/v1/me", "/v1/jobs", "/v1/jobs/{job}", "/v1/jobs/{job}/outputs", "/v1/wallets/ann"])
def test_a_user_s_token_in_the_address_is_for_streams_and_files_only(open_to_ours: LiveServer, path: str) -> None:
    token, job = open_to_ours.keys["user"], open_to_ours.submit()["id"]
    answer = httpx.get(f"{open_to_ours.url}{path.format(job=job)}?token={token}")
    assert (answer.status_code, answer.json()["code"]) == (401, "key_in_url")
    open_to_ours.work()


def test_a_token_in_the_address_comes_alone(open_to_ours: LiveServer) -> None:
    token, job = open_to_ours.keys["user"], open_to_ours.submit()["id"]
    address = f"{open_to_ours.url}/v1/jobs/{job}/events?token={token}"
    for answer in (
        httpx.get(address, headers={"authorization": f"Bearer {open_to_ours.keys['client']}"}),
        httpx.get(f"{address}&token={token}"),
        httpx.get(f"{address}x"),
        httpx.get(f"{open_to_ours.url}/v1/jobs/{job}/events?token="),
        httpx.post(f"{open_to_ours.url}/v1/jobs/{job}/cancel?token={token}"),
    ):
        assert answer.status_code == 401
    open_to_ours.work()


def test_a_stream_ends_when_its_token_does(open_to_ours: LiveServer) -> None:
    job = open_to_ours.submit()["id"]
    who = Caller("client", TENANT, open_to_ours.client("client").get("/v1/me").json()["id"])
    keys = open_to_ours.callsheet.state.authenticator
    with pytest.raises(httpx.HTTPStatusError, match="invalid_key"):
        read_events(open_to_ours, f"/v1/jobs/{job}/events?token={keys.create_user_token(who, 'ann', -1)}", role=None)
    token = keys.create_user_token(who, "ann", 1)
    with open_stream(open_to_ours, f"/v1/jobs/{job}/events?token={token}", role=None) as coming:
        assert list(coming)[-1].comment == "invalid_key"
    open_to_ours.work()


def test_a_user_has_fewer_streams_than_a_key_whatever_the_number_of_tokens(tmp_path: Path, database_url: str) -> None:
    with LiveServer(database_url, tmp_path, HttpSettings(streams_per_user_max=1)) as live_server:
        job = live_server.submit()["id"]
        body = {"user": "ann"}
        live_server.keys["second"] = live_server.client("client").post("/v1/tokens", json=body).json()["token"]
        address = f"/v1/jobs/{job}/events"
        with open_stream(live_server, address, role="user"):
            with live_server.client("second").stream("GET", address, headers={"accept": STREAM}) as refused:
                assert refused.status_code == 429
            waited = live_server.client("second").get(f"/v1/jobs/{job}?wait_seconds=0.1")
            assert (waited.status_code, waited.json()["code"]) == (429, "too_many_streams")
            with open_stream(live_server, address), open_stream(live_server, address):
                assert live_server.callsheet.state.broadcaster.count == 3
        wait_until(lambda: live_server.callsheet.state.broadcaster.count == 0)
        with open_stream(live_server, address, role="second"):
            assert live_server.callsheet.state.broadcaster.count == 1


def _file(live_server: LiveServer) -> str:
    """Make a picture, and return its file's id."""
    job = live_server.submit()["id"]
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
    lease = leased.lease
    key = blob_keys.output_key(TENANT, lease.job_id, lease.task_id, lease.attempt, 1)
    live_server.callsheet.state.blobs.put(key, PICTURE)
    made = commands.OutputFile(
        no=1, name="a.png", media_type="image/png", bytes=len(PICTURE), sha256=hashlib.sha256(PICTURE).hexdigest()
    )
    live_server.engine.execute(commands.Complete(lease=lease, output=None, files=(made,)))
    outputs = live_server.client("client").get(f"/v1/jobs/{job}/outputs").raise_for_status().json()
    return str(outputs["outputs"][0]["files"][0]["id"])
