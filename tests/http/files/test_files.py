"""Files over HTTP: whole and in parts, to readers that know them, dawdle or leave; nothing stays open."""

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
from callsheet.http.server.conditional import etag_matches
from callsheet.http.server.file_response import CHUNK
from tests.support.databases.database_pool import DatabasePool
from tests.support.processes.live_server import TENANT, LiveServer
from tests.support.wait import wait_until

BODY = b"0123456789"
TAG = f'"{hashlib.sha256(BODY).hexdigest()}"'
LARGE = 64 * 1024 * 1024
SOCKET_BYTES = 16_384


class RecordingBlobs(LocalBlobs):
    """The same folder; remembers what was opened."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.opened: list[IO[bytes]] = []

    def open(self, key: str) -> IO[bytes]:
        self.opened.append(super().open(key))
        return self.opened[-1]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def live_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose sockets keep little for a reader that dawdles."""
    data: Path = tmp_path_factory.mktemp("files")
    if request.param == "sqlite":
        with LiveServer(data / "callsheet.db", data, send_bytes=SOCKET_BYTES) as made:
            yield made
        return
    database_pool: DatabasePool = request.getfixturevalue("database_pool")
    url = database_pool.acquire()
    with LiveServer(url, data, send_bytes=SOCKET_BYTES) as made:
        yield made
    database_pool.release(url)


@pytest.fixture
def blobs(live_server: LiveServer) -> Iterator[RecordingBlobs]:
    """What is opened meanwhile; at the end all of it is closed."""
    state = live_server.callsheet.state
    before = live_server.blobs
    watched = RecordingBlobs(before.path("t").parent)
    state.blobs = watched
    yield watched
    state.blobs = before
    wait_until(lambda: all(file.closed for file in watched.opened))


def made(live_server: LiveServer, body: bytes | int, media_type: str = "image/png") -> tuple[str, str]:
    """Let ann's job make a file, of these bytes or of so many zeros, and return its address and key."""
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
    file_made = OutputFile(1, "a.png", media_type, size, digest)
    live_server.engine.execute(commands.Complete(lease=lease, files=(file_made,)))
    outputs = live_server.client("client").get(f"/v1/jobs/{job}/outputs").raise_for_status().json()["outputs"]
    return str(outputs[0]["files"][0]["url"]), key


@pytest.fixture(scope="module")
def url(live_server: LiveServer) -> str:
    return made(live_server, BODY)[0]


@pytest.fixture(scope="module")
def client(live_server: LiveServer) -> httpx.Client:
    return live_server.client("client")


