"""The base class of all rows."""

from collections.abc import Callable, Hashable
from typing import Any, ClassVar

from msgspec import Struct


class Row(Struct, frozen=True, gc=False):
    """A row of a table."""

    TABLE: ClassVar[str] = ""
    KEY: ClassVar[tuple[str, ...]] = ("id",)
    key_of: ClassVar[Callable[[Any], Hashable]]
    """Returns a row's key: one value, or a tuple."""
    FIXED_COLUMNS: ClassVar[int] = 0
    """Number of leading columns that never change. 0 means that rows are only appended, never updated."""
    TIMES: ClassVar[tuple[str, ...]] = ()
    """Columns with the time of a change. No later change of the row is dated before one of them."""

    def newest_time(self) -> int:
        """Return the time of the row's last dated change."""
        return max((at for name in self.TIMES if (at := getattr(self, name)) is not None), default=0)
