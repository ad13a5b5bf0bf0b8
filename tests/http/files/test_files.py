"""File downloads over HTTP: whole files and ranges, conditional requests, slow readers and disconnects."""

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from callsheet.blobs import object_keys
from callsheet.blobs.local import LocalBlobs
from callsheet.core.model import commands
from callsheet.core.model.commands import OutputFile
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.http.server.etag_and_range import etag_matches
from callsheet.http.server.file_response import CHUNK
from tests.http.server_on_each_database import DATABASES, start_server
from tests.support.processes.live_server import TENANT, LiveServer
from tests.support.wait import wait_until

BODY = b"0123456789"
TAG = f'"{hashlib.sha256(BODY).hexdigest()}"'
LARGE = 64 * 1024 * 1024
SOCKET_BYTES = 16_384


class RecordingBlobs(LocalBlobs):
    """A local blob store that records the files it opened."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.opened: list[IO[bytes]] = []

    def open(self, key: str) -> IO[bytes]:
        self.opened.append(super().open(key))
        return self.opened[-1]


@pytest.fixture(scope="module", params=DATABASES)
def live_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with small socket buffers, so that slow readers block it early."""
    with start_server(request, tmp_path_factory.mktemp("files"), send_bytes=SOCKET_BYTES) as server:
        yield server


@pytest.fixture
def blobs(live_server: LiveServer) -> Iterator[RecordingBlobs]:
    """A recording blob store; at the end of the test all opened files must be closed."""
    state = live_server.callsheet.state
    before = live_server.blobs
    recording = RecordingBlobs(before.path("t").parent)
    state.blobs = recording
    yield recording
    state.blobs = before
    wait_until(lambda: all(file.closed for file in recording.opened))


def create_file(live_server: LiveServer, body: bytes | int, media_type: str = "image/png") -> tuple[str, str]:
    """Let a job of ann create a file with these bytes or so many zeros, and return its URL and key."""
    definition = WorkflowDefinition(name="filed", stages=[StageSpec(name="draw", kind="filed")])
    live_server.engine.execute(commands.PutWorkflow(definition=definition))
    job = live_server.submit(workflow="filed")["id"]
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w", kinds=("filed",)))
    lease = leased.lease
    key = object_keys.output_key(TENANT, job, lease.task_id, lease.attempt, 1)
    blobs = live_server.blobs
    blobs.put(key, body if isinstance(body, bytes) else b"")
    if isinstance(body, int):
        with blobs.path(key).open("r+b") as file:
            file.truncate(body)
    digest = hashlib.sha256(body).hexdigest() if isinstance(body, bytes) else "0" * 64
    size = body if isinstance(body, int) else len(body)
    output_file = OutputFile(1, "a.png", media_type, size, digest)
    live_server.engine.execute(commands.Complete(lease=lease, files=(output_file,)))
    outputs = live_server.client("client").get(f"/v1/jobs/{job}/outputs").raise_for_status().json()["outputs"]
    return str(outputs[0]["files"][0]["url"]), key


@pytest.fixture(scope="module")
def url(live_server: LiveServer) -> str:
    return create_file(live_server, BODY)[0]


@pytest.fixture(scope="module")
def client(live_server: LiveServer) -> httpx.Client:
    return live_server.client("client")


