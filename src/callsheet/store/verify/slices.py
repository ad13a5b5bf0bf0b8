"""Slices of tables: ranges of an indexed column that hold about equally many rows."""

from collections.abc import Iterator
from typing import Any

from callsheet.store.connection import Connection, Rows
from callsheet.store.verify.rule_files import QueryPart, SliceKey

Slice = tuple[str, str]
"""The first and the last value of a slice. All rows with the same value are in one slice."""


class Slices:
    """The slices of the tables in one snapshot, each found once."""

    def __init__(self, connection: Connection, rows: int) -> None:
        self._connection = connection
        self._rows = rows
        self._found: dict[SliceKey, list[Slice]] = {}

    def count(self, key: SliceKey) -> int:
        """Return the number of slices."""
        return len(self._slices_of(key))

    def run(self, part: QueryPart, parameters: dict[str, Any]) -> Iterator[Rows]:
        """Run a query for each slice, and yield its rows."""
        if part.key is None:
            yield self._connection.run(part.text, **parameters)
            return
        for first, last in self._slices_of(part.key):
            yield self._connection.run(part.text, first=first, last=last, **parameters)

    def _slices_of(self, key: SliceKey) -> list[Slice]:
        if key not in self._found:
            self._found[key] = list(self._find(key))
        return self._found[key]

    def _find(self, key: SliceKey) -> Iterator[Slice]:
        first = self._value(border_query(key, ">=", 0), "")
        while first is not None:
            last = self._value(border_query(key, ">=", self._rows - 1), first)
            if last is None:
                last = self._value(last_query(key), "") or first
            yield first, last
            first = self._value(border_query(key, ">", 0), last)

    def _value(self, query: str, value: str) -> str | None:
        found = self._connection.run(query, value=value)
        return str(found[0][0]) if found else None


def border_query(key: SliceKey, operator: str, rows: int) -> str:
    """Return the query for the value that so many rows come before, counted from `:value`."""
    return f"{_select(key, operator)} ORDER BY {key.column} LIMIT 1 OFFSET {rows}"


def last_query(key: SliceKey) -> str:
    """Return the query for the greatest value."""
    return f"{_select(key, '>=')} ORDER BY {key.column} DESC LIMIT 1"


def _select(key: SliceKey, operator: str) -> str:
    condition = f" AND {key.condition}" if key.condition else ""
    return f"SELECT {key.column} FROM {key.table} WHERE {key.column} {operator} :value{condition}"  # noqa: S608 - no user input
