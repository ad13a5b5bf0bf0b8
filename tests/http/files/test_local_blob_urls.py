"""Signed addresses of the folder: bodies go to the disk as they come, and every lie has a name of its own."""

import errno
import hashlib
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callsheet.blobs.base import BLOB_URL_PURPOSE, BlobAccess, Grant
from callsheet.blobs.s3.sigv4 import S3Credentials
from callsheet.blobs.s3.store import S3Blobs
from callsheet.blobs.s3.transport import S3Location
from callsheet.config import HttpSettings
from callsheet.http.server.exception_map import problem_from
from callsheet.http.server.file_response import CHUNK
from tests.support.doubles.blob_stores import KeylessServer, digest, grant_upload_of
from tests.support.wait import wait_until

OURS, FOREIGN = "https://app.example", "https://evil.example"
BODY = b"\x89PNG not much of a picture"
MEGABYTE = 1024 * 1024
STEP = 64 * 1024


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeylessServer]:
    """No database is asked here, so one is enough."""
    data = tmp_path_factory.mktemp("blobs")
    with KeylessServer(
        data / "callsheet.db", data, HttpSettings(cors_origins=(OURS,), body_timeout_seconds=1.0)
    ) as made:
        yield made
        for client in made._clients:  # noqa: SLF001 - it gave them out
            client.close()


@pytest.fixture(scope="module")
def client(state: KeylessServer) -> httpx.Client:
    return state.client(None)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"acme/uploads/{hashlib.sha256(request.node.name.encode()).hexdigest()}"


def put(client: httpx.Client, grant: Grant, body: bytes = BODY, **headers: str) -> httpx.Response:
    return client.put(grant.url, headers=grant.headers | headers, content=body)


def incoming_files(state: KeylessServer) -> list[Path]:
    folder = state.blobs.path("x").parent / ".incoming"
    return list(folder.iterdir()) if folder.exists() else []


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


# -- sending


