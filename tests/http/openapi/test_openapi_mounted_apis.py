"""Routes of a plugin's documented API are in the OpenAPI document and on the reference page."""

from pathlib import Path
from typing import Any

import msgspec

from callsheet.http.auth.schemes import authenticate_by_header
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


def test_names_that_callsheet_does_not_know_are_documented_by_themselves(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "callsheet.db", tmp_path, apis=[POSTERS]) as server:
        document = server.client().get("/openapi.json").raise_for_status().json()
        page = server.client().get("/docs").raise_for_status().text
    operation = document["paths"]["/posters/{poster}/{edition}"]["get"]
    assert operation["tags"] == [document["tags"][-1]["name"]] == ["test openapi mounted apis"]
    described = {one["name"]: one["description"] for one in operation["parameters"] if "name" in one}
    assert described == {
        "poster": "The poster.", "edition": "The edition.", "X-Poster-Edition": "The X-Poster-Edition header.",
    }  # fmt: skip
    assert operation["responses"]["200"]["headers"]["X-Poster-Size"]["description"] == "The X-Poster-Size header."
    refused = document["components"]["responses"]["418-out_of_paint"]
    assert refused["description"].split("\n\n")[1] == "- `out_of_paint`: Out of paint."
    assert document["paths"]["/posters"]["post"]["responses"]["202"]["description"] == Poster.__doc__
    assert "Retrieve a poster" in page
    assert "Create a poster" in page
