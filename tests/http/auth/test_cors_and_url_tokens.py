"""Browsers: which origins may call the API, and user tokens in the URL for requests without headers."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from callsheet.blobs import object_keys as blob_keys
from callsheet.core.model import commands
from callsheet.http.auth.authenticator import Caller
from callsheet.http.server.cors import Cors
from callsheet.settings import HttpSettings
from tests.http.server_on_each_database import DATABASES, start_server
from tests.support.http.sse import STREAM, open_stream, read_events
from tests.support.processes.live_server import TENANT, LiveServer
from tests.support.wait import wait_until

OURS, FOREIGN = "https://app.example", "https://evil.example"
PICTURE = b"\x89PNG\r\n\x1a\n not much of a picture"


@pytest.fixture(scope="module", params=DATABASES)
def cors_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that allows two origins."""
    http = HttpSettings(cors_origins=(OURS, "http://localhost:3000"), heartbeat_seconds=0.05)
    with start_server(request, tmp_path_factory.mktemp("cors"), http) as server:
        yield server


# -- origins


def test_a_listed_origin_may_read_every_answer(cors_server: LiveServer) -> None:
    client = cors_server.client("client", {"origin": OURS})
    for path, status in (("/v1/me", 200), ("/v1/jobs/none", 404), ("/nowhere", 404), ("/healthz", 200)):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, OURS)
        assert "origin" in answer.headers["vary"].lower()
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", [
    FOREIGN, "null", "https://app.example.evil.example", "https://app.example:444", "http://app.example", "*", "",
    "https://APP.example", f"{OURS}, {FOREIGN}",
])  # fmt: skip
def test_a_foreign_origin_gets_no_cors_headers(cors_server: LiveServer, origin: str) -> None:
    client = cors_server.client("client", {"origin": origin})
    preflight = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    for answer in (client.get("/v1/me"), client.options("/v1/jobs", headers=preflight)):
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["vary"] == "origin"


def test_a_preflight_response_lists_the_allowed_methods_and_headers(cors_server: LiveServer) -> None:
    preflight = {
        "origin": OURS,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    answer = cors_server.client().options("/v1/jobs", headers=preflight)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, OURS)
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"]
    assert all(name in allowed for name in ("authorization", "content-type", "idempotency-key", "last-event-id"))


def test_options_without_a_preflight_header_answers_405(cors_server: LiveServer) -> None:
    assert cors_server.client("client", {"origin": OURS}).options("/v1/jobs").status_code == 405


def test_without_listed_origins_no_cors_headers_are_sent(live_server: LiveServer) -> None:
    preflight = {"origin": OURS, "access-control-request-method": "POST"}
    client = live_server.client("client", preflight)
    for answer in (client.get("/v1/me"), client.options("/v1/jobs")):
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_stream_may_be_read_by_a_listed_origin(cors_server: LiveServer) -> None:
    job = cors_server.submit()["id"]
    cors_server.work()
    answer = cors_server.client("client", {"origin": OURS, "accept": STREAM}).get(f"/v1/jobs/{job}/events")
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, OURS)


@pytest.mark.parametrize("origin", ["*", "https://", "app.example", "https://app.example/", "ftp://x", "null", ""])
def test_an_invalid_origin_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        Cors([origin])


# -- a token in the URL


def test_a_browser_can_follow_a_job_with_a_user_token_in_the_url(cors_server: LiveServer) -> None:
    job = cors_server.submit()["id"]
    cors_server.work()
    path = f"/v1/jobs/{job}/events"
    whole = read_events(cors_server, path)
    with open_stream(cors_server, f"{path}?token={cors_server.keys['user']}&cursor=2", role=None) as frames:
        assert [frame for frame in frames if frame.id] == whole[2:]


def test_a_browser_can_fetch_a_file_with_a_user_token_in_the_url(cors_server: LiveServer) -> None:
    file = _create_file(cors_server)
    answer = httpx.get(f"{cors_server.url}/v1/files/{file}?token={cors_server.keys['user']}")
    assert (answer.status_code, answer.content) == (200, PICTURE)
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_token_of_another_user_finds_nothing(cors_server: LiveServer) -> None:
    file, job = _create_file(cors_server), cors_server.submit()["id"]
    token = cors_server.client("client").post("/v1/tokens", json={"user": "bob"}).json()["token"]
    for path in (f"/v1/jobs/{job}/events", f"/v1/files/{file}"):
        assert httpx.get(f"{cors_server.url}{path}?token={token}").status_code == 404
    cors_server.work()


