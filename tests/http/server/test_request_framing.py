"""Message framing: duplicate headers, trailers, chunk extensions and transfer encodings."""

import json
from collections.abc import Iterator

import pytest

from callsheet.settings import HttpSettings
from tests.support.databases.database_contents import database_contents
from tests.support.http.raw_http import RawConnection
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

HEADER_BYTES = 8_192
JOB = json.dumps({"workflow": "sketch", "user": "ann", "input": {"prompt": "a pier"}}).encode()
CHUNK = b"%x\r\n%b\r\n" % (len(JOB), JOB)
END = b"0\r\n"


@pytest.fixture(scope="module")
def small_limits_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with small limits, on SQLite."""
    data = tmp_path_factory.mktemp("framing")
    with LiveServer(
        data / "callsheet.db", data, HttpSettings(header_bytes_max=HEADER_BYTES, body_timeout_seconds=600)
    ) as made:
        yield made


@pytest.fixture
def connection(small_limits_server: LiveServer) -> Iterator[RawConnection]:
    with RawConnection(small_limits_server.url) as made:
        yield made


def chunked(connection: RawConnection, key: str | None, coding: str = "chunked") -> bytes:
    return connection.head("POST", "/v1/jobs", key, content_type="application/json", transfer_encoding=coding)


DUPLICATE_HEADERS = {
    "authorization": ("Authorization", "Bearer {viewer}", "Bearer {client}"),
    "authorization, one invalid": ("authorization", "Bearer cs_garbage", "Bearer {client}"),
    "authorization, equal values": ("Authorization", "Bearer {client}", "Bearer {client}"),
    "tenant": ("Callsheet-Tenant", "default", "other"),
    "idempotency key": ("Idempotency-Key", "a", "b"),
    "content type": ("Content-Type", "text/plain", "application/json"),
    "content encoding": ("Content-Encoding", "gzip", "identity"),
    "content length": ("Content-Length", str(len(JOB)), str(len(JOB))),
    "transfer encoding": ("Transfer-Encoding", "chunked", "chunked"),
    "host": ("Host", "here", "there"),
    "last event id": ("Last-Event-ID", "1", "2"),
}


@pytest.mark.parametrize("case", DUPLICATE_HEADERS)
def test_a_duplicate_header_is_refused(small_limits_server: LiveServer, connection: RawConnection, case: str) -> None:
    """A proxy in front of the server may have read the other value."""
    before = database_contents(small_limits_server)
    name, *values = DUPLICATE_HEADERS[case]
    lines = ["POST /v1/jobs HTTP/1.1", *(f"{name}: {value.format_map(small_limits_server.keys)}" for value in values)]
    headers = {"Host": "x", "Authorization": f"Bearer {small_limits_server.keys['client']}",
        "Content-Type": "application/json",
             "Content-Length": str(len(JOB))}  # fmt: skip
    lines += [f"{other}: {value}" for other, value in headers.items() if other.lower() != name.lower()]
    connection.send("\r\n".join([*lines, "", ""]).encode() + JOB)
    response = connection.read_response()
    assert (response.status, response.json()["code"]) == (400, "invalid_request")
    assert connection.wait_closed()
    assert database_contents(small_limits_server) == before


def test_other_headers_may_be_repeated(small_limits_server: LiveServer, connection: RawConnection) -> None:
    head = connection.head("GET", "/v1/me", small_limits_server.keys["client"], accept="a/b", via="1.1 here")
    connection.send(head[:-2] + b"Accept: c/d\r\nVia: 1.1 there\r\n\r\n")
    assert connection.read_response().status == 200


def test_a_trailer_does_not_authenticate(small_limits_server: LiveServer, connection: RawConnection) -> None:
    key = small_limits_server.keys["client"].encode()
    connection.send(chunked(connection, None) + CHUNK + END + b"Authorization: Bearer %b\r\n\r\n" % key)
    response = connection.read_response()
    assert (response.status, response.json()["code"]) == (401, "missing_key")
    connection.send_request("GET", "/v1/me", small_limits_server.keys["client"])
    assert connection.read_response().status == 200, "the next request is parsed correctly"


def test_trailers_do_not_replace_headers(small_limits_server: LiveServer, connection: RawConnection) -> None:
    connection.send(
        chunked(connection, small_limits_server.keys["client"])
        + CHUNK
        + END
        + b"Idempotency-Key: \r\nExpires: 0\r\n\r\n"
    )
    assert connection.read_response().status == 201


@pytest.mark.parametrize("key", ["client", None])
@pytest.mark.parametrize("unit", [b"a: b\r\n", b"a: " + b"b" * 500 + b"\r\n", b"b"], ids=["many", "large", "one"])
def test_trailers_have_a_size_limit(
    small_limits_server: LiveServer, connection: RawConnection, unit: bytes, key: str | None
) -> None:
    """The server keeps trailers in memory, with and without a valid key."""
    connection.send(chunked(connection, key and small_limits_server.keys[key]) + CHUNK + END + b"x: ")
    assert is_cut_off(connection, unit)


@pytest.mark.parametrize("key", ["client", None])
def test_chunk_extensions_have_a_size_limit(
    small_limits_server: LiveServer, connection: RawConnection, key: str | None
) -> None:
    connection.send(chunked(connection, key and small_limits_server.keys[key]) + b"5;")
    assert is_cut_off(connection, b"a")


def is_cut_off(connection: RawConnection, unit: bytes) -> bool:
    """Keep sending, and return whether the server closes the connection long before the timeout."""
    try:
        for _ in range(1_000):
            connection.send(unit * (HEADER_BYTES // len(unit)))
        wait_until(connection.has_closed)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_a_body_in_small_chunks_is_accepted(
    small_limits_server: LiveServer, connection: RawConnection, size: int
) -> None:
    parts = [JOB[at : at + size] for at in range(0, len(JOB), size)]
    connection.send(chunked(connection, small_limits_server.keys["client"]))
    for part in parts:
        connection.send(b"%x;a=b\r\n%b\r\n" % (len(part), part))
    connection.send(b"0\r\n\r\n")
    assert connection.read_response().status == 201


@pytest.mark.parametrize("coding", ["gzip, chunked", "chunked, chunked", "identity", "xchunked", "chunked;q=1"])
def test_an_unknown_transfer_encoding_is_refused(
    small_limits_server: LiveServer, connection: RawConnection, coding: str
) -> None:
    connection.send(chunked(connection, small_limits_server.keys["client"], coding) + CHUNK + END + b"\r\n")
    assert connection.read_response().status == 400
    assert connection.wait_closed()
