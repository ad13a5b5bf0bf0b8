"""Pages: a limit that is checked, and whether there is more."""

from typing import Any

from callsheet.http.house import House
from callsheet.http.problem import Problem

NUMBER_MAX = 2**63 - 1
"""The largest number that a database keeps."""


def limited(house: House, limit: int) -> int:
    """Return how many rows a page asks for: one more than it shows, to know whether there are more."""
    if not 1 <= limit <= house.settings.page_max:
        raise Problem(422, "invalid_query", f"limit must be from 1 to {house.settings.page_max}.")
    return limit + 1


def paged(found: Any, limit: int) -> tuple[Any, bool]:
    """Cut a page off what was found, and say whether there is more."""
    return found[:limit], len(found) > limit
