"""Slow, oversized and malformed requests over raw sockets: timeouts, limits, pipelining and HEAD."""

import errno
import json
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from callsheet.core.model import commands
from callsheet.http.listener.uvicorn_server import bind
from callsheet.settings import HttpSettings
from tests.support.http.raw_http import RawConnection
from tests.support.processes.live_server import TENANT, LiveServer
from tests.support.wait import wait_until

SMALL_LIMITS = HttpSettings(
    header_timeout_seconds=0.3, body_timeout_seconds=0.3, idle_timeout_seconds=1, send_timeout_seconds=0.3,
    shutdown_timeout_seconds=5, header_bytes_max=8_192,
    url_bytes_max=2_048, body_bytes_max=65_536, bulk_body_bytes_max=131_072, heartbeat_seconds=0.1,
)  # fmt: skip
JOB = json.dumps({"workflow": "sketch", "user": "ann", "input": {"prompt": "a pier"}}).encode()


@pytest.fixture(scope="module")
def small_limits_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with small limits, on SQLite."""
    data = tmp_path_factory.mktemp("small_limits")
    with LiveServer(data / "callsheet.db", data, SMALL_LIMITS, send_bytes=16_384) as made:
        yield made


@pytest.fixture
def connection(small_limits_server: LiveServer) -> Iterator[RawConnection]:
    with RawConnection(small_limits_server.url) as made:
        yield made


@pytest.fixture
def key(small_limits_server: LiveServer) -> str:
    return small_limits_server.keys["client"]


# -- time


@pytest.mark.parametrize("beginning", [
    b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"\r\n\r\n"
])  # fmt: skip
def test_a_request_head_that_does_not_arrive_in_time_closes_the_connection(
    connection: RawConnection, beginning: bytes
) -> None:
    connection.send(beginning)
    assert connection.wait_closed()


def test_a_second_request_head_has_the_same_timeout(connection: RawConnection) -> None:
    connection.send_request("GET", "/healthz")
    assert connection.read_response().status == 200
    connection.send(b"GET /healthz HT")
    assert connection.wait_closed()


def test_a_slow_request_head_does_not_extend_its_timeout(connection: RawConnection) -> None:
    connection.send(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
    bytes_sent = 0
    while not connection.is_readable_within(0.02) and bytes_sent < 1_000:
        connection.send(b"y")
        bytes_sent += 1
    assert 0 < bytes_sent < 1_000
    assert connection.wait_closed()


def test_an_idle_connection_is_closed(connection: RawConnection) -> None:
    connection.send_request("GET", "/healthz")
    assert connection.read_response().status == 200
    assert connection.wait_closed()


def test_a_slow_body_answers_408(connection: RawConnection, key: str) -> None:
    connection.send(connection.head("POST", "/v1/jobs", key, JOB) + JOB[:5])
    response = connection.read_response()
    assert (response.status, response.json()["code"], response.headers["connection"]) == (
        408,
        "body_timeout",
        "close",
    )
    assert connection.wait_closed()


def test_the_body_of_a_refused_request_is_not_awaited_forever(connection: RawConnection) -> None:
    connection.send(connection.head("POST", "/v1/jobs", None, b"", content_length="10000"))
    assert connection.read_response().status == 401
    bytes_sent = 0
    while not connection.is_readable_within(0.02) and bytes_sent < 1_000:
        connection.send(b" ")
        bytes_sent += 1
    assert bytes_sent < 1_000
    assert connection.wait_closed()


def test_a_client_that_reads_nothing_is_disconnected(small_limits_server: LiveServer, key: str) -> None:
    big = commands.Submit(tenant=TENANT, user="ann", workflow="sketch", input={}, metadata={"text": "y" * 15_000})
    assert all(isinstance(done, commands.SubmitResult) for done in small_limits_server.engine.execute_many([big] * 100))
    with RawConnection(small_limits_server.url, receive_bytes=4_096) as reader:
        reader.send_request("GET", "/v1/jobs?limit=100", key)
        assert b"200 OK" in reader.read_until(b"\r\n")
        wait_until(lambda: not small_limits_server.connections)
        with pytest.raises((EOFError, ConnectionError)):
            reader.read_until(b'"next"')


# -- size


def test_headers_above_the_limit_answer_431(connection: RawConnection) -> None:
    connection.send_request("GET", "/healthz", x_big="y" * 9_000)
    response = connection.read_response()
    assert (response.status, response.json()["code"]) == (431, "headers_too_large")
    assert set(response.json()) == {"code", "message", "status", "request_id"}
    assert response.headers["content-type"] == "application/problem+json"
    assert connection.wait_closed()


def test_an_endless_header_answers_431(connection: RawConnection) -> None:
    connection.send(b"GET /healthz HTTP/1.1\r\nX-Big: ")
    with suppress(ConnectionError):
        for _ in range(64):
            connection.send(b"y" * 1_024)
    assert connection.read_response().status == 431


def test_many_small_headers_are_counted_together(connection: RawConnection) -> None:
    connection.send_request("GET", "/healthz", None, None, **{f"x_{number}": "y" for number in range(2_000)})
    assert connection.read_response().status == 431


@pytest.mark.parametrize(("count", "status"), [(100, 200), (101, 431)])
def test_the_number_of_headers_is_limited(connection: RawConnection, count: int, status: int) -> None:
    headers = {f"x_{number}": "y" for number in range(count - 1)}  # and Host
    connection.send_request("GET", "/healthz", None, None, **headers)
    assert connection.read_response().status == status


def test_headers_just_below_the_limit_are_accepted(connection: RawConnection) -> None:
    connection.send_request("GET", "/healthz", x_big="y" * 8_000)
    assert connection.read_response().status == 200


def test_a_long_url_answers_414(connection: RawConnection) -> None:
    connection.send_request("GET", "/v1/jobs/" + "x" * 8_192)
    response = connection.read_response()
    assert (response.status, response.json()["code"]) == (414, "target_too_long")
    assert connection.wait_closed()


def test_a_content_length_above_the_limit_is_refused_before_the_body_is_read(
    connection: RawConnection, key: str
) -> None:
    connection.send(connection.head("POST", "/v1/jobs", key, b"", content_length=str(10**12)))
    response = connection.read_response()
    assert (response.status, response.json()["code"], response.headers["connection"]) == (
        413,
        "body_too_large",
        "close",
    )


def test_a_client_that_sends_a_body_above_the_limit_receives_the_error(
    small_limits_server: LiveServer, key: str
) -> None:
    for _ in range(20):
        with RawConnection(small_limits_server.url) as connection:
            connection.send_request("POST", "/v1/jobs", key, b"x" * 4_000_000)
            assert connection.read_response().status == 413
            assert connection.wait_closed()


def test_a_chunked_body_above_the_limit_is_refused(connection: RawConnection, key: str) -> None:
    connection.send(
        connection.head("POST", "/v1/jobs", key, content_type="application/json", transfer_encoding="chunked")
    )
    with suppress(ConnectionError):
        for _ in range(2_000):
            connection.send(b"1000\r\n" + b" " * 4_096 + b"\r\n")
    response = connection.read_response()
    assert (response.status, response.headers["connection"]) == (413, "close")
    assert connection.wait_closed()


def test_a_bulk_submit_may_be_larger_than_a_submit(small_limits_server: LiveServer) -> None:
    client = small_limits_server.client("client")
    body = json.dumps({"jobs": [json.loads(JOB)]}).encode()
    within, beyond = body.ljust(100_000), body.ljust(140_000)
    answers = {
        (path, len(sent)): client.post(path, content=sent, headers={"content-type": "application/json"}).status_code
        for path in ("/v1/jobs", "/v1/jobs/bulk")
        for sent in (within, beyond)
    }
    assert list(answers.values()) == [413, 413, 200, 413]


# -- pipelining


def test_pipelined_requests_are_answered_in_order(connection: RawConnection, key: str) -> None:
    one = connection.head("GET", "/healthz", x_request_id="one")
    two = connection.head("GET", "/v1/me", key, x_request_id="two")
    connection.send(one + two + connection.head("GET", "/nowhere", x_request_id="three"))
    replies = [connection.read_response() for _ in range(3)]
    assert [response.headers["x-request-id"] for response in replies] == ["one", "two", "three"]
    assert [response.status for response in replies] == [200, 200, 404]


def test_too_many_pipelined_requests_close_the_connection(connection: RawConnection, key: str) -> None:
    head = connection.head("GET", "/v1/me", key)
    with suppress(ConnectionError):
        connection.send(head * 2_000)
    answered = 0
    with suppress(EOFError, ConnectionError):
        while True:
            connection.read_response()
            answered += 1
    assert answered < 2_000


def test_a_stream_with_a_pipelined_request_ends_when_its_client_disconnects(
    small_limits_server: LiveServer, key: str, capfd: pytest.CaptureFixture[str]
) -> None:
    broadcaster = small_limits_server.callsheet.state.broadcaster
    with RawConnection(small_limits_server.url) as connection:
        connection.send_request("GET", "/v1/events?cursor=now", key, accept="text/event-stream")
        connection.read_until(b"retry: 1000\n\n")
        connection.send(connection.head("GET", "/healthz"))
        connection.read_until(b": alive")
        assert broadcaster.count == 1
    wait_until(lambda: broadcaster.count == 0)
    assert capfd.readouterr().err == ""


def test_an_unread_body_does_not_become_the_next_request(connection: RawConnection, key: str) -> None:
    smuggled = connection.head("GET", "/v1/me", key)
    connection.send(connection.head("POST", "/v1/jobs", None, smuggled))
    refused = connection.read_response()
    connection.send(smuggled)
    connection.send_request("GET", "/healthz", x_request_id="next")
    answer = connection.read_response()
    assert (refused.status, answer.status, answer.headers["x-request-id"]) == (401, 200, "next")


@pytest.mark.parametrize(("target", "body", "status"), [
    ("/v1/jobs", b"{", 400), ("/v1/jobs", b'{"workflow": 1}', 422), ("/v1/nothing", JOB, 404), ("/v1/me", JOB, 405),
])  # fmt: skip
def test_the_connection_stays_open_after_an_error(
    connection: RawConnection, key: str, target: str, body: bytes, status: int
) -> None:
    connection.send_request("POST", target, key, body)
    assert connection.read_response().status == status
    connection.send_request("GET", "/v1/me", key)
    assert connection.read_response().json()["role"] == "client"


def test_a_refusal_without_100_continue_closes_the_connection(connection: RawConnection) -> None:
    # The server cannot know whether the client sends the body or its next request.
    connection.send(connection.head("POST", "/v1/jobs", None, JOB, expect="100-continue"))
    assert connection.read_response().status == 401
    with suppress(ConnectionError):
        connection.send(connection.head("GET", "/healthz") * 3)
    assert connection.wait_closed()


def test_an_accepted_request_gets_100_continue(connection: RawConnection, key: str) -> None:
    connection.send(connection.head("POST", "/v1/jobs", key, JOB, expect="100-continue"))
    assert connection.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.send(JOB)
    assert connection.read_response().status == 201


def test_an_upgrade_is_ignored_and_closes_the_connection(connection: RawConnection) -> None:
    connection.send_request("GET", "/healthz", connection="Upgrade", upgrade="websocket")
    response = connection.read_response()
    assert (response.status, response.headers["connection"]) == (200, "close")
    assert connection.wait_closed()


@pytest.mark.parametrize("head", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n",
    b"GET /h\xe9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
    b"POST /v1/jobs HTTP/1.1\r\nContent-Length: -4\r\n\r\nabcd",
    b"POST /v1/jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /healthz HTTP/1.1\r\nX-Null: a\x00b\r\n\r\n",
    b"GET /healthz HTTP/2.0\r\nHost: localhost\r\n\r\n",
    b"POST /v1/jobs HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Folded: a\r\n b\r\n\r\n",
    b"GET /healthz HTTP/1.1\nHost: localhost\n\n",
])  # fmt: skip
def test_malformed_http_answers_400_and_closes_the_connection(connection: RawConnection, head: bytes) -> None:
    connection.send(head)
    response = connection.read_response()
    assert (response.status, response.json()["code"]) == (400, "invalid_request")
    assert response.headers["content-type"] == "application/problem+json"
    assert connection.wait_closed()


def test_garbage_after_a_request_does_not_affect_its_response(connection: RawConnection, key: str) -> None:
    connection.send(connection.head("GET", "/v1/events?cursor=now", key, accept="text/event-stream"))
    connection.read_until(b"retry: 1000\n\n")
    connection.send(b"\x00\x01\x02garbage\r\n\r\n")
    with pytest.raises((EOFError, ConnectionError)):
        connection.read_until(b"HTTP/1.1 400")


# -- HEAD


@pytest.mark.parametrize("target", ["/healthz", "/v1/me", "/v1/jobs", "/v1/events"])
def test_head_has_the_headers_of_get_and_no_body(connection: RawConnection, key: str, target: str) -> None:
    connection.send_request("HEAD", target, key)
    head = connection.read_response(without_body=True)
    connection.send_request("GET", target, key)
    got = connection.read_response()
    assert (head.status, head.headers["content-type"]) == (got.status, got.headers["content-type"])
    assert head.headers["content-length"] == got.headers["content-length"]


def test_head_of_a_stream_has_no_body(small_limits_server: LiveServer, connection: RawConnection, key: str) -> None:
    job = small_limits_server.submit()
    for target in ("/v1/events", f"/v1/jobs/{job['id']}/events"):
        connection.send_request("HEAD", target, key, accept="text/event-stream")
        response = connection.read_response(without_body=True)
        assert (response.status, response.headers["content-type"]) == (
            200,
            "text/event-stream; charset=utf-8",
        )
    connection.send_request("GET", "/healthz")
    assert connection.read_response().status == 200


def test_a_304_response_has_no_content_length(
    small_limits_server: LiveServer, connection: RawConnection, key: str
) -> None:
    job = small_limits_server.submit()
    connection.send_request("GET", f"/v1/jobs/{job['id']}", key)
    tag = connection.read_response().headers["etag"]
    connection.send_request("GET", f"/v1/jobs/{job['id']}", key, if_none_match=tag)
    response = connection.read_response()
    assert (response.status, "content-length" in response.headers) == (304, False)
    connection.send_request("GET", "/healthz")
    assert connection.read_response().status == 200


# -- bind


def test_a_port_in_use_is_reported_in_one_sentence() -> None:
    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    with pytest.raises(OSError, match="is in use by another program") as caught:
        bind("127.0.0.1", port)
    bound.close()
    assert (caught.value.errno, caught.value.strerror) == (
        errno.EADDRINUSE, f"Port {port} on 127.0.0.1 is in use by another program: choose another port.",
    )  # fmt: skip


@pytest.mark.parametrize(("host", "port", "sentence"), [
    ("192.0.2.1", 0, "192.0.2.1 is not an address of this machine"), ("no such host", 0, "is not an address"),
    ("127.0.0.1", 70_000, "70000 is not a port"),
])  # fmt: skip
def test_an_invalid_host_or_port_is_reported_in_one_sentence(host: str, port: int, sentence: str) -> None:
    with pytest.raises(OSError, match=sentence):
        bind(host, port)


def has_ipv6() -> bool:
    """Return whether this machine has an IPv6 loopback address."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["::1", "[::1]", "localhost", "127.0.0.1"])
def test_ipv4_and_ipv6_addresses_can_be_bound(host: str) -> None:
    if ":" in host and not has_ipv6():
        with pytest.raises(OSError, match="is not an address of this machine"):
            bind(host, 0)
        return
    bound = bind(host, 0)
    assert bound.getsockname()[1] > 0
    with socket.create_connection(bound.getsockname()[:2], timeout=5):
        pass
    bound.close()
