"""More connections than a server can have open: attackers are refused, health checks and other clients are served."""

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.http.raw_http import RawConnection, RawResponse
from tests.support.processes.cli_process import ServerProcess
from tests.support.wait import wait_until

STREAM = "text/event-stream"
FILES = "-n 256"
SERVED_MAX = 128
"""How many connections a server with this limit of open files serves."""
PER_ADDRESS_MAX = 40
CLIENT = "127.0.0.99"
HEALTH_PATHS = ("/healthz", "/readyz", "/metrics")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def limited_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with few open files, which limits connections per loopback address."""
    config = tmp_path / "callsheet.toml"
    config.write_text(f"[http]\nproxy_addresses = []\nconnections_per_address_max = {PER_ADDRESS_MAX}\n")
    with ServerProcess(
        tmp_path / "data", "--no-demo-workflows", "--config", config, "--health-port", 0, ulimit_options=FILES
    ) as server:
        yield server


@pytest.fixture
def default_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with few open files and default settings, which do not limit loopback addresses."""
    with ServerProcess(tmp_path / "data", "--no-demo-workflows", ulimit_options=FILES) as server:
        yield server


def open_stream(server: ServerProcess, stack: ExitStack, source_address: str = "") -> int | None:
    """Open a stream and leave it open. Return the status, or None without a response."""
    try:
        reader = stack.enter_context(RawConnection(server.url, source_address=source_address))
        reader.send_request("GET", "/v1/events?cursor=now", server.key, accept=STREAM)
        return int(reader.read_until(b"\r\n").split()[1])
    except (OSError, EOFError):
        return None


def get(server: ServerProcess, path: str, source_address: str = CLIENT, url: str | None = None) -> RawResponse:
    """Send a request on a connection of its own."""
    with RawConnection(url or server.url, source_address=source_address) as connection:
        connection.send_request("GET", path, server.key)
        return connection.read_response()


def hold_connection(server: ServerProcess, stack: ExitStack, source_address: str, data: bytes = b"") -> None:
    """Connect without a complete request, and never close."""
    stack.enter_context(RawConnection(server.url, source_address=source_address)).send(data)


def hold_used_connection(server: ServerProcess, stack: ExitStack, address: str) -> None:
    """Hold a connection that the server has counted for certain: connections are not opened in their order."""
    connection = stack.enter_context(RawConnection(server.url, source_address=address))
    connection.send_request("GET", "/healthz")
    assert connection.read_response().status == 200


def connect_at_once(server: ServerProcess, stack: ExitStack, count: int) -> None:
    """Start connections without waiting for any of them."""
    parts = urlsplit(server.url)
    for _ in range(count):
        connection = stack.enter_context(socket.socket())
        connection.setblocking(False)
        connection.connect_ex((str(parts.hostname), parts.port))


def test_the_soft_limit_of_open_files_does_not_limit_streams(tmp_path: Path, stack: ExitStack) -> None:
    """The server raises the soft limit, 1,024 in most shells, to the hard limit."""
    with ServerProcess(tmp_path / "data", "--no-demo-workflows", ulimit_options="-Sn 160") as server:
        assert Counter(open_stream(server, stack) for _ in range(200)) == {200: 200}


def test_connections_over_the_hard_limit_get_503_and_health_checks_are_still_served(
    default_server: ServerProcess,
) -> None:
    with ExitStack() as many:
        seen = Counter(open_stream(default_server, many) for _ in range(230))
        assert seen == {200: SERVED_MAX, 503: 230 - SERVED_MAX}
        assert [get(default_server, path).status for path in HEALTH_PATHS] == [200, 200, 200]
        refused = get(default_server, "/v1/me")
        assert (refused.status, refused.json()["code"], refused.headers["retry-after"]) == (503, "unavailable", "1")
    with default_server.client() as client:
        assert client.identity.get().role == "operator"


