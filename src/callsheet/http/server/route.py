"""Routes: method, path, handler, roles, and the types of request and response.

Routing, role checks, the OpenAPI document and the reference page all read the same table of routes.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from callsheet.core.policy.admission import WorkClass
from callsheet.http.server.request import Request

OPERATOR = "operator"
ADMIN, CLIENT, VIEWER, WORKER, USER = "admin", "client", "viewer", "worker", "user"
REGISTERED_WORKER = "machine"
ROLES = (OPERATOR, ADMIN, CLIENT, VIEWER, WORKER, REGISTERED_WORKER, USER)
FLEET_KEYS = frozenset({WORKER})
"""Keys of the role `worker`: the fleet's secret, with which a worker registers."""
REGISTERED_WORKERS = frozenset({REGISTERED_WORKER})
"""A registered worker, with the token it got at registration."""
OPERATORS = frozenset({OPERATOR})
ADMINS = frozenset({OPERATOR, ADMIN})
WRITERS = ADMINS | {CLIENT}
READERS = WRITERS | {VIEWER}
READERS_AND_USERS = READERS | {USER}
"""Readers, and browsers with a user token, which reads the data of that user only."""
PUBLIC: frozenset[str] = frozenset()
"""The route needs no key."""
JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
JSON_ONLY = (JSON,)


class Response(NamedTuple):
    """A response that is sent whole."""

    body: Any
    """A struct, a dictionary or bytes; None is no body."""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    media_type: str = "application/json"


class StreamingResponse(NamedTuple):
    """A response that the handler sends itself, in pieces."""

    send: Callable[[Any], Awaitable[None]]
    """Gets the ASGI `send` callable. Start the headers with `request.response_headers()`."""
    status: int = 200


Handler = Callable[[Any, Request], Awaitable[Response | StreamingResponse]]


class Route(NamedTuple):
    """One operation of an API."""

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
    """Other statuses that are not errors, for example of a replay or of an unmodified resource."""
    problems: tuple[str, ...] = ()
    """Errors that only this route returns, as `status code`."""
    media_type: str = "application/json"
    """Media type of the response if `response` is not set; separate several with ", "."""
    details: str = ""
    body_max: str = "body_bytes_max"
    """The HTTP setting that limits the body."""
    extra_body_limit: str | None = None
    """An engine limit that is added to `body_max`, for an input or output in the body."""
    token_in_query: bool = False
    """Accept a user token as `?token=`: EventSource and `<img>` in a browser cannot send headers."""
    request_headers: tuple[str, ...] = ()
    """Request headers that the route reads, besides the key."""
    response_headers: tuple[str, ...] = ()
    """Response headers, besides those that every response has."""
    event_stream: bool = False
    """The route streams to clients that accept text/event-stream."""
    body_types: tuple[str, ...] = JSON_ONLY
    """Media types of the body that the route accepts: `JSON`, `FORM`, `MULTIPART`."""
    work_class: WorkClass | None = None
    """What is refused first if the server is overloaded. The default depends on the roles and the method."""

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def admitted_as(self) -> WorkClass:
        """The class of the route's requests. Routes for administrators stay available under overload."""
        if self.work_class is not None:
            return self.work_class
        if self.roles is not PUBLIC and self.roles <= ADMINS:
            return WorkClass.ESSENTIAL
        if self.event_stream:
            return WorkClass.STREAM
        return WorkClass.READ if self.method == "GET" else WorkClass.WRITE

    @property
    def tag(self) -> str:
        return self.handler.__module__.rpartition(".")[2]
