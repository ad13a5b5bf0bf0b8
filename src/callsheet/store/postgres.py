"""PostgreSQL 14 or newer. A lane is a thread with one connection; what a batch reads or writes goes out together."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from msgspec.structs import astuple

from callsheet.core.model.rows import Row
from callsheet.store.connection import NamedQuery, Rows, StoreError
from callsheet.store.dialect import Statement, column_types, columns, postgresql_statement, queries
from callsheet.store.postgres_pipeline import BoundStatement, PipelineConnection, array_literal

CHANNEL = "callsheet_work"
SESSION_SETTINGS: Sequence[BoundStatement] = (
    ("SET jit = off", ()),
    ("SET enable_seqscan = off", ()),
    ("SET plan_cache_mode = force_generic_plan", ()),
)
"""Every statement is written for one plan: rows by their keys, or an index in its order. It is made once, not each time
(planning took longer than running), and one made while a table was small must not outlive it.
"""
_READ_ONLY_SETTINGS: Sequence[BoundStatement] = (("SET default_transaction_read_only = on", ()), *SESSION_SETTINGS)
_IDLE_SECONDS_MIN = 10.0
"""A lane thinks for less than a second between two statements of a transaction; one that is frozen holds locks."""
_ANSWER_GRACE_SECONDS = 1.0
"""The server gives a statement up first, and says so; whoever says nothing for this much longer is gone."""
_BEGIN: BoundStatement = ("BEGIN", ())
_COMMIT: BoundStatement = ("COMMIT", ())
_NOW: BoundStatement = ("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", ())
_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"
"""A hint need not be on the disk."""
_VERSION_MIN = 140_000
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
    fixed, key = row.FIXED_COLUMNS, len(row.KEY)
    names = [*columns(row)[:key], *columns(row)[fixed:]]
    kinds = [*column_types(row)[:key], *column_types(row)[fixed:]]
    changing = ", ".join(f"{name} = u.{name}" for name in names[key:])
    arrays = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(kinds, 1))
    where = " AND ".join(f"t.{name} = u.{name}" for name in names[:key])
    aliased = ", ".join(names)
    return f"UPDATE {row.TABLE} t SET {changing} FROM unnest({arrays}) AS u({aliased}) WHERE {where}"  # noqa: S608 - names from our classes


def insert_statement(row: type[Row], rows: Iterable[Row]) -> BoundStatement:
    """Say that rows are new."""
    return insert_text(row), [array_literal(column) for column in zip(*map(astuple, rows), strict=True)]


def update_statement(row: type[Row], rows: Iterable[Row]) -> BoundStatement:
    """Say that rows have changed."""
    columns_of_rows = list(zip(*map(astuple, rows), strict=True))
    return update_text(row), [
        array_literal(column) for column in (*columns_of_rows[: len(row.KEY)], *columns_of_rows[row.FIXED_COLUMNS :])
    ]


def _bind(named_queries: Iterable[NamedQuery]) -> list[BoundStatement]:
    statements = ((_statement(query), parameters) for query, parameters in named_queries)
    return [(statement.text, statement.layout(parameters)) for statement, parameters in statements]


def _timeout_settings(statement_timeout_seconds: float) -> Iterable[BoundStatement]:
    """Say when the server ends by itself what nobody waits for any more: it would wait for its locks for ever."""
    idle = max(statement_timeout_seconds, _IDLE_SECONDS_MIN)
    for name, seconds in (
        ("statement_timeout", statement_timeout_seconds),
        ("idle_in_transaction_session_timeout", idle),
    ):
        yield f"SET {name} = {min(round(seconds * 1_000), _MILLISECONDS_MAX)}", ()


class PostgresDatabase:
    """A PostgreSQL database, by its URL."""

    name = "postgresql"

    def __init__(
        self, url: str, *, lanes: int = 1, transaction_pooling: bool = False, statement_timeout_seconds: float = 60.0
    ) -> None:
        self.url = url
        self.statement_timeout_seconds = statement_timeout_seconds
        self.lanes = lanes
        self.transaction_pooling = transaction_pooling
        """Behind a pooler in transaction mode, neither settings nor prepared statements can be kept."""

    def with_timeout(self, seconds: float) -> "PostgresDatabase":
        """Return the same database, whose statements are given up after so long at most."""
        return PostgresDatabase(
            self.url,
            lanes=self.lanes,
            transaction_pooling=self.transaction_pooling,
            statement_timeout_seconds=min(self.statement_timeout_seconds, seconds),
        )

    def connect(self, *, reading: bool = False) -> "PostgresConnection":
        return PostgresConnection(self, reading=reading)


class PostgresConnection:
    """One connection. The beginning and the writes of a transaction wait for the next trip to the server."""

    def __init__(self, database: PostgresDatabase, *, reading: bool) -> None:
        self._wire = PipelineConnection(
            database.url,
            name="callsheet",
            use_prepared=not database.transaction_pooling,
            answer_seconds=database.statement_timeout_seconds + _ANSWER_GRACE_SECONDS,
        )
        self._read_only = reading
        self._pending: list[BoundStatement] = []
        self._hints: list[BoundStatement] = []
        self._now: int | None = None
        if self._wire.server_version < _VERSION_MIN:
            self.close()
            raise StoreError(
                f"PostgreSQL {self._wire.server_version // 10_000} is too old: Callsheet needs 14 or newer."
            )
        if not database.transaction_pooling:
            self._wire.execute(
                [
                    *(_READ_ONLY_SETTINGS if reading else SESSION_SETTINGS),
                    *_timeout_settings(database.statement_timeout_seconds),
                ]
            )

    def begin(self) -> None:
        self._now = None
        self._pending = [_BEGIN]

    def commit(self) -> None:
        hints, self._hints = self._hints, []
        self._wire.execute([*self._take_pending(), _COMMIT], hints)

    def rollback(self) -> None:
        self._pending, self._hints = [], []
        if not self._wire.lost and not self._wire.idle:
            self._wire.execute([("ROLLBACK", ())])

    def now(self) -> int:
        """Tell the server's time, for a lane as of the last read of its transaction: each of them brings it along."""
        if self._read_only:
            return int(self._wire.execute([_NOW])[0][0][0])
        if self._now is None:
            self.fetch_all(())
        return self._now or 0

    def version(self) -> int | None:
        """Return None: other servers write too, so every batch reads what it locks."""
        return None

    def fetch(self, query: str, /, **parameters: Any) -> Rows:
        return self.fetch_all([(query, parameters)])[0]

    @property
    def socket(self) -> int:
        """What becomes readable when there is an answer."""
        return self._wire.socket

    def ask(self, named_queries: Iterable[NamedQuery]) -> None:
        """Ask several named queries and wait for nothing; for a connection that only reads."""
        self._wire.ask(_bind(named_queries))

    def receive(self) -> list[Rows] | None:
        """Return the rows of what was asked, once all of them are there."""
        return self._wire.receive()

    def fetch_all(self, named_queries: Iterable[NamedQuery]) -> list[Rows]:
        pending, reads = self._take_pending(), _bind(named_queries)
        if self._read_only:
            return self._wire.execute([*pending, *reads])[len(pending) :]
        found = self._wire.execute([*pending, *reads, _NOW])[len(pending) :]
        self._now = found.pop()[0][0]
        return found

    def run(self, text: str) -> Rows:
        return self._wire.execute([*self._take_pending(), (text, ())])[-1]

    def insert(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._pending.append(insert_statement(row, rows))

    def update(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._pending.append(update_statement(row, rows))

    def push(self) -> None:
        self._wire.send_ahead(self._take_pending())

    def notify(self, kinds: Iterable[str]) -> None:
        self._hints = [(_NOTIFY, (CHANNEL, " ".join(sorted(kinds))))]

    def listen(self) -> None:
        """Ask to be told what other processes announce."""
        self._wire.execute([(f"LISTEN {CHANNEL}", ())])

    def wait_for_notifications(self, seconds: float, callback: Callable[[str], None]) -> None:
        """Wait for announcements, and pass on the kinds that they name."""
        self._wire.wait_for_notifications(seconds, callback)

    def close(self) -> None:
        self._wire.close()

    def _take_pending(self) -> list[BoundStatement]:
        pending_statements, self._pending = self._pending, []
        return pending_statements
