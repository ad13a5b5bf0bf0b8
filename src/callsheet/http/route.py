"""The table of routes: who may call what, what goes in and what comes out.

Routing, the checks of roles, the OpenAPI document and the reference page all read this one table.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from callsheet.http.problem import Problem
from callsheet.http.request import Request

OPERATOR = "operator"
ADMIN, CLIENT, VIEWER, WORKER, USER = "admin", "client", "viewer", "worker", "user"
MACHINE = "machine"
ROLES = (OPERATOR, ADMIN, CLIENT, VIEWER, WORKER, MACHINE, USER)
FLEET = frozenset({WORKER})
"""Whoever has the fleet's secret, a key of the role worker, may register."""
MACHINES = frozenset({MACHINE})
"""A registered worker, with the token of its own."""
HOUSE = frozenset({OPERATOR})
ADMINS = frozenset({OPERATOR, ADMIN})
WRITERS = ADMINS | {CLIENT}
READERS = WRITERS | {VIEWER}
WATCHERS = READERS | {USER}
"""Readers, and a browser with a user's token, which sees that user's jobs only."""
ANYBODY: frozenset[str] = frozenset()
"""No key is asked for."""


class Answer(NamedTuple):
    """What a handler gives back: a struct or bytes, and how to send it."""

    body: Any
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    media_type: str = "application/json"


class Streaming(NamedTuple):
    """An answer that the handler sends by itself, piece by piece."""

    send: Callable[[Any], Awaitable[None]]
    status: int = 200


Handler = Callable[[Any, Request], Awaitable[Answer | Streaming]]


class Route(NamedTuple):
    """One row of the table."""

    method: str
    path: str
    handler: Handler
    who: frozenset[str]
    summary: str
    gives: type[Any] | None = None
    takes: type[Any] | None = None
    query: type[Any] | None = None
    status: int = 200
    also: tuple[int, ...] = ()
    """Other statuses that are not problems: a replay, nothing new."""
    problems: tuple[str, ...] = ()
    """Codes of the problems that are this route's own, as `status code`."""
    media_type: str = "application/json"
    """What comes out without `gives`; several have commas between."""
    details: str = ""
    body_max: str = "body_bytes_max"
    """The setting that limits the body."""
    carries: str | None = None
    """A limit of the engine that comes on top: of what the body carries."""
    token_in_query: bool = False
    """A user's token may come as `?token=`: a browser's EventSource and pictures cannot send headers."""
    reads: tuple[str, ...] = ()
    """Headers of the request that matter, besides the key."""
    sets: tuple[str, ...] = ()
    """Headers of the answer, besides those that every answer has."""
    guarded: bool = False
    """Wrong keys are counted by address here, and too many of them are told to come back later."""
    streams: bool = False
    """Whether whoever accepts text/event-stream gets one."""

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def tag(self) -> str:
        return self.handler.__module__.rpartition(".")[2]


class Known(NamedTuple):
    """A route with the decoder of its body, made once."""

    route: Route
    decoder: "msgspec.json.Decoder[Any] | None"
    needs_body: bool


class Node:
    """A place in the tree of paths."""

    __slots__ = ("child", "fixed", "methods", "name")

    def __init__(self) -> None:
        self.fixed: dict[str, Node] = {}
        self.child: Node | None = None
        self.name = ""
        self.methods: dict[str, Known] = {}


class Router:
    """Finds the route of a method and a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = Node()
        for route in routes:
            node = self._root
            for part in route.path.strip("/").split("/"):
                if part.startswith("{"):
                    if node.child is None:
                        node.child, node.name = Node(), part[1:-1]
                    node = node.child
                else:
                    node = node.fixed.setdefault(part, Node())
            node.methods[route.method] = _known(route)

    def find(self, method: str, path: str, params: dict[str, str]) -> Known:
        """Return the route of a raw path; its parameters are put into `params`, decoded one by one."""
        node = self._root
        parts = path.strip("/").split("/")
        for part in map(_decoded, parts) if "%" in path else parts:
            if (fixed := node.fixed.get(part)) is not None:
                node = fixed
            elif node.child is not None and part:
                params[node.name] = part
                node = node.child
            else:
                raise _nothing_here()
        if not node.methods:
            raise _nothing_here()
        known = node.methods.get("GET" if method == "HEAD" else method)
        if known is None:
            allowed = ", ".join(sorted({*node.methods, *({"HEAD"} if "GET" in node.methods else ())}))
            raise Problem(405, "method_not_allowed", f"This address takes {allowed}.", {"allow": allowed})
        return known


def _decoded(part: str) -> str:
    """Decode one part of a path: an escaped slash stays within it."""
    try:
        text = unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise _nothing_here() from None
    if any(ord(c) < ord(" ") or c == "\x7f" for c in text):
        raise _nothing_here()
    return text


def _nothing_here() -> Problem:
    return Problem(404, "route_not_found", "There is nothing at this address.")


def _known(route: Route) -> Known:
    if route.takes is None:
        return Known(route, None, needs_body=False)
    needs = any(field.required for field in msgspec.structs.fields(route.takes))
    return Known(route, msgspec.json.Decoder(route.takes), needs)
