"""The table of routes: who may call what, what goes in and what comes out.

Routing, the checks of roles, the OpenAPI document and the reference page all read this one table.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request

OPERATOR = "operator"
ADMIN, CLIENT, VIEWER, WORKER, USER = "admin", "client", "viewer", "worker", "user"
REGISTERED_WORKER = "machine"
ROLES = (OPERATOR, ADMIN, CLIENT, VIEWER, WORKER, REGISTERED_WORKER, USER)
FLEET_KEYS = frozenset({WORKER})
"""Whoever has the fleet's secret, a key of the role worker, may register."""
REGISTERED_WORKERS = frozenset({REGISTERED_WORKER})
"""A registered worker, with the token of its own."""
OPERATORS = frozenset({OPERATOR})
ADMINS = frozenset({OPERATOR, ADMIN})
WRITERS = ADMINS | {CLIENT}
READERS = WRITERS | {VIEWER}
READERS_AND_USERS = READERS | {USER}
"""Readers, and a browser with a user's token, which sees that user's jobs only."""
PUBLIC: frozenset[str] = frozenset()
"""No key is asked for."""


class Response(NamedTuple):
    """What a handler gives back: a struct or bytes, and how to send it."""

    body: Any
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    media_type: str = "application/json"


class StreamingResponse(NamedTuple):
    """An answer that the handler sends by itself, piece by piece."""

    send: Callable[[Any], Awaitable[None]]
    status: int = 200


Handler = Callable[[Any, Request], Awaitable[Response | StreamingResponse]]


class Route(NamedTuple):
    """One row of the table."""

    method: str
    path: str
    handler: Handler
    roles: frozenset[str]
    summary: str
    response: type[Any] | None = None
    request: type[Any] | None = None
    query: type[Any] | None = None
    status: int = 200
    other_statuses: tuple[int, ...] = ()
    """Other statuses that are not problems: a replay, nothing new."""
    problems: tuple[str, ...] = ()
    """Codes of the problems that are this route's own, as `status code`."""
    media_type: str = "application/json"
    """What comes out without `gives`; several have commas between."""
    details: str = ""
    body_max: str = "body_bytes_max"
    """The setting that limits the body."""
    extra_body_limit: str | None = None
    """A limit of the engine that comes on top: of what the body carries."""
    token_in_query: bool = False
    """A user's token may come as `?token=`: a browser's EventSource and pictures cannot send headers."""
    request_headers: tuple[str, ...] = ()
    """Headers of the request that matter, besides the key."""
    response_headers: tuple[str, ...] = ()
    """Headers of the answer, besides those that every answer has."""
    limit_failed_auth: bool = False
    """Wrong keys are counted by address here, and too many of them are told to come back later."""
    event_stream: bool = False
    """Whether whoever accepts text/event-stream gets one."""

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def tag(self) -> str:
        return self.handler.__module__.rpartition(".")[2]


class CompiledRoute(NamedTuple):
    """A route with the decoder of its body, made once."""

    route: Route
    decoder: "msgspec.json.Decoder[Any] | None"
    needs_body: bool


class PathNode:
    """A place in the tree of paths."""

    __slots__ = ("literals", "methods", "name", "wildcard")

    def __init__(self) -> None:
        self.literals: dict[str, PathNode] = {}
        self.wildcard: PathNode | None = None
        self.name = ""
        self.methods: dict[str, CompiledRoute] = {}


class Router:
    """Finds the route of a method and a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = PathNode()
        for route in routes:
            node = self._root
            for part in route.path.strip("/").split("/"):
                if part.startswith("{"):
                    if node.wildcard is None:
                        node.wildcard, node.name = PathNode(), part[1:-1]
                    node = node.wildcard
                else:
                    node = node.literals.setdefault(part, PathNode())
            node.methods[route.method] = _compile_route(route)

    def find(self, method: str, path: str, params: dict[str, str]) -> CompiledRoute:
        """Return the route of a raw path; its parameters are put into `params`, decoded one by one."""
        node = self._root
        parts = path.strip("/").split("/")
        for part in map(_decode_segment, parts) if "%" in path else parts:
            if (literals := node.literals.get(part)) is not None:
                node = literals
            elif node.wildcard is not None and part:
                params[node.name] = part
                node = node.wildcard
            else:
                raise _route_not_found()
        if not node.methods:
            raise _route_not_found()
        compiled = node.methods.get("GET" if method == "HEAD" else method)
        if compiled is None:
            allowed = ", ".join(sorted({*node.methods, *({"HEAD"} if "GET" in node.methods else ())}))
            raise Problem(405, "method_not_allowed", f"This address takes {allowed}.", {"allow": allowed})
        return compiled


def _decode_segment(part: str) -> str:
    """Decode one part of a path: an escaped slash stays within it."""
    try:
        text = unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise _route_not_found() from None
    if any(ord(c) < ord(" ") or c == "\x7f" for c in text):
        raise _route_not_found()
    return text


def _route_not_found() -> Problem:
    return Problem(404, "route_not_found", "There is nothing at this address.")


def _compile_route(route: Route) -> CompiledRoute:
    if route.request is None:
        return CompiledRoute(route, None, needs_body=False)
    needs = any(field.required for field in msgspec.structs.fields(route.request))
    return CompiledRoute(route, msgspec.json.Decoder(route.request), needs)
