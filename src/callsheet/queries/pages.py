"""Pages of lists: the limit, and cursors that only this server can create."""

from typing import Any, TypeVar

from callsheet.core.model.errors import BadInput
from callsheet.queries.context import QueryContext

T = TypeVar("T")


def row_count(context: QueryContext, limit: int) -> int:
    """Return how many rows to read for a page: one more than it shows, to know whether there are more."""
    most = context.settings.page_size_max
    if not 1 <= limit <= most:
        raise BadInput("invalid_query", f"limit must be from 1 to {most}, not {limit}.", limit_max=most)
    return limit + 1


def split_page(found: Any, limit: int) -> tuple[Any, bool]:
    """Return the rows of a page, and whether there are more."""
    return found[:limit], len(found) > limit


def encode_cursor(context: QueryContext, purpose: str, owner: str, position: Any) -> str:
    """Return a position in a list as signed text, valid for this list of this owner."""
    return context.signer.sign(purpose, (owner, position))


def decode_cursor(context: QueryContext, purpose: str, owner: str, cursor: str, shape: type[T]) -> T:
    """Return the position that a cursor names."""
    payload = context.signer.read(purpose, cursor, tuple[str, shape])  # type: ignore[valid-type]
    if payload is None or payload[0] != owner:
        raise BadInput(
            "invalid_cursor", "This cursor is not valid for this list. Start from the first page, without a cursor."
        )
    position: T = payload[1]
    return position
