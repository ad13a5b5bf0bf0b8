"""The Host header over a real socket: required, valid, and a name of this server (DNS rebinding)."""

from collections.abc import Iterator

import pytest

from callsheet.http.listener.host_check import HostCheck, parse_allowed_host
from callsheet.http.native_api import health_api
from callsheet.http.server.mounted_api import Api
from callsheet.settings import HttpSettings
from tests.support.http.raw_http import RawConnection, RawResponse
from tests.support.processes.live_server import LiveServer

PROXY_HOST = "callsheet.example"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server behind a proxy with a public name, with an API on its own port."""
    data = tmp_path_factory.mktemp("hosts")
    api = Api("", health_api().routes, health_api().authenticate, port=0)
    with LiveServer(data / "callsheet.db", data, HttpSettings(allowed_hosts=(PROXY_HOST,)), apis=[api]) as made:
        yield made


def send(url: str, *headers: bytes, target: bytes = b"/healthz", version: bytes = b"1.1") -> RawResponse:
    with RawConnection(url) as connection:
        connection.send(b"\r\n".join([b"GET %b HTTP/%b" % (target, version), *headers, b"", b""]))
        return connection.read_response()


@pytest.mark.parametrize("host", [
    "127.0.0.1", "127.0.0.1:8787", "127.8.9.10:80", "localhost", "LOCALHOST:8787", "localhost.:1", "[::1]:8787",
    "localhost \t", PROXY_HOST, "Callsheet.Example:443",
])  # fmt: skip
def test_names_of_this_machine_and_allowed_hosts_are_accepted(server: LiveServer, host: str) -> None:
    assert send(server.url, b"Host: " + host.encode()).status == 200


@pytest.mark.parametrize("host", [
    "evil.example", "evil.example:8787", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]",
    "sub.callsheet.example", "2130706433", "0x7f.1", "x" * 300,
])  # fmt: skip
def test_a_foreign_host_is_refused_on_a_loopback_address(server: LiveServer, host: str) -> None:
    response = send(server.url, b"Host: " + host.encode())
    assert (response.status, response.json()["code"]) == (421, "host_not_allowed")
    assert "allowed_hosts" in response.json()["message"]
    assert len(response.json()["message"]) < 300
    assert response.headers["connection"] == "close"


@pytest.mark.parametrize("target", [b"/v1/me", b"/docs", b"/openapi.json", b"/nowhere"])
def test_a_foreign_host_is_refused_on_every_path_and_port(server: LiveServer, target: bytes) -> None:
    urls = [server.url, *(f"http://127.0.0.1:{port}" for port in server.api_ports)]
    assert [send(url, b"Host: evil.example", target=target).status for url in urls] == [421, 421]


def test_a_foreign_host_in_the_target_is_refused(server: LiveServer) -> None:
    assert send(server.url, b"Host: localhost", target=b"http://evil.example/healthz").status == 421
    assert send(server.url, b"Host: localhost", target=b"http://localhost/healthz").status == 200


@pytest.mark.parametrize("host", [
    b"", b" ", b"a b", b"a/b", b"user@localhost", b"http://localhost", b"localhost:port", b"localhost:123456",
    b"[::1", b"::1", b"a\xe9", b"a,b c", b"<script>", b"/" * 300,
])  # fmt: skip
def test_an_invalid_host_answers_400(server: LiveServer, host: bytes) -> None:
    response = send(server.url, b"Host: " + host)
    assert (response.status, response.json()["code"]) == (400, "invalid_request")
    assert len(response.json()["message"]) < 300


def test_http_1_1_without_host_answers_400(server: LiveServer) -> None:
    response = send(server.url)
    assert (response.status, response.json()["code"]) == (400, "invalid_request")
    assert "Host" in response.json()["message"]


def test_http_1_0_without_host_is_served(server: LiveServer) -> None:
    assert send(server.url, version=b"1.0").status == 200


def test_a_server_that_others_can_reach_accepts_any_host_unless_some_are_listed() -> None:
    anyone, listed = HostCheck("0.0.0.0", ()), HostCheck("10.0.0.11", (PROXY_HOST,))
    assert anyone.problem_of(b"anything.example", "10.0.0.11") is None
    assert [listed.problem_of(host, "10.0.0.11") for host in (b"callsheet.example", b"10.0.0.11:8787")] == [None, None]
    refused = listed.problem_of(b"anything.example", "10.0.0.11")
    assert refused is not None
    assert refused.status == 421
    assert HostCheck("127.0.0.1", ("*",)).problem_of(b"tunnel.example", "127.0.0.1") is None


def test_an_address_of_the_server_is_accepted_only_for_connections_to_it() -> None:
    listed = HostCheck("0.0.0.0", (PROXY_HOST,))
    assert listed.problem_of(b"10.0.0.11", "10.0.0.11") is None
    assert listed.problem_of(b"10.0.0.11", "10.0.0.12") is not None


@pytest.mark.parametrize("host", ["", "https://callsheet.example", "callsheet.example:443", "a b", "a/b"])
def test_a_wrong_allowed_host_is_named(host: str) -> None:
    with pytest.raises(ValueError, match=r"allowed_hosts: .* is not a host"):
        parse_allowed_host(host)
