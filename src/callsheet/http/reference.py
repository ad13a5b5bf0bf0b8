"""The description of the API: for machines as OpenAPI, for people as a page that needs nothing from elsewhere."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from callsheet.http.describe import describe
from callsheet.http.page import Page
from callsheet.http.request import Request
from callsheet.http.route import ANYBODY, Answer, Route

_HTML = "text/html; charset=utf-8"
SAFE_PAGE = (
    (
        "content-security-policy",
        (
            "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
            "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
        ),
    ),
    ("x-frame-options", "DENY"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=()"),
)
"""What every page of ours is sent with: it loads from here only, and nobody frames it."""


def routes(api: tuple[Route, ...]) -> tuple[Route, ...]:
    """Return the routes that describe these routes, and themselves."""

    @cache
    def document() -> dict[str, Any]:
        return describe((*api, *mine))

    @cache
    def machines() -> bytes:
        return msgspec.json.encode(document())

    @cache
    def people() -> bytes:
        return Page(document()).html().encode()

    async def openapi(house: Any, request: Request) -> Answer:
        _ = house, request
        return Answer(await asyncio.to_thread(machines))

    async def reference(house: Any, request: Request) -> Answer:
        _ = house, request
        return Answer(await asyncio.to_thread(people), 200, SAFE_PAGE, _HTML)

    async def home(house: Any, request: Request) -> Answer:
        _ = house, request
        return Answer(None, 303, (("location", "/docs"),))

    mine = (
        Route("GET", "/", home, ANYBODY, "The way to the page that describes this API", status=303, sets=("Location",)),
        Route("GET", "/openapi.json", openapi, ANYBODY, "This API as an OpenAPI 3.1 document"),
        Route("GET", "/docs", reference, ANYBODY, "This API as a page", media_type="text/html"),
        _static("reference.css", "text/css", "The page's looks"),
        _static("reference.js", "text/javascript", "The page's search"),
    )
    return mine


def _static(name: str, media_type: str, summary: str) -> Route:
    body = files("callsheet.http").joinpath("static", name).read_bytes()

    async def static(house: Any, request: Request) -> Answer:
        _ = house, request
        return Answer(body, media_type=f"{media_type}; charset=utf-8")

    handler: Callable[[Any, Request], Awaitable[Answer]] = static
    handler.__name__ = name.replace(".", "_")
    return Route("GET", f"/docs/{name}", handler, ANYBODY, summary, media_type=media_type)