@pytest.mark.parametrize("role", ["operator", "admin", "client", "viewer", "worker"])
def test_an_api_key_in_the_url_is_refused(
    cors_server: LiveServer, role: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file, job, key = _create_file(cors_server), cors_server.submit()["id"], cors_server.keys[role]
    for path in ("/v1/me", "/v1/jobs", f"/v1/jobs/{job}", f"/v1/jobs/{job}/events", f"/v1/files/{file}", "/v1/events"):
        for name in ("token", "key", "api_key", "access_token", "authorization"):
            answer = httpx.get(f"{cors_server.url}{path}?{name}={key}")
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert key not in answer.text
    written = capfd.readouterr()
    assert key not in written.out + written.err
    cors_server.work()


@pytest.mark.parametrize("path", ["/v1/me", "/v1/jobs", "/v1/jobs/{job}", "/v1/jobs/{job}/outputs", "/v1/wallets/ann"])
def test_a_user_token_in_the_url_is_accepted_for_streams_and_files_only(cors_server: LiveServer, path: str) -> None:
    token, job = cors_server.keys["user"], cors_server.submit()["id"]
    answer = httpx.get(f"{cors_server.url}{path.format(job=job)}?token={token}")
    assert (answer.status_code, answer.json()["code"]) == (401, "key_in_url")
    cors_server.work()


def test_a_token_in_the_url_is_refused_beside_other_credentials(cors_server: LiveServer) -> None:
    token, job = cors_server.keys["user"], cors_server.submit()["id"]
    url = f"{cors_server.url}/v1/jobs/{job}/events?token={token}"
    for answer in (
        httpx.get(url, headers={"authorization": f"Bearer {cors_server.keys['client']}"}),
        httpx.get(f"{url}&token={token}"),
        httpx.get(f"{url}x"),
        httpx.get(f"{cors_server.url}/v1/jobs/{job}/events?token="),
        httpx.post(f"{cors_server.url}/v1/jobs/{job}/cancel?token={token}"),
    ):
        assert answer.status_code == 401
    cors_server.work()


def test_a_stream_ends_when_its_token_expires(cors_server: LiveServer) -> None:
    job = cors_server.submit()["id"]
    caller = Caller("client", TENANT, cors_server.client("client").get("/v1/me").json()["id"])
    keys = cors_server.callsheet.state.authenticator
    with pytest.raises(httpx.HTTPStatusError, match="invalid_key"):
        read_events(cors_server, f"/v1/jobs/{job}/events?token={keys.create_user_token(caller, 'ann', -1)}", role=None)
    token = keys.create_user_token(caller, "ann", 1)
    with open_stream(cors_server, f"/v1/jobs/{job}/events?token={token}", role=None) as frames:
        assert list(frames)[-1].comment == "invalid_key"
    cors_server.work()


def test_the_stream_limit_of_a_user_covers_all_tokens_of_the_user(tmp_path: Path, database_url: str) -> None:
    with LiveServer(database_url, tmp_path, HttpSettings(streams_per_user_max=1)) as live_server:
        job = live_server.submit()["id"]
        body = {"user": "ann"}
        live_server.keys["second"] = live_server.client("client").post("/v1/tokens", json=body).json()["token"]
        url = f"/v1/jobs/{job}/events"
        with open_stream(live_server, url, role="user"):
            with live_server.client("second").stream("GET", url, headers={"accept": STREAM}) as refused:
                assert refused.status_code == 429
            waited = live_server.client("second").get(f"/v1/jobs/{job}?wait_seconds=0.1")
            assert (waited.status_code, waited.json()["code"]) == (429, "too_many_streams")
            with open_stream(live_server, url), open_stream(live_server, url):
                assert live_server.callsheet.state.broadcaster.count == 3
        wait_until(lambda: live_server.callsheet.state.broadcaster.count == 0)
        with open_stream(live_server, url, role="second"):
            assert live_server.callsheet.state.broadcaster.count == 1


def _create_file(live_server: LiveServer) -> str:
    """Complete a job with a picture, and return the id of its file."""
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
