"""The query parameters of a list."""

from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from callsheet.http.server.request import Request
from callsheet.http.state import AppState

Q = TypeVar("Q", bound=Struct)


def parse_list_query(state: AppState, request: Request, shape: type[Q]) -> Q:
    """Parse the query of a list. A default limit above `page_size_max` is reduced to it."""
    query, limit_max = request.query(shape), state.settings.page_size_max
    limit: int = getattr(query, "limit")  # noqa: B009 - every list query has a limit
    return replace(query, limit=limit_max) if limit > limit_max and b"limit=" not in request.query_string else query
