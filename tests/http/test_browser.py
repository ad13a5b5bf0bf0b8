"""Browsers: which web pages may call, and how one without headers shows its user's token."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from callsheet.blobs import keys as blob_keys
from callsheet.config import HttpSettings
from callsheet.core import commands
from callsheet.http.auth import Who
from callsheet.http.cors import Cors
from tests.support.places import Places
from tests.support.served import TENANT, Served
from tests.support.sse import STREAM, listening, told
from tests.support.waiting import wait_until

OURS, FOREIGN = "https://app.example", "https://evil.example"
PICTURE = b"\x89PNG\r\n\x1a\n not much of a picture"


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def open_to_ours(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that lets one origin in."""
    data: Path = tmp_path_factory.mktemp("browser")
    http = HttpSettings(cors_origins=(OURS, "http://localhost:3000"), beat_seconds=0.05)
    if request.param == "sqlite":
        with Served(data / "callsheet.db", data, http) as made:
            yield made
        return
    places: Places = request.getfixturevalue("places")
    url = places.lend()
    with Served(url, data, http) as made:
        yield made
    places.give_back(url)


# -- origins


def test_a_listed_origin_may_read_every_answer(open_to_ours: Served) -> None:
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
def test_a_foreign_origin_is_told_nothing(open_to_ours: Served, origin: str) -> None:
    client = open_to_ours.client("client", {"origin": origin})
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    for answer in (client.get("/v1/me"), client.options("/v1/jobs", headers=asked)):
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["vary"] == "origin"


def test_a_browser_that_asks_first_is_told_what_it_may_send(open_to_ours: Served) -> None:
    asked = {"origin": OURS, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    answer = open_to_ours.client().options("/v1/jobs", headers=asked)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, OURS)
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"]
    assert all(name in allowed for name in ("authorization", "content-type", "idempotency-key", "last-event-id"))


def test_options_without_the_question_is_405(open_to_ours: Served) -> None:
    assert open_to_ours.client("client", {"origin": OURS}).options("/v1/jobs").status_code == 405


def test_without_listed_origins_no_page_may_call(served: Served) -> None:
    asked = {"origin": OURS, "access-control-request-method": "POST"}
    client = served.client("client", asked)
    for answer in (client.get("/v1/me"), client.options("/v1/jobs")):
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_stream_may_be_read_by_a_listed_origin(open_to_ours: Served) -> None:
    job = open_to_ours.submit()["id"]
    open_to_ours.work()
    answer = open_to_ours.client("client", {"origin": OURS, "accept": STREAM}).get(f"/v1/jobs/{job}/events")
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, OURS)


@pytest.mark.parametrize("origin", ["*", "https://", "app.example", "https://app.example/", "ftp://x", "null", ""])
def test_an_origin_that_is_none_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        Cors([origin])


# -- a token in the address


def test_a_browser_may_watch_a_job_with_its_user_s_token_in_the_address(open_to_ours: Served) -> None:
    job = open_to_ours.submit()["id"]
    open_to_ours.work()
    path = f"/v1/jobs/{job}/events"
    whole = told(open_to_ours, path)
    with listening(open_to_ours, f"{path}?token={open_to_ours.keys['user']}&after=2", role=None) as coming:
        assert [frame for frame in coming if frame.id] == whole[2:]


def test_a_browser_may_fetch_a_file_with_its_user_s_token_in_the_address(open_to_ours: Served) -> None:
    file = _file(open_to_ours)
    answer = httpx.get(f"{open_to_ours.url}/v1/files/{file}?token={open_to_ours.keys['user']}")
    assert (answer.status_code, answer.content) == (200, PICTURE)
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_another_user_s_token_finds_nothing(open_to_ours: Served) -> None:
    file, job = _file(open_to_ours), open_to_ours.submit()["id"]
    token = open_to_ours.client("client").post("/v1/tokens", json={"user": "bob"}).json()["token"]
    for path in (f"/v1/jobs/{job}/events", f"/v1/files/{file}"):
        assert httpx.get(f"{open_to_ours.url}{path}?token={token}").status_code == 404
    open_to_ours.work()


@pytest.mark.parametrize("role", ["operator", "admin", "client", "viewer", "worker"])
def test_a_key_in_the_address_opens_nothing(open_to_ours: Served, role: str, capfd: pytest.CaptureFixture[str]) -> None:
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
def test_a_user_s_token_in_the_address_is_for_streams_and_files_only(open_to_ours: Served, path: str) -> None:
    token, job = open_to_ours.keys["user"], open_to_ours.submit()["id"]
    answer = httpx.get(f"{open_to_ours.url}{path.format(job=job)}?token={token}")
    assert (answer.status_code, answer.json()["code"]) == (401, "key_in_address")
    open_to_ours.work()


def test_a_token_in_the_address_comes_alone(open_to_ours: Served) -> None:
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


def test_a_stream_ends_when_its_token_does(open_to_ours: Served) -> None:
    job = open_to_ours.submit()["id"]
    who = Who("client", TENANT, open_to_ours.client("client").get("/v1/me").json()["id"])
    keys = open_to_ours.callsheet.house.keys
    with pytest.raises(httpx.HTTPStatusError, match="invalid_key"):
        told(open_to_ours, f"/v1/jobs/{job}/events?token={keys.token(who, 'ann', -1)}", role=None)
    token = keys.token(who, "ann", 1)
    with listening(open_to_ours, f"/v1/jobs/{job}/events?token={token}", role=None) as coming:
        assert list(coming)[-1].comment == "invalid_key"
    open_to_ours.work()


def test_a_user_has_fewer_streams_than_a_key_whatever_the_number_of_tokens(tmp_path: Path, place: str) -> None:
    with Served(place, tmp_path, HttpSettings(streams_per_user_max=1)) as served:
        job = served.submit()["id"]
        body = {"user": "ann"}
        served.keys["second"] = served.client("client").post("/v1/tokens", json=body).json()["token"]
        address = f"/v1/jobs/{job}/events"
        with listening(served, address, role="user"):
            with served.client("second").stream("GET", address, headers={"accept": STREAM}) as refused:
                assert refused.status_code == 429
            waited = served.client("second").get(f"/v1/jobs/{job}?wait=0.1")
            assert (waited.status_code, waited.json()["code"]) == (429, "too_many_streams")
            with listening(served, address), listening(served, address):
                assert served.callsheet.house.hub.count == 3
        wait_until(lambda: served.callsheet.house.hub.count == 0)
        with listening(served, address, role="second"):
            assert served.callsheet.house.hub.count == 1


def _file(served: Served) -> str:
    """Make a picture, and return its file's id."""
    job = served.submit()["id"]
    (leased,) = served.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
    lease = leased.lease
    key = blob_keys.made(TENANT, lease.job_id, lease.task_id, lease.attempt, 1)
    served.callsheet.house.blobs.put(key, PICTURE)
    made = commands.Made(
        no=1, name="a.png", media_type="image/png", bytes=len(PICTURE), sha256=hashlib.sha256(PICTURE).hexdigest()
    )
    served.engine.execute(commands.Complete(lease=lease, output=None, files=(made,)))
    outputs = served.client("client").get(f"/v1/jobs/{job}/outputs").raise_for_status().json()
    return str(outputs["outputs"][0]["files"][0]["id"])