# -- whole


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
def test_a_file_arrives_as_it_was_made(live_server: LiveServer, blobs: RecordingBlobs, size: int) -> None:
    body = (b"some bytes " * (size // 11 + 1))[:size]
    address, _ = made(live_server, body)
    answer = live_server.client("client").get(address, headers={"x-request-id": "mine"})
    assert answer.status_code == 200
    assert answer.content == body
    head = answer.headers
    assert (head["content-length"], head["accept-ranges"], head["x-request-id"]) == (str(size), "bytes", "mine")
    assert (head["cache-control"], head["x-content-type-options"]) == ("no-store", "nosniff")
    assert "sandbox" in head["content-security-policy"]
    assert len(blobs.opened) == 1


def test_a_head_says_what_a_get_would_and_reads_nothing(blobs: RecordingBlobs, client: httpx.Client, url: str) -> None:
    said, got = client.head(url, headers={"range": "bytes=2-3"}), client.get(url)
    assert (said.status_code, said.content) == (200, b"")
    assert {**said.headers, "x-request-id": ""} == {**got.headers, "x-request-id": ""}
    assert len(blobs.opened) == 2


# -- parts


@pytest.mark.parametrize(
    ("wanted", "status", "body", "said"),
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
def test_a_range_is_answered_with_that_part(
    blobs: RecordingBlobs,
    client: httpx.Client,
    url: str,
    wanted: str,
    status: int,
    body: bytes | None,
    said: str | None,
) -> None:
    answer = client.get(url, headers={b"range": wanted.encode("latin-1")})
    assert (answer.status_code, answer.headers.get("content-range")) == (status, said)
    if body is None:
        assert answer.json()["code"] == "range_not_satisfiable"
    else:
        assert (answer.content, answer.headers["content-length"]) == (body, str(len(body)))
        assert (answer.headers["etag"], answer.headers["content-type"]) == (TAG, "image/png")
    assert len(blobs.opened) == 1


@pytest.mark.parametrize(("wanted", "status"), [("bytes=0-", 416), ("bytes=-1", 200), ("bytes=-0", 416)])
def test_an_empty_file_has_no_parts(live_server: LiveServer, blobs: RecordingBlobs, wanted: str, status: int) -> None:
    address, _ = made(live_server, b"")
    answer = live_server.client("client").get(address, headers={"range": wanted})
    assert (answer.status_code, len(blobs.opened)) == (status, 1)


def test_a_part_may_begin_and_end_anywhere_in_a_large_file(live_server: LiveServer, blobs: RecordingBlobs) -> None:
    body = b"".join(b"%07d\n" % number for number in range(3 * CHUNK // 8))
    address, _ = made(live_server, body)
    for first, last in ((CHUNK - 1, CHUNK), (5, 2 * CHUNK + 5), (CHUNK, 2 * CHUNK - 1)):
        answer = live_server.client("client").get(address, headers={"range": f"bytes={first}-{last}"})
        assert answer.content == body[first : last + 1]
    assert len(blobs.opened) == 3


@pytest.mark.parametrize(
    ("known", "status"),
    [(TAG, 206), (f"W/{TAG}", 200), ('"another"', 200), ("Sat, 14 Mar 2026 09:00:00 GMT", 200), ("*", 200)],
)
def test_a_part_is_of_the_file_that_the_client_knows(client: httpx.Client, url: str, known: str, status: int) -> None:
    answer = client.get(url, headers={"range": "bytes=1-2", "if-range": known})
    assert (answer.status_code, answer.content) == (status, BODY if status == 200 else b"12")


# -- known already


KNOWN = [
    ("{}", True), ("W/{}", True), ('"x", {}', True), ('"x,y",W/{} , "z"', True), ("*", True),
    ('"x"', False), ('W/"x", "y"', False), ("", False), ('"*"', False),
]  # fmt: skip


@pytest.mark.parametrize(("known", "same"), KNOWN)
def test_a_tag_is_found_alone_in_a_list_weak_or_by_a_star(known: str, *, same: bool) -> None:
    assert etag_matches(known.format(TAG), TAG) is same
    assert not etag_matches(None, TAG)
    assert not etag_matches(TAG.strip('"'), TAG)


@pytest.mark.parametrize(("known", "same"), KNOWN)
def test_a_file_that_is_known_is_not_sent_again(
    blobs: RecordingBlobs, client: httpx.Client, url: str, known: str, *, same: bool
) -> None:
    beyond = {"range": "bytes=99-"} if same else {}  # what is known comes first
    answer = client.get(url, headers={"if-none-match": known.format(TAG)} | beyond)
    assert (answer.status_code, answer.content) == ((304, b"") if same else (200, BODY))
    assert answer.headers["etag"] == TAG
    assert len(blobs.opened) == 1


@pytest.mark.parametrize(("known", "same"), KNOWN)
def test_a_job_that_is_known_is_not_sent_again(
    live_server: LiveServer, client: httpx.Client, known: str, *, same: bool
) -> None:
    path = f"/v1/jobs/{live_server.submit()['id']}"
    tag = client.get(path).headers["etag"]
    answer = client.get(path, headers={"if-none-match": known.format(tag)})
    assert (answer.status_code, answer.headers["etag"]) == (304 if same else 200, tag)


# -- slow readers, and those who leave


class Reader:
    """A connection that takes no more than it is told to."""

    def __init__(self, live_server: LiveServer, address: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        self._socket.settimeout(30)
        self._socket.connect(("127.0.0.1", int(live_server.url.rpartition(":")[2])))
        head = f"GET {address} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {live_server.keys['client']}\r\n\r\n"
        self._socket.sendall(head.encode())
        self.taken = 0

    def take(self, size: int) -> None:
        """Take so many bytes more."""
        end = self.taken + size
        while self.taken < end:
            piece = self._socket.recv(min(end - self.taken, 65_536))
            assert piece, "the server broke off"
            self.taken += len(piece)

    def is_closed(self) -> bool:
        while piece := self._socket.recv(65_536):
            self.taken += len(piece)
        return True

    def close(self) -> None:
        self._socket.close()


def test_a_slow_reader_of_a_large_file_holds_one_chunk_of_it(live_server: LiveServer, blobs: RecordingBlobs) -> None:
    address, _ = made(live_server, LARGE)
    reader = Reader(live_server, address)
    others = live_server.client(None)
    ahead: list[int] = []
    for _ in range(6):
        reader.take(3 * CHUNK)
        for _ in range(10):  # the server has time for others, and so would have had time to read on
            others.get("/healthz").raise_for_status()
        ahead.append(blobs.opened[0].tell() - reader.taken)
    reader.close()
    assert max(ahead) <= CHUNK + 8 * SOCKET_BYTES, ahead


def test_whoever_leaves_leaves_nothing_open(live_server: LiveServer, blobs: RecordingBlobs) -> None:
    address, _ = made(live_server, LARGE)
    readers = [Reader(live_server, address) for _ in range(8)]
    for reader in readers:
        reader.take(CHUNK)
    assert [file.closed for file in blobs.opened] == [False] * 8
    for reader in readers:
        reader.close()
    wait_until(lambda: all(file.closed for file in blobs.opened))


def test_a_file_that_becomes_shorter_while_it_is_sent_breaks_off(
    live_server: LiveServer, blobs: RecordingBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[Any] = []
    monkeypatch.setattr(live_server.callsheet.state, "report_error", lambda _id, error: faults.append(error))
    address, key = made(live_server, LARGE)
    reader = Reader(live_server, address)
    reader.take(CHUNK)
    with blobs.path(key).open("r+b") as file:
        file.truncate(3 * CHUNK)
    assert reader.is_closed()
    assert reader.taken < LARGE
    assert [type(fault) for fault in faults] == [EOFError]
    reader.close()


# -- previews


def test_a_preview_is_shown_by_a_browser_with_a_token_and_never_kept(
    live_server: LiveServer, blobs: RecordingBlobs
) -> None:
    _, key = made(live_server, BODY)
    found = object_keys.parse_key(key)
    assert isinstance(found, object_keys.OutputKey)
    blobs.put(object_keys.preview_key(*found[:4]), BODY)
    path = f"/v1/jobs/{found.job_id}/tasks/{found.task_id}/preview"
    answer = live_server.client(None).get(path, params={"token": live_server.keys["user"]})
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, BODY, "image/png")
    assert answer.headers.get_list("cache-control") == ["no-store"]
    assert answer.headers["content-security-policy"] == "sandbox"
    said = live_server.client("client").head(path)
    assert (said.status_code, said.content, said.headers["content-length"]) == (200, b"", "10")
    refused = live_server.client(None).get(path, params={"token": live_server.keys["client"]})
    assert (refused.status_code, refused.json()["code"]) == (401, "key_in_url")
    assert len(blobs.opened) == 2
