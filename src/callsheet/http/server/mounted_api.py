"""An API: routes under one prefix that share authentication, error format and CORS policy. An app mounts several."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from callsheet.http.server.cors import Cors
from callsheet.http.server.problems import CONTENT_TYPE, Problem
from callsheet.http.server.request import Request
from callsheet.http.server.route import Response, Route

Authenticate = Callable[[Any, Request], Awaitable[Any]]
"""Returns the `Caller` of a request, from the app's state and the request; raises a `Problem` if it is unknown."""
RenderError = Callable[[Problem, Request], Response]
"""Renders an error in the format of the API."""


def render_problem(problem: Problem, request: Request) -> Response:
    """Render an error as application/problem+json, the format of the native API."""
    return Response(problem.body(request.id), problem.status, tuple(problem.headers.items()), CONTENT_TYPE)


@dataclass(frozen=True, slots=True)
class Api:
    """Routes with their authentication, error format and CORS policy."""

    prefix: str
    """`/v1`, or "" for the root. Paths of the routes start after it."""
    routes: tuple[Route, ...]
    authenticate: Authenticate
    render_error: RenderError = render_problem
    """Also renders errors that no route handles: an unknown path under the prefix, a wrong method, a bad body."""
    cors: Cors = field(default_factory=lambda: Cors(()))
    documented: bool = False
    """List the routes in the OpenAPI document, which describes bearer keys and problem+json errors."""
    port: int | None = None
    """Serve the API also at the root of this port; 0 chooses a free port. With the prefix "", serve it only there."""

    def __post_init__(self) -> None:
        parts = self.prefix.split("/")[1:]
        if self.prefix and (not self.prefix.startswith("/") or not all(parts) or "{" in self.prefix):
            raise ValueError(f"The prefix {self.prefix!r} is not valid: use one such as /v1, without a trailing slash.")
        for route in self.routes:
            if not route.path.startswith("/"):
                raise ValueError(f"The path {route.path!r} of {route.name} is not valid: start it with a slash.")
        if self.documented and self.render_error is not render_problem:
            raise ValueError(
                f"The API at {self.prefix or '/'} cannot be documented: the OpenAPI document describes problem+json "
                "errors. Leave `documented` out, or use `render_problem`."
            )

    @property
    def on_main_port(self) -> bool:
        """Return whether the main port serves the API under its prefix."""
        return bool(self.prefix) or self.port is None

    def full_path(self, route: Route) -> str:
        """Return the path of a route on the main port."""
        return (self.prefix + route.path).rstrip("/") or "/"