@pytest.mark.parametrize("beginning", [b"", b"GET /v1/me HTTP/1.1\r\nHost: local"])
def test_connections_without_a_request_do_not_shut_out_others(
    default_server: ServerProcess, stack: ExitStack, beginning: bytes
) -> None:
    for _ in range(10):
        for _ in range(50):
            hold_connection(default_server, stack, "127.0.0.1", beginning)
        assert [get(default_server, path).status for path in (*HEALTH_PATHS, "/v1/me")] == [200, 200, 200, 200]


def test_idle_connections_are_closed_for_new_ones_but_running_requests_are_not(
    default_server: ServerProcess, stack: ExitStack
) -> None:
    with RawConnection(default_server.url) as running:
        running.send_request("GET", "/v1/events?cursor=now", default_server.key, accept=STREAM)
        running.read_until(b"retry: 1000\n\n")
        idle = stack.enter_context(RawConnection(default_server.url))
        idle.send_request("GET", "/healthz")
        assert idle.read_response().status == 200
        for _ in range(2 * SERVED_MAX):
            hold_connection(default_server, stack, "127.0.0.2")
        assert get(default_server, "/healthz").status == 200, "the server has accepted the connections before"
        assert not idle.has_closed(), "connections that have sent nothing are closed first"
        assert Counter(open_stream(default_server, stack) for _ in range(SERVED_MAX - 1)) == {200: SERVED_MAX - 1}
        assert idle.wait_closed()
        assert not running.has_closed()


def test_more_simultaneous_connections_than_open_files_do_not_stop_the_server(
    default_server: ServerProcess, stack: ExitStack
) -> None:
    connect_at_once(default_server, stack, 1_000)
    assert [get(default_server, path).status for path in (*HEALTH_PATHS, "/v1/me")] == [200, 200, 200, 200]


def test_an_address_over_its_limit_gets_429_at_once_and_other_addresses_are_served(
    limited_server: ServerProcess, stack: ExitStack
) -> None:
    attacker = "127.0.0.2"
    for _ in range(PER_ADDRESS_MAX):
        hold_used_connection(limited_server, stack, attacker)
    for _ in range(200):
        with RawConnection(limited_server.url, source_address=attacker) as connection:
            refused = connection.read_response()
            assert (refused.status, refused.json()["code"]) == (429, "too_many_connections")
            assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
    assert get(limited_server, "/v1/me", attacker).status == 429
    assert [get(limited_server, path).status for path in (*HEALTH_PATHS, "/v1/me")] == [200, 200, 200, 200]
    health_url = limited_server.banner["health_url"]
    assert get(limited_server, "/healthz", attacker, health_url).status == 200, "the health port has no such limit"


def test_an_address_is_served_again_when_it_has_closed_a_connection(limited_server: ServerProcess) -> None:
    with ExitStack() as held:
        for _ in range(PER_ADDRESS_MAX):
            hold_used_connection(limited_server, held, CLIENT)
        assert get(limited_server, "/v1/me").status == 429
    wait_until(lambda: get(limited_server, "/v1/me").status == 200)


def test_idle_connections_of_many_addresses_do_not_shut_out_others(
    limited_server: ServerProcess, stack: ExitStack
) -> None:
    for number in range(2, 22):
        for _ in range(PER_ADDRESS_MAX):
            hold_connection(limited_server, stack, f"127.0.0.{number}")
        assert [get(limited_server, path).status for path in (*HEALTH_PATHS, "/v1/me")] == [200, 200, 200, 200]


def test_the_health_port_serves_health_checks_and_nothing_else(limited_server: ServerProcess, stack: ExitStack) -> None:
    health_url = limited_server.banner["health_url"]
    for number in range(2, 6):
        for _ in range(PER_ADDRESS_MAX):
            open_stream(limited_server, stack, f"127.0.0.{number}")
    assert get(limited_server, "/v1/me").status == 503, "all connections are in use"
    assert [get(limited_server, path, url=health_url).status for path in HEALTH_PATHS] == [200, 200, 200]
    other = get(limited_server, "/v1/me", url=health_url)
    assert (other.status, other.headers["content-type"]) == (503, "application/problem+json")
    stack.close()
    wait_until(lambda: get(limited_server, "/v1/me").status == 200)
    assert get(limited_server, "/v1/me", url=health_url).json()["code"] == "route_not_found"
