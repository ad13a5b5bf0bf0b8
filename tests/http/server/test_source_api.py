"""A mounted API with the field names and the errors of another product."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from msgspec import Struct

from callsheet.core.model import commands
from callsheet.http.auth.key_location import authenticate_by_header
from callsheet.http.server.mounted_api import Api
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.route import WRITERS, Response, Route
from tests.http.server_on_each_database import DATABASES, start_server
from tests.support.processes.live_server import TENANT, LiveServer


class GenerationRequest(Struct, forbid_unknown_fields=True):
    """A submit in the words of the other product."""

    effect: str
    owner: str
    text: str


async def create_generation(state: Any, request: Request) -> Response:
    body: GenerationRequest = request.content
    job = await state.engine.aexecute(
        commands.Submit(tenant=TENANT, user=body.owner, workflow=body.effect, input={"prompt": body.text})
    )
    return Response({"generation": job.job_id}, 201)


def render_error(problem: Problem, request: Request) -> Response:
    _ = request
    if problem.code == "insufficient_credits":
        return Response({"error": "not_enough_credits", "required": problem.more["required"]}, 422)
    return Response({"error": problem.code}, problem.status)


SOURCE_API = Api(
    "/generations",
    (Route("POST", "/", create_generation, WRITERS, "Create a generation", request=GenerationRequest, status=201),),
    authenticate_by_header("X-Token"),
    render_error,
)


@pytest.fixture(scope="module", params=DATABASES)
def source_api_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with the mounted API."""
    with start_server(request, tmp_path_factory.mktemp("source_api"), apis=[SOURCE_API]) as server:
        yield server


def create(server: LiveServer, **body: str) -> httpx.Response:
    return httpx.post(f"{server.url}/generations", json=body, headers={"x-token": server.keys["client"]})


def test_a_mounted_api_submits_a_job_with_its_own_field_names(source_api_server: LiveServer) -> None:
    created = create(source_api_server, effect="sketch", owner="ann", text="a pier")
    assert created.status_code == 201
    job_id = created.json()["generation"]
    client = source_api_server.client("client")
    assert client.get(f"/v1/jobs/{job_id}").json()["user"] == "ann"
    assert client.get(f"/v1/jobs/{job_id}/input").json() == {"input": {"prompt": "a pier"}}


def test_a_mounted_api_reports_missing_credits_with_422_and_the_required_amount(source_api_server: LiveServer) -> None:
    # R177
    refused = create(source_api_server, effect="sketch", owner="a user without credits", text="a pier")
    assert (refused.status_code, refused.json()) == (422, {"error": "not_enough_credits", "required": 3})
    native = {"workflow": "sketch", "user": "a user without credits", "input": {"prompt": "a pier"}}
    assert source_api_server.client("client").post("/v1/jobs", json=native).status_code == 402
