"""Limits of multipart bodies that are being received: how many at the same time, and how long each may take."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from callsheet.http.auth.key_location import authenticate_by_header
from callsheet.http.server.mounted_api import Api
from callsheet.http.server.request import Request
from callsheet.http.server.route import MULTIPART, PUBLIC, Response, Route
from callsheet.settings import HttpSettings
from tests.support.http.raw_http import RawConnection, RawResponse
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

BODIES_MAX = 2
TIMEOUT_SECONDS = 0.3
BODY = b'--b\r\ncontent-disposition: form-data; name="prompt"\r\n\r\na pier\r\n--b--\r\n'
BODY_TYPE = f"{MULTIPART}; boundary=b"
PATH = "/forms"


class PromptForm(Struct):
    """A form with one field."""

    prompt: str


async def read_form(state: Any, request: Request) -> Response:
    _ = state
    return Response({"prompt": request.content.prompt})


FORMS = Api(
    PATH,
    (Route("POST", "/", read_form, PUBLIC, "Read a form", request=PromptForm, body_types=(MULTIPART,)),),
    authenticate_by_header("Authorization", "Bearer "),
)


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    """A server with the settings of the test's parameter."""
    with LiveServer(tmp_path / "callsheet.db", tmp_path, request.param, apis=[FORMS]) as made:
        yield made


def start_body(connection: RawConnection) -> None:
    """Send the first bytes of a body when the server is ready to receive them."""
    connection.send(connection.head("POST", PATH, None, BODY, content_type=BODY_TYPE, expect="100-continue"))
    assert connection.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.send(BODY[:10])


def send_form(server: LiveServer) -> RawResponse:
    with RawConnection(server.url) as connection:
        connection.send_request("POST", PATH, None, BODY, content_type=BODY_TYPE)
        return connection.read_response()


@pytest.mark.parametrize("server", [HttpSettings(multipart_bodies_max=BODIES_MAX)], indirect=True)
def test_further_multipart_requests_get_503_while_the_limit_of_bodies_is_reached(server: LiveServer) -> None:
    with ExitStack() as stack:
        first, *others = [stack.enter_context(RawConnection(server.url)) for _ in range(BODIES_MAX)]
        for connection in (first, *others):
            start_body(connection)
        refused = send_form(server)
        assert (refused.status, refused.json()["code"], refused.headers["retry-after"]) == (503, "unavailable", "1")
        assert server.client().get("/healthz").status_code == 200, "other requests are answered"
        first.send(BODY[10:])
        assert first.read_response().json() == {"prompt": "a pier"}
        accepted = send_form(server)
        assert (accepted.status, accepted.json()) == (200, {"prompt": "a pier"})
        for connection in others:
            connection.send(BODY[10:])
            assert connection.read_response().status == 200


@pytest.mark.parametrize("server", [HttpSettings(multipart_bodies_max=1)], indirect=True)
def test_a_disconnected_client_frees_its_place(server: LiveServer) -> None:
    with RawConnection(server.url) as connection:
        start_body(connection)
        assert send_form(server).status == 503
    wait_until(lambda: send_form(server).status == 200)


@pytest.mark.parametrize(
    "server",
    [HttpSettings(multipart_timeout_seconds=TIMEOUT_SECONDS, multipart_bodies_max=1, body_timeout_seconds=600)],
    indirect=True,
)
def test_a_multipart_body_that_takes_too_long_is_refused_although_bytes_keep_arriving(server: LiveServer) -> None:
    with RawConnection(server.url) as connection:
        head = connection.head("POST", PATH, None, b"", content_type=BODY_TYPE, content_length="100000")
        connection.send(head + BODY[: BODY.index(b"pier")])
        bytes_sent = 0
        while not connection.is_readable_within(0.02) and bytes_sent < 200:
            connection.send(b"y")
            bytes_sent += 1
        assert 0 < bytes_sent < 200
        response = connection.read_response()
        assert (response.status, response.json()["code"], response.headers["connection"]) == (
            408, "body_timeout", "close",
        )  # fmt: skip
        assert response.json()["message"] == "The body did not arrive within 0.3 seconds."
        assert connection.wait_closed()
    assert send_form(server).status == 200, "its place is free again"
