"""What every row has."""

from collections.abc import Callable, Hashable
from typing import Any, ClassVar

from msgspec import Struct


class Row(Struct, frozen=True, gc=False):
    """A row at rest."""

    TABLE: ClassVar[str] = ""
    KEY: ClassVar[tuple[str, ...]] = ("id",)
    key_of: ClassVar[Callable[[Any], Hashable]]
    """Reads a row's key: one value, or a tuple."""
    FIXED_COLUMNS: ClassVar[int] = 0
    """How many leading columns never change; 0 is a row that is only ever appended."""
