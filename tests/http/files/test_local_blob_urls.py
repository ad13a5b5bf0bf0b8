"""Signed URLs of the local blob store: uploads are streamed to the disk, and each mismatch has its own error code."""

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
from callsheet.http.server.exception_map import problem_from
from callsheet.http.server.file_response import CHUNK
from callsheet.settings import HttpSettings
from tests.support.doubles.blob_stores import KeylessServer, digest, grant_upload_of
from tests.support.wait import wait_until

OURS, FOREIGN = "https://app.example", "https://evil.example"
BODY = b"\x89PNG not much of a picture"
MEGABYTE = 1024 * 1024
STEP = 64 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeylessServer]:
    """A server on SQLite."""
    data = tmp_path_factory.mktemp("blobs")
    with KeylessServer(
        data / "callsheet.db", data, HttpSettings(cors_origins=(OURS,), body_timeout_seconds=1.0)
    ) as made:
        yield made
        for client in made._clients:  # noqa: SLF001 - the clients of the server
            client.close()


@pytest.fixture(scope="module")
def client(server: KeylessServer) -> httpx.Client:
    return server.client(None)


@pytest.fixture
def key(server: KeylessServer, request: pytest.FixtureRequest) -> str:
    """The key of an upload that waits for its bytes."""
    key = f"acme/uploads/{hashlib.sha256(request.node.name.encode()).hexdigest()}"
    server.expect_upload(key)
    return key


def put(client: httpx.Client, grant: Grant, body: bytes = BODY, **headers: str) -> httpx.Response:
    return client.put(grant.url, headers=grant.headers | headers, content=body)


def incoming_files(server: KeylessServer) -> list[Path]:
    folder = server.blobs.path("x").parent / ".incoming"
    return list(folder.iterdir()) if folder.exists() else []


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


# -- uploads


