"""The edge against slow, greedy and confused clients, byte by byte over sockets."""

import errno
import json
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from callsheet.config import HttpSettings
from callsheet.core.model import commands
from callsheet.http.listener.uvicorn_server import bind
from tests.support.http.raw_http import RawConnection
from tests.support.processes.live_server import TENANT, LiveServer
from tests.support.wait import wait_until

TIGHT = HttpSettings(
    header_timeout_seconds=0.3, body_timeout_seconds=0.3, idle_timeout_seconds=1, send_timeout_seconds=0.3,
    shutdown_timeout_seconds=5, header_bytes_max=8_192,
    url_bytes_max=2_048, body_bytes_max=65_536, bulk_body_bytes_max=131_072, heartbeat_seconds=0.1,
)  # fmt: skip
JOB = json.dumps({"workflow": "sketch", "user": "ann", "input": {"prompt": "a pier"}}).encode()


@pytest.fixture(scope="module")
def small_limits_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with tiny limits; no database is what these tests are about."""
    data = tmp_path_factory.mktemp("tight")
    with LiveServer(data / "callsheet.db", data, TIGHT, send_bytes=16_384) as made:
        yield made


@pytest.fixture
def plain(small_limits_server: LiveServer) -> Iterator[RawConnection]:
    with RawConnection(small_limits_server.url) as made:
        yield made


@pytest.fixture
def key(small_limits_server: LiveServer) -> str:
    return small_limits_server.keys["client"]


# -- time


@pytest.mark.parametrize("beginning", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"\r\n\r\n"])
def test_a_head_that_does_not_arrive_in_time_closes_the_connection(plain: RawConnection, beginning: bytes) -> None:
    plain.send(beginning)
    assert plain.wait_closed()


def test_a_second_head_has_the_same_time_as_the_first(plain: RawConnection) -> None:
    plain.send_request("GET", "/healthz")
    assert plain.read_response().status == 200
    plain.send(b"GET /healthz HT")
    assert plain.wait_closed()


def test_a_head_that_trickles_is_not_given_more_time(plain: RawConnection) -> None:
    plain.send(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
    bytes_sent = 0
    while not plain.is_readable_within(0.02):
        plain.send(b"y")
        bytes_sent += 1
    assert 0 < bytes_sent < 1_000
    assert plain.wait_closed()


def test_an_idle_connection_is_closed(plain: RawConnection) -> None:
    plain.send_request("GET", "/healthz")
    assert plain.read_response().status == 200
    assert plain.wait_closed()


def test_a_body_that_trickles_is_answered_408(plain: RawConnection, key: str) -> None:
    plain.send(plain.head("POST", "/v1/jobs", key, JOB) + JOB[:5])
    read_response = plain.read_response()
    assert (read_response.status, read_response.json()["code"], read_response.headers["connection"]) == (
        408,
        "body_timeout",
        "close",
    )
    assert plain.wait_closed()


def test_a_body_that_nobody_wants_is_not_awaited_for_ever(plain: RawConnection) -> None:
    plain.send(plain.head("POST", "/v1/jobs", None, b"", content_length="10000"))
    assert plain.read_response().status == 401
    bytes_sent = 0
    while not plain.is_readable_within(0.02) and bytes_sent < 1_000:
        plain.send(b" ")
        bytes_sent += 1
    assert bytes_sent < 1_000
    assert plain.wait_closed()


def test_a_reader_that_takes_nothing_is_dropped(small_limits_server: LiveServer, key: str) -> None:
    big = commands.Submit(tenant=TENANT, user="ann", workflow="sketch", input={}, metadata={"text": "y" * 15_000})
    assert all(isinstance(done, commands.SubmitResult) for done in small_limits_server.engine.execute_many([big] * 100))
    with RawConnection(small_limits_server.url, receive_bytes=4_096) as reader:
        reader.send_request("GET", "/v1/jobs?limit=100", key)
        assert b"200 OK" in reader.read_until(b"\r\n")
        wait_until(lambda: not small_limits_server.connections)
        with pytest.raises((EOFError, ConnectionError)):
            reader.read_until(b'"next"')


# -- size


def test_headers_that_are_too_large_are_answered_431(plain: RawConnection) -> None:
    plain.send_request("GET", "/healthz", x_big="y" * 9_000)
    read_response = plain.read_response()
    assert (read_response.status, read_response.json()["code"]) == (431, "headers_too_large")
    assert set(read_response.json()) == {"code", "message", "status", "request_id"}
    assert read_response.headers["content-type"] == "application/problem+json"
    assert plain.wait_closed()


def test_a_header_without_end_is_cut_off(plain: RawConnection) -> None:
    plain.send(b"GET /healthz HTTP/1.1\r\nX-Big: ")
    with suppress(ConnectionError):
        for _ in range(64):
            plain.send(b"y" * 1_024)
    assert plain.read_response().status == 431


def test_many_small_headers_count_together(plain: RawConnection) -> None:
    plain.send_request("GET", "/healthz", None, None, **{f"x_{number}": "y" for number in range(2_000)})
    assert plain.read_response().status == 431


def test_headers_just_below_the_limit_pass(plain: RawConnection) -> None:
    plain.send_request("GET", "/healthz", x_big="y" * 8_000)
    assert plain.read_response().status == 200


def test_a_long_target_is_answered_414(plain: RawConnection) -> None:
    plain.send_request("GET", "/v1/jobs/" + "x" * 8_192)
    read_response = plain.read_response()
    assert (read_response.status, read_response.json()["code"]) == (414, "target_too_long")
    assert plain.wait_closed()


def test_a_body_that_is_announced_too_large_is_refused_before_it_is_read(plain: RawConnection, key: str) -> None:
    plain.send(plain.head("POST", "/v1/jobs", key, b"", content_length=str(10**12)))
    read_response = plain.read_response()
    assert (read_response.status, read_response.json()["code"], read_response.headers["connection"]) == (
        413,
        "body_too_large",
        "close",
    )


def test_a_client_that_sends_a_large_body_all_the_same_can_read_why(small_limits_server: LiveServer, key: str) -> None:
    for _ in range(20):
        with RawConnection(small_limits_server.url) as plain:
            plain.send_request("POST", "/v1/jobs", key, b"x" * 4_000_000)
            assert plain.read_response().status == 413
            assert plain.wait_closed()


def test_a_chunked_body_is_cut_at_the_limit(plain: RawConnection, key: str) -> None:
    plain.send(plain.head("POST", "/v1/jobs", key, content_type="application/json", transfer_encoding="chunked"))
    with suppress(ConnectionError):
        for _ in range(2_000):
            plain.send(b"1000\r\n" + b" " * 4_096 + b"\r\n")
    read_response = plain.read_response()
    assert (read_response.status, read_response.headers["connection"]) == (413, "close")
    assert plain.wait_closed()


def test_a_bulk_may_be_larger_than_a_job(small_limits_server: LiveServer) -> None:
    client = small_limits_server.client("client")
    body = json.dumps({"jobs": [json.loads(JOB)]}).encode()
    within, beyond = body.ljust(100_000), body.ljust(140_000)
    answers = {
        (path, len(sent)): client.post(path, content=sent, headers={"content-type": "application/json"}).status_code
        for path in ("/v1/jobs", "/v1/jobs/bulk")
        for sent in (within, beyond)
    }
    assert list(answers.values()) == [413, 413, 200, 413]


# -- order


def test_pipelined_requests_are_answered_in_their_order(plain: RawConnection, key: str) -> None:
    one = plain.head("GET", "/healthz", x_request_id="one")
    two = plain.head("GET", "/v1/me", key, x_request_id="two")
    plain.send(one + two + plain.head("GET", "/nowhere", x_request_id="three"))
    replies = [plain.read_response() for _ in range(3)]
    assert [read_response.headers["x-request-id"] for read_response in replies] == ["one", "two", "three"]
    assert [read_response.status for read_response in replies] == [200, 200, 404]


def test_a_flood_of_pipelined_requests_is_cut_off(plain: RawConnection, key: str) -> None:
    head = plain.head("GET", "/v1/me", key)
    with suppress(ConnectionError):
        plain.send(head * 2_000)
    answered = 0
    with suppress(EOFError, ConnectionError):
        while True:
            plain.read_response()
            answered += 1
    assert answered < 2_000


def test_a_stream_with_a_request_behind_it_is_forgotten_when_its_client_leaves(
    small_limits_server: LiveServer, key: str, capfd: pytest.CaptureFixture[str]
) -> None:
    broadcaster = small_limits_server.callsheet.state.broadcaster
    with RawConnection(small_limits_server.url) as plain:
        plain.send_request("GET", "/v1/events?cursor=now", key, accept="text/event-stream")
        plain.read_until(b"retry: 1000\n\n")
        plain.send(plain.head("GET", "/healthz"))
        plain.read_until(b": alive")
        assert broadcaster.count == 1
    wait_until(lambda: broadcaster.count == 0)
    assert capfd.readouterr().err == ""


def test_an_unread_body_does_not_become_the_next_request(plain: RawConnection, key: str) -> None:
    smuggled = plain.head("GET", "/v1/me", key)
    plain.send(plain.head("POST", "/v1/jobs", None, smuggled))
    refused = plain.read_response()
    plain.send(smuggled)
    plain.send_request("GET", "/healthz", x_request_id="next")
    answer = plain.read_response()
    assert (refused.status, answer.status, answer.headers["x-request-id"]) == (401, 200, "next")


@pytest.mark.parametrize(("target", "body", "status"), [
    ("/v1/jobs", b"{", 400), ("/v1/jobs", b'{"workflow": 1}', 422), ("/v1/nothing", JOB, 404), ("/v1/me", JOB, 405),
])  # fmt: skip
def test_the_connection_lives_on_after_an_error(
    plain: RawConnection, key: str, target: str, body: bytes, status: int
) -> None:
    plain.send_request("POST", target, key, body)
    assert plain.read_response().status == status
    plain.send_request("GET", "/v1/me", key)
    assert plain.read_response().json()["role"] == "client"


def test_a_refusal_without_100_continue_ends_the_connection(plain: RawConnection) -> None:
    # Whether the client sends the body all the same, or its next request, nobody could tell.
    plain.send(plain.head("POST", "/v1/jobs", None, JOB, expect="100-continue"))
    assert plain.read_response().status == 401
    with suppress(ConnectionError):
        plain.send(plain.head("GET", "/healthz") * 3)
    assert plain.wait_closed()


def test_a_body_is_asked_for_with_100_continue(plain: RawConnection, key: str) -> None:
    plain.send(plain.head("POST", "/v1/jobs", key, JOB, expect="100-continue"))
    assert plain.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    plain.send(JOB)
    assert plain.read_response().status == 201


def test_an_upgrade_is_declined_and_ends_the_connection(plain: RawConnection) -> None:
    plain.send_request("GET", "/healthz", connection="Upgrade", upgrade="websocket")
    read_response = plain.read_response()
    assert (read_response.status, read_response.headers["connection"]) == (200, "close")
    assert plain.wait_closed()


@pytest.mark.parametrize("head", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n",
    b"GET /h\xe9 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://elsewhere HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
    b"POST /v1/jobs HTTP/1.1\r\nContent-Length: -4\r\n\r\nabcd",
    b"POST /v1/jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /healthz HTTP/1.1\r\nX-Null: a\x00b\r\n\r\n",
])  # fmt: skip
def test_what_is_not_http_is_answered_400_and_closed(plain: RawConnection, head: bytes) -> None:
    plain.send(head)
    read_response = plain.read_response()
    assert read_response.status in {400, 401}
    assert read_response.headers["content-type"] == "application/problem+json"
    assert plain.wait_closed()


def test_garbage_behind_a_request_does_not_get_into_its_answer(plain: RawConnection, key: str) -> None:
    plain.send(plain.head("GET", "/v1/events?cursor=now", key, accept="text/event-stream"))
    plain.read_until(b"retry: 1000\n\n")
    plain.send(b"\x00\x01\x02garbage\r\n\r\n")
    with pytest.raises((EOFError, ConnectionError)):
        plain.read_until(b"HTTP/1.1 400")


# -- HEAD


@pytest.mark.parametrize("target", ["/healthz", "/v1/me", "/v1/jobs", "/v1/events"])
def test_head_has_the_headers_of_get_and_no_body(plain: RawConnection, key: str, target: str) -> None:
    plain.send_request("HEAD", target, key)
    head = plain.read_response(without_body=True)
    plain.send_request("GET", target, key)
    got = plain.read_response()
    assert (head.status, head.headers["content-type"]) == (got.status, got.headers["content-type"])
    assert head.headers["content-length"] == got.headers["content-length"]


def test_head_of_a_stream_ends(small_limits_server: LiveServer, plain: RawConnection, key: str) -> None:
    job = small_limits_server.submit()
    for target in ("/v1/events", f"/v1/jobs/{job['id']}/events"):
        plain.send_request("HEAD", target, key, accept="text/event-stream")
        read_response = plain.read_response(without_body=True)
        assert (read_response.status, read_response.headers["content-type"]) == (
            200,
            "text/event-stream; charset=utf-8",
        )
    plain.send_request("GET", "/healthz")
    assert plain.read_response().status == 200


def test_an_answer_without_a_body_says_no_length(
    small_limits_server: LiveServer, plain: RawConnection, key: str
) -> None:
    job = small_limits_server.submit()
    plain.send_request("GET", f"/v1/jobs/{job['id']}", key)
    tag = plain.read_response().headers["etag"]
    plain.send_request("GET", f"/v1/jobs/{job['id']}", key, if_none_match=tag)
    read_response = plain.read_response()
    assert (read_response.status, "content-length" in read_response.headers) == (304, False)
    plain.send_request("GET", "/healthz")
    assert plain.read_response().status == 200


# -- starting and stopping


def test_a_taken_port_is_said_in_one_sentence() -> None:
    taken = bind("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with pytest.raises(OSError, match="is in use by another program") as caught:
        bind("127.0.0.1", port)
    taken.close()
    assert (caught.value.errno, caught.value.strerror) == (
        errno.EADDRINUSE, f"Port {port} on 127.0.0.1 is in use by another program: choose another port.",
    )  # fmt: skip


@pytest.mark.parametrize(("host", "port", "sentence"), [
    ("192.0.2.1", 0, "192.0.2.1 is not an address of this machine"), ("no such host", 0, "is not an address"),
    ("127.0.0.1", 70_000, "70000 is not a port"),
])  # fmt: skip
def test_an_address_that_cannot_be_is_said_in_one_sentence(host: str, port: int, sentence: str) -> None:
    with pytest.raises(OSError, match=sentence):
        bind(host, port)


def speaks_ipv6() -> bool:
    """Say whether this machine has a loopback of the sixth version: not every one has."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["::1", "[::1]", "localhost", "127.0.0.1"])
def test_addresses_of_both_families_can_be_bound(host: str) -> None:
    if ":" in host and not speaks_ipv6():
        with pytest.raises(OSError, match="is not an address of this machine"):
            bind(host, 0)
        return
    bound = bind(host, 0)
    assert bound.getsockname()[1] > 0
    with socket.create_connection(bound.getsockname()[:2], timeout=5):
        pass
    bound.close()
