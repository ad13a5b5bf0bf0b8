"""SQLite in WAL mode with synchronous FULL. One connection writes at a time. apsw contains its own SQLite."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec.structs import astuple

from callsheet.core.model.rows import Row
from callsheet.store.connection import (
    DAMAGED,
    DISK_ERROR,
    DISK_FULL,
    READ_ONLY,
    ConnectionLost,
    DatabaseUnusable,
    NamedQuery,
    Rows,
    StoreError,
    TransactionConflict,
    UniqueConflict,
)
from callsheet.store.dialect import SQLITE_CLOCK, Statement, columns, queries, sqlite_statement
from callsheet.store.steady_clock import SteadyClock

_encode = msgspec.json.Encoder().encode
_BUSY_SECONDS, _BUSY_STEP_SECONDS = 30.0, 0.005
"""How long to wait for the lock of another process, and how long between two attempts."""
_UNIQUE_CODES = {apsw.SQLITE_CONSTRAINT_UNIQUE, apsw.SQLITE_CONSTRAINT_PRIMARYKEY}
"""Another connection has inserted the same key. Any other violated constraint is a bug."""

_OPEN_ERRORS: dict[type[apsw.Error], str] = {
    apsw.CantOpenError: "SQLite cannot open {}: check that its folder exists and is writable.",
    apsw.ReadOnlyError: "SQLite cannot open {}: make its folder writable, which SQLite needs even to read.",
    apsw.NotADBError: "{} is not a SQLite database: choose another file.",
    apsw.CorruptError: "{} is damaged: restore it from a backup.",
}
_UNUSABLE_REASONS: dict[type[apsw.Error], str] = {
    apsw.FullError: DISK_FULL,
    apsw.ReadOnlyError: READ_ONLY,
    apsw.PermissionsError: READ_ONLY,
    apsw.IOError: DISK_ERROR,
    apsw.CantOpenError: DISK_ERROR,
    apsw.CorruptError: DAMAGED,
    apsw.NotADBError: DAMAGED,
}


@lru_cache
def _statement(query: str) -> Statement:
    return sqlite_statement(queries()[query], lambda value: _encode(value).decode())


@lru_cache
def insert_text(row: type[Row]) -> str:
    """Return the statement that inserts a row."""
    names = columns(row)
    return f"INSERT INTO {row.TABLE} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - names of row classes


@lru_cache
def update_text(row: type[Row]) -> str:
    """Return the statement that updates a row. Its parameters are the mutable columns, then the key."""
    changing = ", ".join(f"{name} = ?" for name in columns(row)[row.FIXED_COLUMNS :])
    where = " AND ".join(f"{name} = ?" for name in row.KEY)
    return f"UPDATE {row.TABLE} SET {changing} WHERE {where}"  # noqa: S608 - names of row classes


class MonotonicClock:
    """The system time at the start, advanced by the monotonic clock, so that it never goes back."""

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
        self.system_clock = MonotonicClock()
        self.clock = SteadyClock()

    def connect(self, *, reading: bool = False) -> "SqliteConnection":
        return SqliteConnection(self, reading=reading)


class SqliteConnection:
    """One connection: the writer of the lane, or one of several readers."""

    def __init__(self, database: SqliteDatabase, *, reading: bool) -> None:
        self._clock = database.clock
        self._system_clock = database.system_clock
        flags = apsw.SQLITE_OPEN_READONLY if reading else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        try:
            self._connection = apsw.Connection(str(database.path), flags=flags, statementcachesize=200)
            self._connection.set_busy_handler(_wait_for_lock)
            self._connection.execute("PRAGMA cache_size = -65536")
            self._connection.create_scalar_function(SQLITE_CLOCK, lambda *_: self._system_clock.now(), 0)
            if not reading:
                self._prepare()
        except apsw.Error as error:
            reason = _OPEN_ERRORS.get(type(error))
            if reason is None:
                raise _map_error(error) from error
            raise DatabaseUnusable(reason.format(database.path.name)) from error

    def _prepare(self) -> None:
        mode = self._enable_wal()
        if mode != "wal":
            raise StoreError(f"SQLite uses the journal mode {mode!r}, not WAL: put the database on a local disk.")
        self._connection.execute("PRAGMA synchronous = FULL")

    def _enable_wal(self) -> Any:
        """Switch to WAL. Retries while another process opens the new file, for which SQLite itself does not wait."""
        end = time.monotonic() + _BUSY_SECONDS
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
        return self._clock.read(self._system_clock.now())

    def version(self) -> int | None:
        return int(self._execute("PRAGMA data_version")[0][0])

    def fetch(self, query: str, /, **parameters: Any) -> Rows:
        statement = _statement(query)
        return self._execute(statement.text, statement.layout(parameters))

    def fetch_all(self, named_queries: Iterable[NamedQuery]) -> list[Rows]:
        return [self.fetch(query, **parameters) for query, parameters in named_queries]

    def run(self, text: str, /, **parameters: Any) -> Rows:
        return self._execute(text, parameters)

    def insert(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._execute_many(insert_text(row), [astuple(r) for r in rows])

    def update(self, row: type[Row], rows: Iterable[Row]) -> None:
        fixed, key = row.FIXED_COLUMNS, len(row.KEY)
        self._execute_many(update_text(row), [(*t[fixed:], *t[:key]) for t in map(astuple, rows)])

    def push(self) -> None:
        """Do nothing: writes are not buffered."""

    def notify(self, kinds: Iterable[str]) -> None:
        """Do nothing: another process on the same file finds out at its next poll."""

    def close(self) -> None:
        with suppress(apsw.Error):  # a disk that fails: the next connection reads the write-ahead log
            self._connection.close()

    def _execute(self, text: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Rows:
        try:
            return self._connection.execute(text, parameters).fetchall()
        except apsw.Error as error:
            raise _map_error(error) from error

    def _execute_many(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            self._connection.executemany(text, rows)
        except apsw.Error as error:
            raise _map_error(error) from error


def _wait_for_lock(attempts: int) -> bool:
    """Wait for another process; return whether to try again. SQLite's own wait would delay signals until its end."""
    time.sleep(_BUSY_STEP_SECONDS)
    return attempts * _BUSY_STEP_SECONDS < _BUSY_SECONDS


def _map_error(error: apsw.Error) -> StoreError:
    if getattr(error, "extendedresult", 0) in _UNIQUE_CODES:
        return UniqueConflict(str(error))
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return TransactionConflict(str(error))
    if reason := _UNUSABLE_REASONS.get(type(error)):
        return DatabaseUnusable(reason)
    return ConnectionLost(str(error)) if isinstance(error, apsw.InterruptError) else StoreError(str(error))