def test_bytes_arrive_and_are_read_back(state: KeylessServer, client: httpx.Client, key: str) -> None:
    answer = put(client, grant_upload_of(state.blobs, key, BODY))
    assert (answer.status_code, answer.content) == (204, b"")
    got = client.get(state.blobs.grant_download(key, expires_in_seconds=60, name="a.png", media_type="image/png").url)
    assert (got.status_code, got.content) == (200, BODY)
    assert (got.headers["cache-control"], got.headers["x-content-type-options"]) == ("no-store", "nosniff")
    assert "sandbox" in got.headers["content-security-policy"]


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * MEGABYTE + 3])
def test_bodies_of_any_size_arrive_whole(state: KeylessServer, client: httpx.Client, key: str, size: int) -> None:
    body = (b"0123456789" * (size // 10 + 1))[:size]
    assert put(client, grant_upload_of(state.blobs, key, body), body).status_code == 204
    assert state.blobs.path(key).read_bytes() == body
    assert incoming_files(state) == []


LIES: list[tuple[str, bytes, dict[str, str], tuple[int, str]]] = [
    ("longer", BODY + b"!", {"content-length": str(len(BODY) + 1)}, (422, "size_mismatch")),
    ("shorter", BODY[1:], {"content-length": str(len(BODY) - 1)}, (422, "size_mismatch")),
    ("other bytes", BODY[::-1], {}, (422, "digest_mismatch")),
    ("other type", BODY, {"content-type": "text/html"}, (422, "type_mismatch")),
    ("compressed", BODY, {"content-encoding": "gzip"}, (415, "unsupported_encoding")),
]


@pytest.mark.parametrize(("body", "headers", "said"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES])
def test_every_lie_has_its_name_and_leaves_nothing(
    state: KeylessServer, client: httpx.Client, key: str, body: bytes, headers: dict[str, str], said: tuple[int, str]
) -> None:
    grant = grant_upload_of(state.blobs, key, BODY)
    answer = put(client, grant, body, **headers)
    assert code(answer) == said
    assert (state.blobs.exists(key), incoming_files(state)) == (False, [])
    assert key not in answer.text
    assert put(client, grant).status_code == 204, "the grant is still good for the truth"


def test_a_second_put_is_refused_before_its_body_is_asked_for(
    state: KeylessServer, client: httpx.Client, key: str
) -> None:
    grant = grant_upload_of(state.blobs, key, BODY)
    assert put(client, grant).status_code == 204
    assert code(put(client, grant)) == (412, "already_uploaded")
    sender = Sender(state, grant, len(BODY), "Expect: 100-continue\r\n")
    assert sender.receive().startswith(b"HTTP/1.1 412")


def test_a_refusal_is_heard_by_who_still_sends_a_large_body(
    state: KeylessServer, client: httpx.Client, key: str
) -> None:
    body = b"x" * 8 * MEGABYTE
    state.blobs.put(key, BODY)
    assert code(put(client, grant_upload_of(state.blobs, key, body), body)) == (412, "already_uploaded")
    assert code(put(client, grant_upload_of(state.blobs, key, body, expires_in_seconds=-2), body)) == (
        403,
        "url_expired",
    )


def test_a_body_without_its_length_is_refused(state: KeylessServer, client: httpx.Client, key: str) -> None:
    grant = grant_upload_of(state.blobs, key, BODY)
    headers = {"content-type": "image/png"}
    assert code(client.put(grant.url, headers=headers, content=iter([BODY]))) == (411, "length_required")
    preview = state.blobs.grant_overwrite(key, bytes_max=9, media_type="image/png", expires_in_seconds=60)
    assert code(client.put(preview.url, headers=headers, content=iter([BODY]))) == (411, "length_required")
    assert code(put(client, preview)) == (413, "body_too_large")
    assert not state.blobs.exists(key)


def test_a_body_that_says_its_length_in_two_ways_is_not_read(state: KeylessServer, key: str) -> None:
    sender = Sender(state, grant_upload_of(state.blobs, key, BODY), len(BODY), "Transfer-Encoding: chunked\r\n")
    sender.send(b"400\r\n" + b"x" * 0x400 + b"\r\n0\r\n\r\n")
    assert sender.receive().startswith(b"HTTP/1.1 400")
    assert (state.blobs.exists(key), incoming_files(state)) == (False, [])


# -- who may


def blob_claim(method: str, key: str, **more: Any) -> BlobAccess:
    return BlobAccess(method, key, int(time.time()) + 60, "image/png", **more)


@pytest.mark.parametrize("method", ["PUT", "GET", "HEAD"])
def test_only_what_we_signed_for_this_opens_anything(
    state: KeylessServer, client: httpx.Client, key: str, method: str
) -> None:
    signed = state.callsheet.state.signer
    allowed = "PUT" if method == "PUT" else "GET"
    right = blob_claim(allowed, key, size=len(BODY), sha256=digest(BODY))
    texts = {
        "nothing of ours": "x", "empty": "%20", "not text": "%C3%A9", "long": "A" * 4_000, "dots": "..%2F..%2Fetc",
        "for something else": signed.sign("user", right), "for another method": signed.sign(
            BLOB_URL_PURPOSE, blob_claim("GET" if allowed == "PUT" else "PUT", key, size=len(BODY),
            sha256=digest(BODY))),
        "another shape": signed.sign(BLOB_URL_PURPOSE, ["PUT"]),
    }  # fmt: skip
    state.blobs.put(key, BODY) if method != "PUT" else None
    for name, text in texts.items():
        answer = client.request(method, f"/v1/blobs/{text}", headers={"content-type": "image/png"}, content=BODY)
        assert (name, answer.status_code) == (name, 403)
        assert method == "HEAD" or answer.json()["code"] == "invalid_signature"
    body = BODY if method == "PUT" else b""
    good = client.request(
        method, f"/v1/blobs/{signed.sign(BLOB_URL_PURPOSE, right)}", headers={"content-type": "image/png"}, content=body
    )
    assert good.is_success


def test_an_address_that_has_ended_says_so(state: KeylessServer, client: httpx.Client, key: str) -> None:
    assert code(put(client, grant_upload_of(state.blobs, key, BODY, expires_in_seconds=-2))) == (403, "url_expired")
    ended = state.blobs.grant_download(key, expires_in_seconds=-2, name="a", media_type="image/png")
    assert code(client.get(ended.url)) == (403, "url_expired")


def test_a_key_that_could_lead_elsewhere_is_nowhere_even_if_signed(state: KeylessServer, client: httpx.Client) -> None:
    for hostile in ("../secret.key", "acme/../../secret.key", "/etc/passwd"):
        text = state.callsheet.state.signer.sign(BLOB_URL_PURPOSE, blob_claim("GET", hostile))
        answer = client.get(f"/v1/blobs/{text}")
        assert code(answer) == (403, "invalid_signature")


def test_a_server_on_s3_has_no_such_urls(state: KeylessServer, client: httpx.Client, key: str) -> None:
    grant, local = grant_upload_of(state.blobs, key, BODY), state.blobs
    elsewhere = S3Blobs(S3Location(bucket="films"), lambda: S3Credentials("a", "b"))
    state.callsheet.state.blobs = elsewhere
    answer = put(client, grant)
    state.callsheet.state.blobs = local
    elsewhere.close()
    assert code(answer) == (404, "file_not_found")


# -- browsers


def test_a_page_of_ours_may_send_and_others_may_not(state: KeylessServer, client: httpx.Client, key: str) -> None:
    # R164
    grant = grant_upload_of(state.blobs, key, BODY)
    asked = {"access-control-request-method": "PUT", "access-control-request-headers": "content-type,if-none-match"}
    first = client.options(grant.url, headers=asked | {"origin": OURS})
    assert (first.status_code, first.headers["access-control-allow-origin"]) == (204, OURS)
    assert "PUT" in first.headers["access-control-allow-methods"]
    assert {"content-type", "if-none-match", "range"} <= set(first.headers["access-control-allow-headers"].split(", "))
    then = put(client, grant, origin=OURS)
    assert (then.status_code, then.headers["access-control-allow-origin"]) == (204, OURS)
    foreign = client.options(grant.url, headers=asked | {"origin": FOREIGN})
    assert "access-control-allow-origin" not in foreign.headers


def test_parts_and_what_is_known_are_answered_as_for_any_file(
    state: KeylessServer, client: httpx.Client, key: str
) -> None:
    state.blobs.put(key, BODY)
    url = state.blobs.grant_download(key, expires_in_seconds=60, name="a.png", media_type="image/png").url
    whole = client.get(url)
    tag = whole.headers["etag"]
    part = client.get(url, headers={"range": "bytes=2-4", "if-range": tag})
    assert (part.status_code, part.content) == (206, BODY[2:5])
    assert part.headers["content-range"] == f"bytes 2-4/{len(BODY)}"
    assert client.get(url, headers={"range": "bytes=2-4", "if-range": '"x"'}).content == BODY
    assert client.get(url, headers={"if-none-match": tag}).status_code == 304
    assert code(client.get(url, headers={"range": "bytes=99-"})) == (416, "range_not_satisfiable")
    head = client.head(url)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(BODY)))
    state.blobs.delete([key])
    assert code(client.get(url)) == (404, "file_not_found")