# -- whole files


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
def test_a_file_is_downloaded_unchanged(live_server: LiveServer, blobs: RecordingBlobs, size: int) -> None:
    body = (b"some bytes " * (size // 11 + 1))[:size]
    file_url, _ = create_file(live_server, body)
    answer = live_server.client("client").get(file_url, headers={"x-request-id": "mine"})
    assert answer.status_code == 200
    assert answer.content == body
    head = answer.headers
    assert (head["content-length"], head["accept-ranges"], head["x-request-id"]) == (str(size), "bytes", "mine")
    assert (head["cache-control"], head["x-content-type-options"]) == ("no-store", "nosniff")
    assert "sandbox" in head["content-security-policy"]
    assert len(blobs.opened) == 1


def test_a_head_request_has_the_headers_of_get_and_no_body(
    blobs: RecordingBlobs, client: httpx.Client, url: str
) -> None:
    head, got = client.head(url, headers={"range": "bytes=2-3"}), client.get(url)
    assert (head.status_code, head.content) == (200, b"")
    assert {**head.headers, "x-request-id": ""} == {**got.headers, "x-request-id": ""}
    assert len(blobs.opened) == 2


# -- ranges


@pytest.mark.parametrize(
    ("range_header", "status", "body", "content_range"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"), ("bytes=4-4", 206, b"4", "bytes 4-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"), ("bytes=0-", 206, BODY, "bytes 0-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"), (f"bytes=9-{'9' * 40}", 206, b"9", "bytes 9-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"), ("bytes=-99", 206, BODY, "bytes 0-9/10"),
        ("BYTES=0-0", 206, b"0", "bytes 0-0/10"),
        ("bytes=10-", 416, None, "bytes */10"), ("bytes=10-12", 416, None, "bytes */10"),
        (f"bytes={'9' * 40}-", 416, None, "bytes */10"), ("bytes=-0", 416, None, "bytes */10"),
        ("bytes=0-1,4-5", 200, BODY, None), ("bytes=3-2", 200, BODY, None), ("bytes=-", 200, BODY, None),
        ("bytes=a-b", 200, BODY, None), ("bytes=--1", 200, BODY, None), ("bytes=²-", 200, BODY, None),
        ("lines=0-1", 200, BODY, None), ("0-1", 200, BODY, None), (f"bytes={'9' * 5_000}-", 200, BODY, None),
    ],
)  # fmt: skip
def test_a_range_request_returns_that_part(
    blobs: RecordingBlobs,
    client: httpx.Client,
    url: str,
    range_header: str,
    status: int,
    body: bytes | None,
    content_range: str | None,
) -> None:
    answer = client.get(url, headers={b"range": range_header.encode("latin-1")})
    assert (answer.status_code, answer.headers.get("content-range")) == (status, content_range)
    if body is None:
        assert answer.json()["code"] == "range_not_satisfiable"
    else:
        assert (answer.content, answer.headers["content-length"]) == (body, str(len(body)))
        assert (answer.headers["etag"], answer.headers["content-type"]) == (TAG, "image/png")
    assert len(blobs.opened) == 1


@pytest.mark.parametrize(("range_header", "status"), [("bytes=0-", 416), ("bytes=-1", 200), ("bytes=-0", 416)])
def test_an_empty_file_has_no_ranges(
    live_server: LiveServer, blobs: RecordingBlobs, range_header: str, status: int
) -> None:
    file_url, _ = create_file(live_server, b"")
    answer = live_server.client("client").get(file_url, headers={"range": range_header})
    assert (answer.status_code, len(blobs.opened)) == (status, 1)


def test_a_range_may_start_and_end_anywhere_in_a_large_file(live_server: LiveServer, blobs: RecordingBlobs) -> None:
    body = b"".join(b"%07d\n" % number for number in range(3 * CHUNK // 8))
    file_url, _ = create_file(live_server, body)
    for first, last in ((CHUNK - 1, CHUNK), (5, 2 * CHUNK + 5), (CHUNK, 2 * CHUNK - 1)):
        answer = live_server.client("client").get(file_url, headers={"range": f"bytes={first}-{last}"})
        assert answer.content == body[first : last + 1]
    assert len(blobs.opened) == 3


@pytest.mark.parametrize(
    ("known", "status"),
    [(TAG, 206), (f"W/{TAG}", 200), ('"another"', 200), ("Sat, 14 Mar 2026 09:00:00 GMT", 200), ("*", 200)],
)
def test_if_range_returns_the_part_only_for_the_same_version(
    client: httpx.Client, url: str, known: str, status: int
) -> None:
    answer = client.get(url, headers={"range": "bytes=1-2", "if-range": known})
    assert (answer.status_code, answer.content) == (status, BODY if status == 200 else b"12")


# -- conditional requests


IF_NONE_MATCH = [
    ("{}", True), ("W/{}", True), ('"x", {}', True), ('"x,y",W/{} , "z"', True), ("*", True),
    ('"x"', False), ('W/"x", "y"', False), ("", False), ('"*"', False),
]  # fmt: skip


@pytest.mark.parametrize(("known", "same"), IF_NONE_MATCH)
def test_an_etag_matches_alone_in_a_list_weak_or_by_a_star(known: str, *, same: bool) -> None:
    assert etag_matches(known.format(TAG), TAG) is same
    assert not etag_matches(None, TAG)
    assert not etag_matches(TAG.strip('"'), TAG)


@pytest.mark.parametrize(("known", "same"), IF_NONE_MATCH)
def test_an_unchanged_file_is_not_sent_again(
    blobs: RecordingBlobs, client: httpx.Client, url: str, known: str, *, same: bool
) -> None:
    beyond = {"range": "bytes=99-"} if same else {}  # if-none-match has precedence over range
    answer = client.get(url, headers={"if-none-match": known.format(TAG)} | beyond)
    assert (answer.status_code, answer.content) == ((304, b"") if same else (200, BODY))
    assert answer.headers["etag"] == TAG
    assert len(blobs.opened) == 1


@pytest.mark.parametrize(("known", "same"), IF_NONE_MATCH)
def test_an_unchanged_job_is_not_sent_again(
    live_server: LiveServer, client: httpx.Client, known: str, *, same: bool
) -> None:
    path = f"/v1/jobs/{live_server.submit()['id']}"
    tag = client.get(path).headers["etag"]
    answer = client.get(path, headers={"if-none-match": known.format(tag)})
    assert (answer.status_code, answer.headers["etag"]) == (304 if same else 200, tag)


# -- slow readers and disconnects


class Reader:
    """A connection that reads only when it is called."""

    def __init__(self, live_server: LiveServer, file_url: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        self._socket.settimeout(30)
        self._socket.connect(("127.0.0.1", int(live_server.url.rpartition(":")[2])))
        head = f"GET {file_url} HTTP/1.1\r\nHost: [::1]\r\nAuthorization: Bearer {live_server.keys['client']}\r\n\r\n"
        self._socket.sendall(head.encode())
        self.bytes_read = 0

    def read(self, size: int) -> None:
        """Read so many more bytes."""
        end = self.bytes_read + size
        while self.bytes_read < end:
            piece = self._socket.recv(min(end - self.bytes_read, 65_536))
            assert piece, "the server closed the connection"
            self.bytes_read += len(piece)

    def is_closed(self) -> bool:
        while piece := self._socket.recv(65_536):
            self.bytes_read += len(piece)
        return True

    def close(self) -> None:
        self._socket.close()


def test_the_server_reads_at_most_one_chunk_ahead_of_a_slow_reader(
    live_server: LiveServer, blobs: RecordingBlobs
) -> None:
    file_url, _ = create_file(live_server, LARGE)
    reader = Reader(live_server, file_url)
    others = live_server.client(None)
    ahead: list[int] = []
    for _ in range(6):
        reader.read(3 * CHUNK)
        for _ in range(10):  # the server answers others, so it had time to read ahead
            others.get("/healthz").raise_for_status()
        ahead.append(blobs.opened[0].tell() - reader.bytes_read)
    reader.close()
    assert max(ahead) <= CHUNK + 8 * SOCKET_BYTES, ahead


def test_a_disconnected_reader_leaves_no_open_file(live_server: LiveServer, blobs: RecordingBlobs) -> None:
    file_url, _ = create_file(live_server, LARGE)
    readers = [Reader(live_server, file_url) for _ in range(8)]
    for reader in readers:
        reader.read(CHUNK)
    assert [file.closed for file in blobs.opened] == [False] * 8
    for reader in readers:
        reader.close()
    wait_until(lambda: all(file.closed for file in blobs.opened))


def test_a_download_is_aborted_if_its_file_becomes_shorter(
    live_server: LiveServer, blobs: RecordingBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[Any] = []
    monkeypatch.setattr(live_server.callsheet.state, "report_error", lambda _id, error: faults.append(error))
    file_url, key = create_file(live_server, LARGE)
    reader = Reader(live_server, file_url)
    reader.read(CHUNK)
    with blobs.path(key).open("r+b") as file:
        file.truncate(3 * CHUNK)
    assert reader.is_closed()
    assert reader.bytes_read < LARGE
    assert [type(fault) for fault in faults] == [EOFError]
    reader.close()


# -- previews


def test_a_browser_can_show_a_preview_with_a_user_token_and_never_caches_it(
    live_server: LiveServer, blobs: RecordingBlobs
) -> None:
    _, key = create_file(live_server, BODY)
    found = object_keys.parse_key(key)
    assert isinstance(found, object_keys.OutputKey)
    blobs.put(object_keys.preview_key(*found[:4]), BODY)
    path = f"/v1/jobs/{found.job_id}/tasks/{found.task_id}/preview"
    answer = live_server.client(None).get(path, params={"token": live_server.keys["user"]})
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, BODY, "image/png")
    assert answer.headers.get_list("cache-control") == ["no-store"]
    assert answer.headers["content-security-policy"] == "sandbox"
    head = live_server.client("client").head(path)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "10")
    refused = live_server.client(None).get(path, params={"token": live_server.keys["client"]})
    assert (refused.status_code, refused.json()["code"]) == (401, "key_in_url")
    assert len(blobs.opened) == 2
