"""PostgreSQL 14 or newer. A lane is a thread with one connection; what a batch reads or writes goes out together."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from msgspec.structs import astuple

from callsheet.core.rows import Row
from callsheet.store.connection import Ask, Rows, StoreError
from callsheet.store.dialect import Statement, column_types, columns, postgresql_statement, queries
from callsheet.store.wire import Say, Wire, array

CHANNEL = "callsheet_work"
WRITING: Sequence[Say] = (
    ("SET jit = off", ()),
    ("SET enable_seqscan = off", ()),
    ("SET plan_cache_mode = force_generic_plan", ()),
)
"""Every statement is written for one plan: rows by their keys, or an index in its order. It is made once, not each time
(planning took longer than running), and one made while a table was small must not outlive it.
"""
_READING: Sequence[Say] = (("SET default_transaction_read_only = on", ()), *WRITING)
_IDLE_SECONDS_MIN = 10.0
"""A lane thinks for less than a second between two statements of a transaction; one that is frozen holds locks."""
_LATE_SECONDS = 1.0
"""The server gives a statement up first, and says so; whoever says nothing for this much longer is gone."""
_BEGIN: Say = ("BEGIN", ())
_COMMIT: Say = ("COMMIT", ())
_NOW: Say = ("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", ())
_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"
"""A hint need not be on the disk."""
_OLDEST = 140_000
_MILLISECONDS_MAX = 2**31 - 1


@lru_cache
def _statement(query: str) -> Statement:
    return postgresql_statement(queries()[query])


@lru_cache
def insert_text(row: type[Row]) -> str:
    """Return the statement that writes new rows from one array per column."""
    names = ", ".join(columns(row))
    arrays = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(column_types(row), 1))
    return f"INSERT INTO {row.TABLE} ({names}) SELECT * FROM unnest({arrays})"  # noqa: S608 - names from our classes


@lru_cache
def update_text(row: type[Row]) -> str:
    """Return the statement that writes changed rows: key columns and changing columns, one array each."""
    fixed, key = row.FIXED, len(row.KEY)
    names = [*columns(row)[:key], *columns(row)[fixed:]]
    kinds = [*column_types(row)[:key], *column_types(row)[fixed:]]
    changing = ", ".join(f"{name} = u.{name}" for name in names[key:])
    arrays = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(kinds, 1))
    where = " AND ".join(f"t.{name} = u.{name}" for name in names[:key])
    aliased = ", ".join(names)
    return f"UPDATE {row.TABLE} t SET {changing} FROM unnest({arrays}) AS u({aliased}) WHERE {where}"  # noqa: S608 - names from our classes


def inserting(row: type[Row], rows: Iterable[Row]) -> Say:
    """Say that rows are new."""
    return insert_text(row), [array(column) for column in zip(*map(astuple, rows), strict=True)]


def updating(row: type[Row], rows: Iterable[Row]) -> Say:
    """Say that rows have changed."""
    every = list(zip(*map(astuple, rows), strict=True))
    return update_text(row), [array(column) for column in (*every[: len(row.KEY)], *every[row.FIXED :])]


def _said(asks: Iterable[Ask]) -> list[Say]:
    statements = ((_statement(query), given) for query, given in asks)
    return [(statement.text, statement.layout(given)) for statement, given in statements]


def _limits(statement_seconds: float) -> Iterable[Say]:
    """Say when the server ends by itself what nobody waits for any more: it would wait for its locks for ever."""
    idle = max(statement_seconds, _IDLE_SECONDS_MIN)
    for name, seconds in (("statement_timeout", statement_seconds), ("idle_in_transaction_session_timeout", idle)):
        yield f"SET {name} = {min(round(seconds * 1_000), _MILLISECONDS_MAX)}", ()


class PostgresDatabase:
    """A PostgreSQL database, by its URL."""

    name = "postgresql"

    def __init__(self, url: str, *, lanes: int = 1, pooled: bool = False, statement_seconds: float = 60.0) -> None:
        self.url = url
        self.statement_seconds = statement_seconds
        self.lanes = lanes
        self.pooled = pooled
        """Behind a pooler in transaction mode, neither settings nor prepared statements can be kept."""

    def within(self, seconds: float) -> "PostgresDatabase":
        """Return the same database, whose statements are given up after so long at most."""
        return PostgresDatabase(
            self.url, lanes=self.lanes, pooled=self.pooled, statement_seconds=min(self.statement_seconds, seconds)
        )

    def connect(self, *, reading: bool = False) -> "PostgresConnection":
        return PostgresConnection(self, reading=reading)


class PostgresConnection:
    """One connection. The beginning and the writes of a transaction wait for the next trip to the server."""

    def __init__(self, database: PostgresDatabase, *, reading: bool) -> None:
        self._wire = Wire(
            database.url,
            name="callsheet",
            prepares=not database.pooled,
            answer_seconds=database.statement_seconds + _LATE_SECONDS,
        )
        self._reading = reading
        self._waiting: list[Say] = []
        self._hints: list[Say] = []
        self._now: int | None = None
        if self._wire.server_version < _OLDEST:
            self.close()
            raise StoreError(
                f"PostgreSQL {self._wire.server_version // 10_000} is too old: Callsheet needs 14 or newer."
            )
        if not database.pooled:
            self._wire.talk([*(_READING if reading else WRITING), *_limits(database.statement_seconds)])

    def begin(self) -> None:
        self._now = None
        self._waiting = [_BEGIN]

    def commit(self) -> None:
        hints, self._hints = self._hints, []
        self._wire.talk([*self._due(), _COMMIT], hints)

    def rollback(self) -> None:
        self._waiting, self._hints = [], []
        if not self._wire.lost and not self._wire.idle:
            self._wire.talk([("ROLLBACK", ())])

    def now(self) -> int:
        """Tell the server's time, for a lane as of the last read of its transaction: each of them brings it along."""
        if self._reading:
            return int(self._wire.talk([_NOW])[0][0][0])
        if self._now is None:
            self.fetch_all(())
        return self._now or 0

    def version(self) -> int | None:
        """Return None: other servers write too, so every batch reads what it locks."""
        return None

    def fetch(self, query: str, /, **given: Any) -> Rows:
        return self.fetch_all([(query, given)])[0]

    @property
    def socket(self) -> int:
        """What becomes readable when there is an answer."""
        return self._wire.socket

    def ask(self, asks: Iterable[Ask]) -> None:
        """Ask several named queries and wait for nothing; for a connection that only reads."""
        self._wire.ask(_said(asks))

    def answered(self) -> list[Rows] | None:
        """Return the rows of what was asked, once all of them are there."""
        return self._wire.answered()

    def fetch_all(self, asks: Iterable[Ask]) -> list[Rows]:
        due, reads = self._due(), _said(asks)
        if self._reading:
            return self._wire.talk([*due, *reads])[len(due) :]
        found = self._wire.talk([*due, *reads, _NOW])[len(due) :]
        self._now = found.pop()[0][0]
        return found

    def run(self, text: str) -> Rows:
        return self._wire.talk([*self._due(), (text, ())])[-1]

    def insert(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._waiting.append(inserting(row, rows))

    def update(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._waiting.append(updating(row, rows))

    def push(self) -> None:
        self._wire.say(self._due())

    def notify(self, kinds: Iterable[str]) -> None:
        self._hints = [(_NOTIFY, (CHANNEL, " ".join(sorted(kinds))))]

    def listen(self) -> None:
        """Ask to be told what other processes announce."""
        self._wire.talk([(f"LISTEN {CHANNEL}", ())])

    def hear(self, seconds: float, heard: Callable[[str], None]) -> None:
        """Wait for announcements, and pass on the kinds that they name."""
        self._wire.hear(seconds, heard)

    def close(self) -> None:
        self._wire.close()

    def _due(self) -> list[Say]:
        waiting, self._waiting = self._waiting, []
        return waiting
