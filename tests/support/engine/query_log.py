"""A log of the named queries that engines in virtual time send."""

from collections.abc import Iterable
from typing import Any

import pytest

from callsheet.store.connection import NamedQuery, Rows
from tests.support.doubles.virtual_clock import VirtualClockConnection


class QueryLog:
    """The queries since it was created, one list per round trip."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.round_trips: list[list[NamedQuery]] = []
        real = VirtualClockConnection.fetch_all

        def fetch_all(connection: VirtualClockConnection, named_queries: Iterable[NamedQuery]) -> list[Rows]:
            self.round_trips.append(list(named_queries))
            return real(connection, self.round_trips[-1])

        def fetch(connection: VirtualClockConnection, query: str, /, **parameters: Any) -> Rows:
            return fetch_all(connection, [(query, parameters)])[0]

        patch.setattr(VirtualClockConnection, "fetch_all", fetch_all)
        patch.setattr(VirtualClockConnection, "fetch", fetch)

    def names(self) -> list[list[str]]:
        """Return the names of the queries, by round trip."""
        return [[name for name, _ in queries] for queries in self.round_trips]

    def parameters(self, query: str) -> list[Any]:
        """Return the parameters of each call of one query."""
        return [parameters for queries in self.round_trips for name, parameters in queries if name == query]
