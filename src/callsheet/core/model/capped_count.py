"""Counts that stop at a maximum, so that counting stays cheap however many rows there are."""

from typing import NamedTuple


class CappedCount(NamedTuple):
    """A number of rows, counted up to a maximum."""

    value: int = 0
    is_capped: bool = False
    """Whether there are more than `value`."""


def cap_count(counted: int, maximum: int) -> CappedCount:
    """Return a count whose query stopped after `maximum` + 1 rows."""
    return CappedCount(min(counted, maximum), counted > maximum)
