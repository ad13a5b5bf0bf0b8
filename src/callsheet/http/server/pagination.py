"""Pages: a limit that is checked, and whether there is more."""

from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.state import AppState

Q = TypeVar("Q", bound=Struct)

T = TypeVar("T")


def parse_list_query(state: AppState, request: Request, shape: type[Q]) -> Q:
    """Read the query of a list; whoever names no limit gets at most what this server shows at once."""
    query, most = request.query(shape), state.settings.page_size_max
    given: int = getattr(query, "limit")  # noqa: B009 - every list has one
    return replace(query, limit=most) if given > most and b"limit=" not in request.query_string else query


def row_count(state: AppState, limit: int) -> int:
    """Return how many rows a page asks for: one more than it shows, to know whether there are more."""
    most = state.settings.page_size_max
    if not 1 <= limit <= most:
        raise Problem(422, "invalid_query", f"limit must be from 1 to {most}.", limit_max=most)
    return limit + 1


def split_page(found: Any, limit: int) -> tuple[Any, bool]:
    """Cut a page off what was found, and say whether there is more."""
    return found[:limit], len(found) > limit


def encode_cursor(state: AppState, purpose: str, owner: str, position: Any) -> str:
    """Return a place in a list as text that only we can make; it is good for this list alone, whose it is."""
    return state.signer.sign(purpose, (owner, position))


def decode_cursor(state: AppState, purpose: str, owner: str, cursor: str, shape: type[T]) -> T:
    """Return the place that a cursor of ours names."""
    payload = state.signer.read(purpose, cursor, tuple[str, shape])  # type: ignore[valid-type]
    if payload is None or payload[0] != owner:
        raise Problem(422, "invalid_cursor", "This cursor is not one of ours: start from the first page.")
    position: T = payload[1]
    return position
