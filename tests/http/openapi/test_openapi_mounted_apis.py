"""Routes of a documented plugin API are in the OpenAPI document and on the reference page."""

import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec

from callsheet.http.auth.key_location import authenticate_by_header
from callsheet.http.openapi.native_document import document
from callsheet.http.server.mounted_api import Api
from callsheet.http.server.request import Request
from callsheet.http.server.route import READERS, WRITERS, Response, Route
from tests.support.processes.live_server import LiveServer


class Poster(msgspec.Struct, forbid_unknown_fields=True):
    """A poster, as the plugin's clients see it."""

    title: str
    size: int = 1


async def get_poster(state: Any, request: Request) -> Response:
    _ = state
    return Response(Poster(request.params["poster"]), headers=(("X-Poster-Size", "1"),))


async def create_poster(state: Any, request: Request) -> Response:
    _ = state
    return Response(request.content, 202)


POSTERS = Api(
    "/posters",
    (
        Route(
            "GET", "/{poster}/{edition}", get_poster, READERS, "Retrieve a poster", response=Poster,
            request_headers=("X-Poster-Edition",), response_headers=("X-Poster-Size",),
            problems=("404 poster_not_found", "418 out_of_paint"),
        ),
        Route("POST", "/", create_poster, WRITERS, "Create a poster", response=Poster, request=Poster, status=202),
    ),
    authenticate_by_header("Authorization", "Bearer "),
    documented=True,
)  # fmt: skip


def test_unknown_parameters_headers_and_codes_are_described_by_their_names(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "callsheet.db", tmp_path, apis=[POSTERS]) as server:
        described = server.client().get("/openapi.json").raise_for_status().json()
        page = server.client().get("/docs").raise_for_status().text
    operation = described["paths"]["/posters/{poster}/{edition}"]["get"]
    assert operation["tags"] == [described["tags"][-1]["name"]] == ["test openapi mounted apis"]
    parameters = {one["name"]: one["description"] for one in operation["parameters"] if "name" in one}
    assert parameters == {
        "poster": "The poster.", "edition": "The edition.", "X-Poster-Edition": "The X-Poster-Edition header.",
    }  # fmt: skip
    assert operation["responses"]["200"]["headers"]["X-Poster-Size"]["description"] == "The X-Poster-Size header."
    refused = described["components"]["responses"]["418-out_of_paint"]
    assert refused["description"].split("\n\n")[1] == "- `out_of_paint`: Out of paint."
    assert described["paths"]["/posters"]["post"]["responses"]["202"]["description"] == Poster.__doc__
    assert "Retrieve a poster" in page
    assert "Create a poster" in page


# -- names of native structs and operations


class Time(msgspec.Struct, forbid_unknown_fields=True):
    """A time of the plugin."""

    hour: int
    """The hour of the plugin."""


class Job(msgspec.Struct, forbid_unknown_fields=True):
    """A job of the plugin."""

    title: str
    """The title of the plugin's job."""
    starts: Time


class Problem(msgspec.Struct):
    """A problem of the plugin."""

    detail: str


class NewDefinition(msgspec.Struct):
    """A definition of the plugin."""

    paper: str


async def cancel_job(state: Any, request: Request) -> Response:
    _ = state
    return Response(request.content)


async def put_workflow(state: Any, request: Request) -> Response:
    _ = state
    return Response(request.content)


async def home(state: Any, request: Request) -> Response:
    _ = state, request
    return Response(Problem("none"))


SAME_NAMES = Api(
    "/same",
    (
        Route("POST", "/job", cancel_job, WRITERS, "Cancel a job of the plugin", response=Job, request=Job),
        Route("POST", "/job/again", cancel_job, WRITERS, "Cancel it again", response=Job, request=Job),
        Route(
            "PUT", "/definition", put_workflow, WRITERS, "Store a definition of the plugin", response=NewDefinition,
            request=NewDefinition,
        ),
        Route("GET", "/problem", home, READERS, "Retrieve a problem of the plugin", response=Problem),
    ),
    authenticate_by_header("Authorization", "Bearer "),
    documented=True,
)  # fmt: skip
PREFIX = __name__


def test_names_of_native_structs_and_operations_are_qualified_in_a_plugin(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "callsheet.db", tmp_path, apis=[SAME_NAMES]) as server:
        described = server.client().get("/openapi.json").raise_for_status().json()
        page = server.client().get("/docs").raise_for_status().text
    schemas = described["components"]["schemas"]
    native = document()
    assert {name: schemas[name] for name in native["components"]["schemas"]} == native["components"]["schemas"]
    assert {path: described["paths"][path] for path in native["paths"]} == native["paths"]
    job = schemas[f"{PREFIX}.Job"]
    assert (job["description"], list(job["properties"])) == ("A job of the plugin.", ["title", "starts"])
    assert job["properties"]["title"]["description"] == "The title of the plugin's job."
    assert schemas[f"{PREFIX}.NewDefinition"]["required"] == ["paper"]
    operations = [one for methods in described["paths"].values() for one in methods.values()]
    ids = [one["operationId"] for one in operations]
    assert len(ids) == len(set(ids))
    assert {f"{PREFIX}.cancel_job", f"{PREFIX}.cancel_job.2", f"{PREFIX}.home"} <= set(ids)
    assert page.count(f'id="{PREFIX}.cancel_job"') == page.count('id="cancel_job"') == 1


def test_the_examples_of_a_plugin_fit_its_own_schemas(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "callsheet.db", tmp_path, apis=[SAME_NAMES]) as server:
        described = server.client().get("/openapi.json").raise_for_status().json()
    components = described["components"]
    found = re.findall(r"'\$ref': '#/components/(\w+)/([^']+)'", repr(described))
    assert [(kind, name) for kind, name in found if name not in components[kind]] == []
    for path in ("/same/job", "/same/job/again", "/same/definition", "/same/problem"):
        for operation in described["paths"][path].values():
            content = operation["responses"]["200"]["content"]["application/json"]
            validator = jsonschema_rs.Draft202012Validator({**content["schema"], "components": components})
            assert validator.is_valid(content["example"]), path
            assert content["schema"]["$ref"].startswith(f"#/components/schemas/{PREFIX}."), path