def test_uploaded_bytes_are_downloaded_unchanged(server: KeylessServer, client: httpx.Client, key: str) -> None:
    answer = put(client, grant_upload_of(server.blobs, key, BODY))
    assert (answer.status_code, answer.content) == (204, b"")
    got = client.get(server.blobs.grant_download(key, expires_in_seconds=60, name="a.png", media_type="image/png").url)
    assert (got.status_code, got.content) == (200, BODY)
    assert (got.headers["cache-control"], got.headers["x-content-type-options"]) == ("no-store", "nosniff")
    assert "sandbox" in got.headers["content-security-policy"]


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * MEGABYTE + 3])
def test_uploads_of_any_size_are_stored_completely(
    server: KeylessServer, client: httpx.Client, key: str, size: int
) -> None:
    body = (b"0123456789" * (size // 10 + 1))[:size]
    assert put(client, grant_upload_of(server.blobs, key, body), body).status_code == 204
    assert server.blobs.path(key).read_bytes() == body
    assert incoming_files(server) == []


MISMATCHES: list[tuple[str, bytes, dict[str, str], tuple[int, str]]] = [
    ("longer", BODY + b"!", {"content-length": str(len(BODY) + 1)}, (422, "size_mismatch")),
    ("shorter", BODY[1:], {"content-length": str(len(BODY) - 1)}, (422, "size_mismatch")),
    ("other bytes", BODY[::-1], {}, (422, "digest_mismatch")),
    ("other type", BODY, {"content-type": "text/html"}, (422, "type_mismatch")),
    ("compressed", BODY, {"content-encoding": "gzip"}, (415, "unsupported_encoding")),
]


@pytest.mark.parametrize(
    ("body", "headers", "error"), [case[1:] for case in MISMATCHES], ids=[case[0] for case in MISMATCHES]
)
def test_a_mismatching_upload_has_its_own_error_and_leaves_nothing(
    server: KeylessServer, client: httpx.Client, key: str, body: bytes, headers: dict[str, str], error: tuple[int, str]
) -> None:
    grant = grant_upload_of(server.blobs, key, BODY)
    answer = put(client, grant, body, **headers)
    assert code(answer) == error
    assert (server.blobs.exists(key), incoming_files(server)) == (False, [])
    assert key not in answer.text
    assert put(client, grant).status_code == 204, "the grant still accepts the right bytes"


def test_a_second_upload_is_refused_before_its_body_is_sent(
    server: KeylessServer, client: httpx.Client, key: str
) -> None:
    grant = grant_upload_of(server.blobs, key, BODY)
    assert put(client, grant).status_code == 204
    assert code(put(client, grant)) == (412, "already_uploaded")
    sender = Sender(server, grant, len(BODY), "Expect: 100-continue\r\n")
    assert sender.receive().startswith(b"HTTP/1.1 412")


def test_a_client_that_is_sending_a_large_body_receives_the_refusal(
    server: KeylessServer, client: httpx.Client, key: str
) -> None:
    body = b"x" * 8 * MEGABYTE
    server.blobs.put(key, BODY)
    assert code(put(client, grant_upload_of(server.blobs, key, body), body)) == (412, "already_uploaded")
    assert code(put(client, grant_upload_of(server.blobs, key, body, expires_in_seconds=-2), body)) == (
        403,
        "url_expired",
    )


def test_an_upload_without_a_content_length_is_refused(server: KeylessServer, client: httpx.Client, key: str) -> None:
    grant = grant_upload_of(server.blobs, key, BODY)
    headers = {"content-type": "image/png"}
    assert code(client.put(grant.url, headers=headers, content=iter([BODY]))) == (411, "length_required")
    preview = server.blobs.grant_overwrite(key, bytes_max=9, media_type="image/png", expires_in_seconds=60)
    assert code(client.put(preview.url, headers=headers, content=iter([BODY]))) == (411, "length_required")
    assert code(put(client, preview)) == (413, "body_too_large")
    assert not server.blobs.exists(key)


def test_an_upload_with_content_length_and_chunked_encoding_is_refused(server: KeylessServer, key: str) -> None:
    sender = Sender(server, grant_upload_of(server.blobs, key, BODY), len(BODY), "Transfer-Encoding: chunked\r\n")
    sender.send(b"400\r\n" + b"x" * 0x400 + b"\r\n0\r\n\r\n")
    assert sender.receive().startswith(b"HTTP/1.1 400")
    assert (server.blobs.exists(key), incoming_files(server)) == (False, [])


# -- signatures


def blob_claim(method: str, key: str, **more: Any) -> BlobAccess:
    return BlobAccess(method, key, int(time.time()) + 60, "image/png", **more)


@pytest.mark.parametrize("method", ["PUT", "GET", "HEAD"])
def test_only_a_url_signed_for_this_purpose_and_method_is_accepted(
    server: KeylessServer, client: httpx.Client, key: str, method: str
) -> None:
    signer = server.callsheet.state.signer
    allowed = "PUT" if method == "PUT" else "GET"
    right = blob_claim(allowed, key, size=len(BODY), sha256=digest(BODY))
    texts = {
        "unsigned": "x", "empty": "%20", "not ASCII": "%C3%A9", "long": "A" * 4_000, "dots": "..%2F..%2Fetc",
        "for something else": signer.sign("user", right), "for another method": signer.sign(
            BLOB_URL_PURPOSE, blob_claim("GET" if allowed == "PUT" else "PUT", key, size=len(BODY),
            sha256=digest(BODY))),
        "another shape": signer.sign(BLOB_URL_PURPOSE, ["PUT"]),
    }  # fmt: skip
    server.blobs.put(key, BODY) if method != "PUT" else None
    for name, text in texts.items():
        answer = client.request(method, f"/v1/blobs/{text}", headers={"content-type": "image/png"}, content=BODY)
        assert (name, answer.status_code) == (name, 403)
        assert method == "HEAD" or answer.json()["code"] == "invalid_signature"
    body = BODY if method == "PUT" else b""
    good = client.request(
        method, f"/v1/blobs/{signer.sign(BLOB_URL_PURPOSE, right)}", headers={"content-type": "image/png"}, content=body
    )
    assert good.is_success


def test_an_expired_url_is_refused(server: KeylessServer, client: httpx.Client, key: str) -> None:
    assert code(put(client, grant_upload_of(server.blobs, key, BODY, expires_in_seconds=-2))) == (403, "url_expired")
    expired = server.blobs.grant_download(key, expires_in_seconds=-2, name="a", media_type="image/png")
    assert code(client.get(expired.url)) == (403, "url_expired")


def test_a_signed_key_outside_the_folder_is_refused(server: KeylessServer, client: httpx.Client) -> None:
    for hostile in ("../secret.key", "acme/../../secret.key", "/etc/passwd"):
        text = server.callsheet.state.signer.sign(BLOB_URL_PURPOSE, blob_claim("GET", hostile))
        answer = client.get(f"/v1/blobs/{text}")
        assert code(answer) == (403, "invalid_signature")


def test_a_server_on_s3_has_no_local_blob_urls(server: KeylessServer, client: httpx.Client, key: str) -> None:
    grant, local = grant_upload_of(server.blobs, key, BODY), server.blobs
    s3_blobs = S3Blobs(S3Location(bucket="films"), lambda: S3Credentials("a", "b"))
    server.callsheet.state.blobs = s3_blobs
    answer = put(client, grant)
    server.callsheet.state.blobs = local
    s3_blobs.close()
    assert code(answer) == (404, "file_not_found")


# -- browsers


def test_a_page_of_a_listed_origin_can_upload_and_others_cannot(
    server: KeylessServer, client: httpx.Client, key: str
) -> None:
    # R164
    grant = grant_upload_of(server.blobs, key, BODY)
    preflight = {"access-control-request-method": "PUT", "access-control-request-headers": "content-type,if-none-match"}
    first = client.options(grant.url, headers=preflight | {"origin": OURS})
    assert (first.status_code, first.headers["access-control-allow-origin"]) == (204, OURS)
    assert "PUT" in first.headers["access-control-allow-methods"]
    assert {"content-type", "if-none-match", "range"} <= set(first.headers["access-control-allow-headers"].split(", "))
    then = put(client, grant, origin=OURS)
    assert (then.status_code, then.headers["access-control-allow-origin"]) == (204, OURS)
    foreign = client.options(grant.url, headers=preflight | {"origin": FOREIGN})
    assert "access-control-allow-origin" not in foreign.headers


def test_ranges_and_conditional_requests_work_as_for_other_files(
    server: KeylessServer, client: httpx.Client, key: str
) -> None:
    server.blobs.put(key, BODY)
    url = server.blobs.grant_download(key, expires_in_seconds=60, name="a.png", media_type="image/png").url
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
    server.blobs.delete([key])
    assert code(client.get(url)) == (404, "file_not_found")


# -- slow, large and interrupted uploads


class Sender:
    """A connection that sends its body only when it is called."""

    def __init__(self, server: KeylessServer, grant: Grant, size: int, more: str = "") -> None:
        self._socket = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=30)
        head = f"PUT {grant.url} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        self._socket.sendall(f"{head}Content-Length: {size}\r\n{more}\r\n".encode())

    def send(self, body: bytes) -> None:
        self._socket.sendall(body)

    def receive(self) -> bytes:
        """Return the response and close the connection."""
        with self._socket:
            return self._socket.recv(65_536)

    def close(self) -> None:
        self._socket.close()


def test_a_large_upload_is_streamed_to_the_disk_and_deleted_if_its_client_disconnects(
    server: KeylessServer, key: str
) -> None:
    size = 50 * MEGABYTE
    grant = grant_upload_of(server.blobs, key, b"", size=size)
    sender = Sender(server, grant, size)
    sender.send(b"x" * 3 * MEGABYTE)
    wait_until(lambda: any(path.stat().st_size >= 2 * MEGABYTE for path in incoming_files(server)))
    sender.close()
    wait_until(lambda: incoming_files(server) == [])
    assert not server.blobs.exists(key)


def test_an_upload_that_makes_progress_may_take_longer_than_the_timeout(server: KeylessServer, key: str) -> None:
    body = b"0123456789abcdef" * (STEP // 16) * 6
    sender = Sender(server, grant_upload_of(server.blobs, key, body), len(body))
    start = time.monotonic()
    for no in range(6):
        sender.send(body[no * STEP : (no + 1) * STEP])
        then = start + (no + 1) * 0.3
        wait_until(lambda then=then: time.monotonic() > then)  # type: ignore[misc]
    assert time.monotonic() - start > server.callsheet.state.settings.body_timeout_seconds
    assert sender.receive().startswith(b"HTTP/1.1 204")
    assert server.blobs.path(key).read_bytes() == body


def test_an_upload_without_progress_times_out(server: KeylessServer, key: str) -> None:
    sender = Sender(server, grant_upload_of(server.blobs, key, BODY), len(BODY))
    sender.send(BODY[:-1])
    answer = sender.receive()
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body_timeout" in answer
    wait_until(lambda: incoming_files(server) == [])
    assert not server.blobs.exists(key)


def test_a_full_disk_is_reported_and_leaves_nothing(server: KeylessServer, client: httpx.Client, key: str) -> None:
    body = b"x" * 3 * MEGABYTE
    grant = grant_upload_of(server.blobs, key, body)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, before[1]))  # the system reports this like a full disk
    try:
        answer = put(client, grant, body)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code(answer) == (507, "storage_full")
    wait_until(lambda: incoming_files(server) == [])
    assert not server.blobs.exists(key)
    assert put(client, grant, body).status_code == 204, "with free space it is accepted"


def test_a_folder_that_cannot_be_written_is_reported_to_the_operator(
    server: KeylessServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[Any] = []
    monkeypatch.setattr(server.callsheet.state, "report_error", lambda _id, error: faults.append(error))
    server.blobs.path("blocked").write_text("not a folder")
    server.expect_upload("blocked/uploads/x")
    answer = put(client, grant_upload_of(server.blobs, "blocked/uploads/x", BODY))
    assert code(answer) == (503, "storage_unavailable")
    assert answer.headers["retry-after"]
    assert "blocked" not in answer.text
    assert [type(fault).__name__ for fault in faults] == ["StorageRefusedError"]


@pytest.mark.parametrize(("number", "status"), [(errno.EMFILE, 503), (errno.ENFILE, 503), (errno.EIO, 500)])
def test_a_server_without_file_descriptors_answers_503_and_logs_it(
    server: KeylessServer, capfd: pytest.CaptureFixture[str], number: int, status: int
) -> None:
    # F28
    problem = problem_from(server.callsheet.state, "r1", OSError(number, "no", "/srv/somewhere"))
    assert (problem.status, "retry-after" in problem.headers) == (status, status == 503)
    assert "somewhere" not in problem.message
    assert "request r1 failed" in capfd.readouterr().err
