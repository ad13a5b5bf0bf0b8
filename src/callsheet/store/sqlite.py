"""SQLite: write-ahead log, synchronous FULL, one writing connection at a time, the SQLite that apsw carries."""

import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec.structs import astuple

from callsheet.core.model.rows import Row
from callsheet.store.connection import (
    ConnectionLost,
    DiskFull,
    NamedQuery,
    Rows,
    StoreError,
    TransactionConflict,
    UniqueConflict,
)
from callsheet.store.dialect import Statement, columns, queries, sqlite_statement

_encode = msgspec.json.Encoder().encode
_BUSY_MILLISECONDS = 30_000
_UNIQUE_CODES = {apsw.SQLITE_CONSTRAINT_UNIQUE, apsw.SQLITE_CONSTRAINT_PRIMARYKEY}
"""Somebody else wrote the same key first; any other broken constraint is a fault of ours."""

_OPEN_ERRORS: dict[type[apsw.Error], str] = {
    apsw.CantOpenError: "SQLite cannot open {}: is its folder there and writable?",
    apsw.ReadOnlyError: "SQLite cannot open {}: it must be able to write into its folder, even to read.",
    apsw.NotADBError: "{} is not a SQLite database.",
    apsw.CorruptError: "{} is damaged: take it from a backup.",
}


@lru_cache
def _statement(query: str) -> Statement:
    return sqlite_statement(queries()[query], lambda value: _encode(value).decode())


@lru_cache
def insert_text(row: type[Row]) -> str:
    """Return the statement that writes a new row."""
    names = columns(row)
    return f"INSERT INTO {row.TABLE} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - names from our classes


@lru_cache
def update_text(row: type[Row]) -> str:
    """Return the statement that writes a changed row: its changing columns, then its key."""
    changing = ", ".join(f"{name} = ?" for name in columns(row)[row.FIXED_COLUMNS :])
    where = " AND ".join(f"{name} = ?" for name in row.KEY)
    return f"UPDATE {row.TABLE} SET {changing} WHERE {where}"  # noqa: S608 - names from our classes


class MonotonicClock:
    """The machine's time, anchored once and carried on by the monotonic clock: it never goes back."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def now(self) -> int:
        return (time.monotonic_ns() + self._offset) // 1_000


class SqliteDatabase:
    """A SQLite file."""

    name = "sqlite"
    lanes = 1

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.clock = MonotonicClock()

    def connect(self, *, reading: bool = False) -> "SqliteConnection":
        return SqliteConnection(self, reading=reading)


class SqliteConnection:
    """One connection; the lane's writes, or one of many that read."""

    def __init__(self, database: SqliteDatabase, *, reading: bool) -> None:
        self._clock = database.clock
        flags = apsw.SQLITE_OPEN_READONLY if reading else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        try:
            self._connection = apsw.Connection(str(database.path), flags=flags, statementcachesize=200)
            self._connection.set_busy_timeout(_BUSY_MILLISECONDS)
            self._connection.execute("PRAGMA cache_size = -65536")
            if not reading:
                self._prepare()
        except apsw.Error as error:
            reason = _OPEN_ERRORS.get(type(error))
            raise _map_error(error) if reason is None else StoreError(reason.format(database.path.name)) from error

    def _prepare(self) -> None:
        mode = self._enable_wal()
        if mode != "wal":
            raise StoreError(f"SQLite answered journal mode {mode!r}; Callsheet needs a disk that can do WAL.")
        self._connection.execute("PRAGMA synchronous = FULL")

    def _enable_wal(self) -> Any:
        """Switch to WAL; SQLite does not wait by itself for another process that opens a new file just now."""
        end = time.monotonic() + _BUSY_MILLISECONDS / 1_000
        while True:
            try:
                return self._connection.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
            except apsw.BusyError as error:
                if time.monotonic() > end:
                    raise _map_error(error) from error
                time.sleep(0.01)

    def begin(self) -> None:
        self._execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._execute("ROLLBACK")

    def now(self) -> int:
        return self._clock.now()

    def version(self) -> int | None:
        return int(self._execute("PRAGMA data_version")[0][0])

    def fetch(self, query: str, /, **parameters: Any) -> Rows:
        statement = _statement(query)
        return self._execute(statement.text, statement.layout(parameters))

    def fetch_all(self, named_queries: Iterable[NamedQuery]) -> list[Rows]:
        return [self.fetch(query, **parameters) for query, parameters in named_queries]

    def run(self, text: str) -> Rows:
        return self._execute(text)

    def insert(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._execute_many(insert_text(row), [astuple(r) for r in rows])

    def update(self, row: type[Row], rows: Iterable[Row]) -> None:
        fixed, key = row.FIXED_COLUMNS, len(row.KEY)
        self._execute_many(update_text(row), [(*t[fixed:], *t[:key]) for t in map(astuple, rows)])

    def push(self) -> None:
        """Do nothing: what was written is there."""

    def notify(self, kinds: Iterable[str]) -> None:
        """Do nothing: another process on the same file finds out at its next poll."""

    def close(self) -> None:
        self._connection.close()

    def _execute(self, text: str, parameters: Sequence[Any] = ()) -> Rows:
        try:
            return self._connection.execute(text, parameters).fetchall()
        except apsw.Error as error:
            raise _map_error(error) from error

    def _execute_many(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            self._connection.executemany(text, rows)
        except apsw.Error as error:
            raise _map_error(error) from error


def _map_error(error: apsw.Error) -> StoreError:
    if getattr(error, "extendedresult", 0) in _UNIQUE_CODES:
        return UniqueConflict(str(error))
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return TransactionConflict(str(error))
    if isinstance(error, apsw.FullError):
        return DiskFull(str(error))
    if isinstance(error, apsw.IOError | apsw.CantOpenError | apsw.InterruptError):
        return ConnectionLost(str(error))
    return StoreError(str(error))
