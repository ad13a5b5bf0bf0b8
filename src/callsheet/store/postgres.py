"""PostgreSQL 14 or newer, by asyncpg. A lane is a thread, so its connection owns a private event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import asyncpg
from msgspec.structs import astuple

from callsheet.core.rows import Row
from callsheet.store.connection import ConnectionLost, Contended, StoreError
from callsheet.store.dialect import Statement, column_types, columns, postgresql_statement, queries

T = TypeVar("T")
CHANNEL = "callsheet_work"
_READING = {"application_name": "callsheet", "default_transaction_read_only": "on"}
WRITING = {"application_name": "callsheet", "jit": "off", "enable_seqscan": "off"}
"""Every statement of a lane looks rows up by their keys; a plan made while a table was small must not outlive it."""
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_OLDEST = 140_000


@lru_cache
def _statement(query: str) -> Statement:
    return postgresql_statement(queries()[query])


@lru_cache
def insert_text(row: type[Row], first: int = 1) -> str:
    """Return the statement that writes new rows from one array per column, numbered from `first`."""
    names = ", ".join(columns(row))
    arrays = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(column_types(row), first))
    return f"INSERT INTO {row.TABLE} ({names}) SELECT * FROM unnest({arrays})"  # noqa: S608 - names from our classes


@lru_cache
def update_text(row: type[Row], first: int = 1) -> str:
    """Return the statement that writes changed rows: key columns and changing columns, one array each."""
    fixed, key = row.FIXED, len(row.KEY)
    names = [*columns(row)[:key], *columns(row)[fixed:]]
    kinds = [*column_types(row)[:key], *column_types(row)[fixed:]]
    changing = ", ".join(f"{name} = u.{name}" for name in names[key:])
    arrays = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(kinds, first))
    where = " AND ".join(f"t.{name} = u.{name}" for name in names[:key])
    aliased = ", ".join(names)
    return f"UPDATE {row.TABLE} t SET {changing} FROM unnest({arrays}) AS u({aliased}) WHERE {where}"  # noqa: S608 - names from our classes


def new_arrays(rows: Iterable[Row]) -> list[Any]:
    """Return the parameters of `insert_text`."""
    return list(zip(*map(astuple, rows), strict=True))


def changed_arrays(row: type[Row], rows: Iterable[Row]) -> list[Any]:
    """Return the parameters of `update_text`."""
    arrays = new_arrays(rows)
    return [*arrays[: len(row.KEY)], *arrays[row.FIXED :]]


Text = Callable[[type[Row], int], str]


@lru_cache
def together(text: Text, rows: tuple[type[Row], ...]) -> str:
    """Return one statement that writes several tables in one round trip; each part goes to its own table."""
    if len(rows) == 1:
        return text(rows[0], 1)
    parts, first = [], 1
    for n, row in enumerate(rows):
        parts.append(f"w{n} AS ({text(row, first)})")
        first += len(columns(row)) if text is insert_text else len(row.KEY) + len(columns(row)) - row.FIXED
    return f"WITH {', '.join(parts)} SELECT 1"


class PostgresDatabase:
    """A PostgreSQL database, by its URL."""

    name = "postgresql"

    def __init__(self, url: str, *, lanes: int = 1, pooled: bool = False, statement_seconds: float = 60.0) -> None:
        self.url = url
        self.statement_seconds = statement_seconds
        self.lanes = lanes
        self.pooled = pooled
        self.cache = 0 if pooled else 200
        """Behind a pooler in transaction mode, neither settings nor prepared statements can be kept."""

    def connect(self, *, reading: bool = False) -> "PostgresConnection":
        return PostgresConnection(self, reading=reading)


class PostgresConnection:
    """One connection with its own event loop, used from one thread.

    Rows to write gather until the next read or the commit, and then go out in two statements: what changed, then
    what is new (an ended lease makes room for the next one).
    """

    def __init__(self, database: PostgresDatabase, *, reading: bool) -> None:
        self._loop = asyncio.new_event_loop()
        self._changed: dict[type[Row], list[Any]] = {}
        self._new: dict[type[Row], list[Any]] = {}
        settings = _READING if reading else WRITING
        try:
            self._connection: asyncpg.Connection[Any] = self._wait(
                asyncpg.connect(
                    database.url,
                    statement_cache_size=database.cache,
                    server_settings={} if database.pooled else settings,
                    command_timeout=database.statement_seconds,
                )
            )
        except BaseException:
            self._loop.close()
            raise
        version = self._connection.get_server_version()
        if version.major * 10_000 < _OLDEST:
            self.close()
            raise StoreError(f"PostgreSQL {version.major} is too old: Callsheet needs 14 or newer.")

    def begin(self) -> None:
        self._wait(self._connection.execute("BEGIN"))

    def commit(self) -> None:
        self._flush()
        self._wait(self._connection.execute("COMMIT"))

    def rollback(self) -> None:
        self._changed.clear()
        self._new.clear()
        if not self._connection.is_closed() and self._connection.is_in_transaction():
            self._wait(self._connection.execute("ROLLBACK"))

    def now(self) -> int:
        return int(self._wait(self._connection.fetchval(_NOW)))

    def version(self) -> int | None:
        """Return None: other servers write too, so every batch reads what it locks."""
        return None

    def fetch(self, query: str, /, **given: Any) -> Sequence[Sequence[Any]]:
        self._flush()
        statement = _statement(query)
        return self._wait(self._connection.fetch(statement.text, *statement.layout(given)))

    def run(self, text: str) -> Sequence[Sequence[Any]]:
        return self._wait(self._connection.fetch(text))

    def insert(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._new[row] = new_arrays(rows)

    def update(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._changed[row] = changed_arrays(row, rows)

    def notify(self, kinds: Iterable[str]) -> None:
        self._wait(self._connection.execute("SELECT pg_notify($1, $2)", CHANNEL, " ".join(sorted(kinds))))

    def listen(self, heard: Callable[[str], None]) -> None:
        """Call back with the kinds that another process announced, while `wait` runs."""
        self._wait(self._connection.add_listener(CHANNEL, lambda *got: heard(str(got[-1]))))

    def wait(self, seconds: float) -> None:
        """Let the private loop run: notifications arrive meanwhile."""
        self._wait(asyncio.sleep(seconds))
        if self._connection.is_closed():
            raise ConnectionLost("the listening connection is closed")

    def close(self) -> None:
        if self._loop.is_closed():
            return
        if not self._connection.is_closed():
            self._connection.terminate()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _flush(self) -> None:
        for text, waiting in ((update_text, self._changed), (insert_text, self._new)):
            if waiting:
                arrays = [array for arrays in waiting.values() for array in arrays]
                statement = together(text, tuple(waiting))
                waiting.clear()
                self._wait(self._connection.execute(statement, *arrays))

    def _wait(self, under_way: Awaitable[T]) -> T:
        try:
            return self._loop.run_until_complete(under_way)
        except asyncpg.PostgresError as error:
            raise _named(error) from error
        except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            raise ConnectionLost(str(error)) from error


def _named(error: asyncpg.PostgresError) -> StoreError:
    if isinstance(
        error,
        asyncpg.UniqueViolationError
        | asyncpg.SerializationError
        | asyncpg.DeadlockDetectedError
        | asyncpg.LockNotAvailableError,
    ):
        return Contended(str(error))
    state = error.sqlstate or ""
    if state.startswith(("08", "57P", "53")):
        return ConnectionLost(str(error))
    return StoreError(str(error))
