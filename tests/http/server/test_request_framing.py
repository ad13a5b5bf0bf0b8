"""Headers that two readers could read differently, and bytes around a body that are nobody's."""

import json
from collections.abc import Iterator

import pytest

from callsheet.config import HttpSettings
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
    """A server with small limits; no database is what these tests are about."""
    data = tmp_path_factory.mktemp("framing")
    with LiveServer(
        data / "callsheet.db", data, HttpSettings(header_bytes_max=HEADER_BYTES, body_timeout_seconds=600)
    ) as made:
        yield made


@pytest.fixture
def plain(small_limits_server: LiveServer) -> Iterator[RawConnection]:
    with RawConnection(small_limits_server.url) as made:
        yield made


def chunked(plain: RawConnection, key: str | None, coding: str = "chunked") -> bytes:
    return plain.head("POST", "/v1/jobs", key, content_type="application/json", transfer_encoding=coding)


TWICE = {
    "who asks": ("Authorization", "Bearer {viewer}", "Bearer {client}"),
    "who asks, once wrongly": ("authorization", "Bearer cs_garbage", "Bearer {client}"),
    "who asks, in the same words": ("Authorization", "Bearer {client}", "Bearer {client}"),
    "for whom": ("Callsheet-Tenant", "default", "other"),
    "which request this is": ("Idempotency-Key", "a", "b"),
    "what the body is": ("Content-Type", "text/plain", "application/json"),
    "how it is packed": ("Content-Encoding", "gzip", "identity"),
    "how long it is": ("Content-Length", str(len(JOB)), str(len(JOB))),
    "how it ends": ("Transfer-Encoding", "chunked", "chunked"),
    "where it goes": ("Host", "here", "there"),
    "where to go on": ("Last-Event-ID", "1", "2"),
}


@pytest.mark.parametrize("what", TWICE)
def test_a_header_that_is_there_twice_is_not_chosen_from(
    small_limits_server: LiveServer, plain: RawConnection, what: str
) -> None:
    """Whoever stands before us may have looked at the other one."""
    before = database_contents(small_limits_server)
    name, *values = TWICE[what]
    lines = ["POST /v1/jobs HTTP/1.1", *(f"{name}: {value.format_map(small_limits_server.keys)}" for value in values)]
    given = {"Host": "x", "Authorization": f"Bearer {small_limits_server.keys['client']}",
        "Content-Type": "application/json",
             "Content-Length": str(len(JOB))}  # fmt: skip
    lines += [f"{other}: {value}" for other, value in given.items() if other.lower() != name.lower()]
    plain.send("\r\n".join([*lines, "", ""]).encode() + JOB)
    read_response = plain.read_response()
    assert (read_response.status, read_response.json()["code"]) == (400, "invalid_request")
    assert plain.wait_closed()
    assert database_contents(small_limits_server) == before


def test_other_headers_may_come_twice(small_limits_server: LiveServer, plain: RawConnection) -> None:
    head = plain.head("GET", "/v1/me", small_limits_server.keys["client"], accept="a/b", via="1.1 here")
    plain.send(head[:-2] + b"Accept: c/d\r\nVia: 1.1 there\r\n\r\n")
    assert plain.read_response().status == 200


def test_a_header_behind_the_body_is_no_header(small_limits_server: LiveServer, plain: RawConnection) -> None:
    key = small_limits_server.keys["client"].encode()
    plain.send(chunked(plain, None) + CHUNK + END + b"Authorization: Bearer %b\r\n\r\n" % key)
    read_response = plain.read_response()
    assert (read_response.status, read_response.json()["code"]) == (401, "missing_key")
    plain.send_request("GET", "/v1/me", small_limits_server.keys["client"])
    assert plain.read_response().status == 200, "the next request is found where it begins"


def test_headers_behind_a_body_change_nothing_in_those_before_it(
    small_limits_server: LiveServer, plain: RawConnection
) -> None:
    plain.send(
        chunked(plain, small_limits_server.keys["client"]) + CHUNK + END + b"Idempotency-Key: \r\nExpires: 0\r\n\r\n"
    )
    assert plain.read_response().status == 201


@pytest.mark.parametrize("key", ["client", None])
@pytest.mark.parametrize("unit", [b"a: b\r\n", b"a: " + b"b" * 500 + b"\r\n", b"b"], ids=["many", "large", "one"])
def test_what_comes_behind_a_body_has_a_size(
    small_limits_server: LiveServer, plain: RawConnection, unit: bytes, key: str | None
) -> None:
    """It is held in memory for as long as it goes on, whoever sends it."""
    plain.send(chunked(plain, key and small_limits_server.keys[key]) + CHUNK + END + b"x: ")
    assert is_cut_off(plain, unit)


@pytest.mark.parametrize("key", ["client", None])
def test_what_is_said_about_a_part_of_a_body_has_a_size(
    small_limits_server: LiveServer, plain: RawConnection, key: str | None
) -> None:
    plain.send(chunked(plain, key and small_limits_server.keys[key]) + b"5;")
    assert is_cut_off(plain, b"a")


def is_cut_off(plain: RawConnection, unit: bytes) -> bool:
    """Send on and on, and say whether the connection ends long before its time."""
    try:
        for _ in range(1_000):
            plain.send(unit * (HEADER_BYTES // len(unit)))
        wait_until(plain.has_closed)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_a_body_in_small_parts_arrives(small_limits_server: LiveServer, plain: RawConnection, size: int) -> None:
    parts = [JOB[at : at + size] for at in range(0, len(JOB), size)]
    plain.send(chunked(plain, small_limits_server.keys["client"]))
    for part in parts:
        plain.send(b"%x;a=b\r\n%b\r\n" % (len(part), part))
    plain.send(b"0\r\n\r\n")
    assert plain.read_response().status == 201


@pytest.mark.parametrize("coding", ["gzip, chunked", "chunked, chunked", "identity", "xchunked", "chunked;q=1"])
def test_a_coding_that_we_do_not_know_is_not_guessed_at(
    small_limits_server: LiveServer, plain: RawConnection, coding: str
) -> None:
    plain.send(chunked(plain, small_limits_server.keys["client"], coding) + CHUNK + END + b"\r\n")
    assert plain.read_response().status == 400
    assert plain.wait_closed()