# -- slow, large and broken


class Sender:
    """A connection that sends a body when it is told to."""

    def __init__(self, state: KeylessServer, grant: Grant, size: int, more: str = "") -> None:
        self._socket = socket.create_connection(("127.0.0.1", int(state.url.rpartition(":")[2])), timeout=30)
        head = f"PUT {grant.url} HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: {size}\r\n{more}\r\n"
        self._socket.sendall(head.encode())

    def send(self, body: bytes) -> None:
        self._socket.sendall(body)

    def receive(self) -> bytes:
        """Return what is answered, and leave."""
        with self._socket:
            return self._socket.recv(65_536)

    def close(self) -> None:
        self._socket.close()


def test_a_large_body_goes_to_the_disk_as_it_comes_and_is_gone_with_its_sender(state: KeylessServer, key: str) -> None:
    size = 50 * MEGABYTE
    grant = grant_upload_of(state.blobs, key, b"", size=size)
    sender = Sender(state, grant, size)
    sender.send(b"x" * 3 * MEGABYTE)
    wait_until(lambda: any(path.stat().st_size >= 2 * MEGABYTE for path in incoming_files(state)))
    sender.close()
    wait_until(lambda: incoming_files(state) == [])
    assert not state.blobs.exists(key)


def test_a_body_may_take_longer_than_the_limit_for_as_long_as_it_moves(state: KeylessServer, key: str) -> None:
    body = b"0123456789abcdef" * (STEP // 16) * 6
    sender = Sender(state, grant_upload_of(state.blobs, key, body), len(body))
    begun = time.monotonic()
    for no in range(6):
        sender.send(body[no * STEP : (no + 1) * STEP])
        then = begun + (no + 1) * 0.3
        wait_until(lambda then=then: time.monotonic() > then)  # type: ignore[misc]
    assert time.monotonic() - begun > state.callsheet.state.settings.body_timeout_seconds
    assert sender.receive().startswith(b"HTTP/1.1 204")
    assert state.blobs.path(key).read_bytes() == body


def test_a_body_that_does_not_move_ends(state: KeylessServer, key: str) -> None:
    sender = Sender(state, grant_upload_of(state.blobs, key, BODY), len(BODY))
    sender.send(BODY[:-1])
    answer = sender.receive()
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body_timeout" in answer
    wait_until(lambda: incoming_files(state) == [])
    assert not state.blobs.exists(key)


def test_a_full_disk_is_said_and_leaves_nothing(state: KeylessServer, client: httpx.Client, key: str) -> None:
    body = b"x" * 3 * MEGABYTE
    grant = grant_upload_of(state.blobs, key, body)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, before[1]))  # the system says it as of a full disk
    try:
        answer = put(client, grant, body)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code(answer) == (507, "storage_full")
    wait_until(lambda: incoming_files(state) == [])
    assert not state.blobs.exists(key)
    assert put(client, grant, body).status_code == 204, "with room it is taken"


def test_a_folder_that_cannot_be_written_is_the_operators_to_mend(
    state: KeylessServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[Any] = []
    monkeypatch.setattr(state.callsheet.state, "report_error", lambda _id, error: faults.append(error))
    state.blobs.path("blocked").write_text("not a folder")
    answer = put(client, grant_upload_of(state.blobs, "blocked/uploads/x", BODY))
    assert code(answer) == (503, "storage_unavailable")
    assert answer.headers["retry-after"]
    assert "blocked" not in answer.text
    assert [type(fault).__name__ for fault in faults] == ["StorageRefusedError"]


@pytest.mark.parametrize(("number", "wanted"), [(errno.EMFILE, 503), (errno.ENFILE, 503), (errno.EIO, 500)])
def test_a_server_that_can_open_no_file_asks_to_come_back_and_tells_its_operator(
    state: KeylessServer, capfd: pytest.CaptureFixture[str], number: int, wanted: int
) -> None:
    # F28
    problem = problem_from(state.callsheet.state, "r1", OSError(number, "no", "/srv/somewhere"))
    assert (problem.status, "retry-after" in problem.headers) == (wanted, wanted == 503)
    assert "somewhere" not in problem.message
    assert "request r1 failed" in capfd.readouterr().err
