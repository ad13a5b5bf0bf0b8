"""The API's documentation: the OpenAPI document, and a reference page that loads nothing from other hosts."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from callsheet.http.openapi.document_builder import build_document
from callsheet.http.openapi.html_page import ReferencePage
from callsheet.http.server.request import Request
from callsheet.http.server.route import PUBLIC, Response, Route
from callsheet.http.server.security_headers import PAGE_SECURITY_HEADERS

_HTML = "text/html; charset=utf-8"


def routes(api: tuple[Route, ...]) -> tuple[Route, ...]:
    """Return the documentation routes. They document the routes of the API and themselves."""

    @cache
    def document() -> dict[str, Any]:
        return build_document((*api, *own_routes))

    @cache
    def openapi_json() -> bytes:
        return msgspec.json.encode(document())

    @cache
    def reference_html() -> bytes:
        return ReferencePage(document()).html().encode()

    async def openapi(state: Any, request: Request) -> Response:
        _ = state, request
        return Response(await asyncio.to_thread(openapi_json))

    async def reference(state: Any, request: Request) -> Response:
        _ = state, request
        return Response(await asyncio.to_thread(reference_html), 200, PAGE_SECURITY_HEADERS, _HTML)

    async def home(state: Any, request: Request) -> Response:
        _ = state, request
        return Response(None, 303, (("location", "/docs"),))

    own_routes = (
        Route(
            "GET",
            "/",
            home,
            PUBLIC,
            "Redirect to the reference page",
            status=303,
            response_headers=("Location",),
        ),
        Route("GET", "/openapi.json", openapi, PUBLIC, "Get the OpenAPI 3.1 document"),
        Route("GET", "/docs", reference, PUBLIC, "Get the reference page", media_type="text/html"),
        _static("reference.css", "text/css", "Get the style sheet of the reference page"),
        _static("reference.js", "text/javascript", "Get the script of the reference page"),
    )
    return own_routes


def _static(name: str, media_type: str, summary: str) -> Route:
    body = files("callsheet.http.openapi").joinpath("static", name).read_bytes()

    async def static(state: Any, request: Request) -> Response:
        _ = state, request
        return Response(body, media_type=f"{media_type}; charset=utf-8")

    handler: Callable[[Any, Request], Awaitable[Response]] = static
    handler.__name__ = name.replace(".", "_")
    return Route("GET", f"/docs/{name}", handler, PUBLIC, summary, media_type=media_type)
