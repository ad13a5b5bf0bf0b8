"""PostgreSQL, version 14 or newer. A connection sends the reads and writes of a batch together, in few round trips."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from msgspec.structs import astuple

from callsheet.core.model.rows import Event, Row
from callsheet.store.connection import NamedQuery, Rows, StoreError
from callsheet.store.dialect import CURRENT_TRANSACTION, Statement, column_types, columns, postgresql_statement, queries
from callsheet.store.postgres_pipeline import BoundStatement, PipelineConnection, array_literal
from callsheet.store.steady_clock import SteadyClock

CHANNEL = "callsheet_work"
SESSION_SETTINGS: Sequence[BoundStatement] = (
    ("SET jit = off", ()),
    ("SET enable_seqscan = off", ()),
    ("SET plan_cache_mode = force_generic_plan", ()),
)
"""Statements read rows by key, or an index in its order, so one generic plan fits all parameters. It is made once,
because planning takes longer than running. Sequential scans are off, so that a plan that was made while a table was
small is also right for a large table.
"""
_READ_ONLY_SETTINGS: Sequence[BoundStatement] = (("SET default_transaction_read_only = on", ()), *SESSION_SETTINGS)
_IDLE_SECONDS_MIN = 10.0
"""Minimum of the idle timeout in a transaction. Between two statements, a healthy lane needs less than a second; a hung
one must not hold its locks for long."""
_ANSWER_GRACE_SECONDS = 1.0
"""Added to the statement timeout. The server ends a statement at its timeout; if it does not respond for this much
longer, the connection is lost."""
_BEGIN: BoundStatement = ("BEGIN", ())
_COMMIT: BoundStatement = ("COMMIT", ())
_NOW: BoundStatement = ("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", ())
_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"
"""Hints need no durable commit."""
_VERSION_MIN = 140_000
_MILLISECONDS_MAX = 2**31 - 1


@lru_cache
def _statement(query: str) -> Statement:
    return postgresql_statement(queries()[query])


_text_statement = lru_cache(postgresql_statement)


@lru_cache
def insert_text(row: type[Row]) -> str:
    """Return the statement that inserts rows, with one array per column."""
    computed = {"tx": CURRENT_TRANSACTION} if row is Event else {}
    names = ", ".join([*columns(row), *computed])
    values = ", ".join(["*", *computed.values()])
    arrays = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(column_types(row), 1))
    return f"INSERT INTO {row.TABLE} ({names}) SELECT {values} FROM unnest({arrays})"  # noqa: S608 - names of row classes


@lru_cache
def update_text(row: type[Row]) -> str:
    """Return the statement that updates rows, with one array per key column and per mutable column."""
    fixed, key = row.FIXED_COLUMNS, len(row.KEY)
    names = [*columns(row)[:key], *columns(row)[fixed:]]
    kinds = [*column_types(row)[:key], *column_types(row)[fixed:]]
    changing = ", ".join(f"{name} = u.{name}" for name in names[key:])
    arrays = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(kinds, 1))
    where = " AND ".join(f"t.{name} = u.{name}" for name in names[:key])
    aliased = ", ".join(names)
    return f"UPDATE {row.TABLE} t SET {changing} FROM unnest({arrays}) AS u({aliased}) WHERE {where}"  # noqa: S608 - names of row classes


def insert_statement(row: type[Row], rows: Iterable[Row]) -> BoundStatement:
    """Return the insert of some rows with its parameters."""
    return insert_text(row), [array_literal(column) for column in zip(*map(astuple, rows), strict=True)]


def update_statement(row: type[Row], rows: Iterable[Row]) -> BoundStatement:
    """Return the update of some rows with its parameters."""
    columns_of_rows = list(zip(*map(astuple, rows), strict=True))
    return update_text(row), [
        array_literal(column) for column in (*columns_of_rows[: len(row.KEY)], *columns_of_rows[row.FIXED_COLUMNS :])
    ]


def _bind(named_queries: Iterable[NamedQuery]) -> list[BoundStatement]:
    statements = ((_statement(query), parameters) for query, parameters in named_queries)
    return [(statement.text, statement.layout(parameters)) for statement, parameters in statements]


def _timeout_settings(statement_timeout_seconds: float) -> Iterable[BoundStatement]:
    """Yield the timeouts after which the server ends a statement or transaction whose client no longer waits.

    Without them, it could hold its locks forever.
    """
    idle = max(statement_timeout_seconds, _IDLE_SECONDS_MIN)
    for name, seconds in (
        ("statement_timeout", statement_timeout_seconds),
        ("idle_in_transaction_session_timeout", idle),
    ):
        yield f"SET {name} = {min(round(seconds * 1_000), _MILLISECONDS_MAX)}", ()


class PostgresDatabase:
    """A PostgreSQL database."""

    name = "postgresql"

    def __init__(
        self, url: str, *, lanes: int = 1, transaction_pooling: bool = False, statement_timeout_seconds: float = 60.0
    ) -> None:
        self.url = url
        self.clock = SteadyClock()
        self.statement_timeout_seconds = statement_timeout_seconds
        self.lanes = lanes
        self.transaction_pooling = transaction_pooling
        """The URL is that of a pooler in transaction mode: session settings and prepared statements are not used."""

    def with_timeout(self, seconds: float) -> "PostgresDatabase":
        """Return the same database with a statement timeout of at most `seconds`."""
        limited = PostgresDatabase(
            self.url,
            lanes=self.lanes,
            transaction_pooling=self.transaction_pooling,
            statement_timeout_seconds=min(self.statement_timeout_seconds, seconds),
        )
        limited.clock = self.clock
        return limited

    def connect(self, *, reading: bool = False) -> "PostgresConnection":
        return PostgresConnection(self, reading=reading)


class PostgresConnection:
    """One connection. `begin` and writes are buffered and sent with the next round trip."""

    def __init__(self, database: PostgresDatabase, *, reading: bool) -> None:
        self._wire = PipelineConnection(
            database.url,
            name="callsheet",
            use_prepared=not database.transaction_pooling,
            answer_seconds=database.statement_timeout_seconds + _ANSWER_GRACE_SECONDS,
        )
        self._clock = database.clock
        self._read_only = reading
        self._pending: list[BoundStatement] = []
        self._hints: list[BoundStatement] = []
        self._now: int | None = None
        if self._wire.server_version < _VERSION_MIN:
            self.close()
            raise StoreError(
                f"PostgreSQL {self._wire.server_version // 10_000} is too old. Upgrade it to version 14 or newer."
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
        """Return the engine's time. On a writing connection, every read also fetches it; this is the last one."""
        if self._read_only:
            return self._clock.read(self._wire.execute([_NOW])[0][0][0])
        if self._now is None:
            self.fetch_all(())
        return self._now or 0

    def version(self) -> int | None:
        """Return None: other servers write too, so rows cannot be kept between batches."""
        return None

    def fetch(self, query: str, /, **parameters: Any) -> Rows:
        return self.fetch_all([(query, parameters)])[0]

    def fetch_all(self, named_queries: Iterable[NamedQuery]) -> list[Rows]:
        pending, reads = self._take_pending(), _bind(named_queries)
        if self._read_only:
            return self._wire.execute([*pending, *reads])[len(pending) :]
        found = self._wire.execute([*pending, *reads, _NOW])[len(pending) :]
        self._now = self._clock.read(found.pop()[0][0])
        return found

    def run(self, text: str, /, **parameters: Any) -> Rows:
        statement = _text_statement(text) if parameters else Statement(text, list)
        return self._wire.execute([*self._take_pending(), (statement.text, statement.layout(parameters))])[-1]

    def insert(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._pending.append(insert_statement(row, rows))

    def update(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._pending.append(update_statement(row, rows))

    def push(self) -> None:
        self._wire.send_ahead(self._take_pending())

    def notify(self, kinds: Iterable[str]) -> None:
        self._hints = [(_NOTIFY, (CHANNEL, " ".join(sorted(kinds))))]

    def listen(self) -> None:
        """Subscribe to the notifications of other processes."""
        self._wire.execute([(f"LISTEN {CHANNEL}", ())])

    def wait_for_notifications(self, seconds: float, callback: Callable[[str], None]) -> None:
        """Wait for notifications, and call `callback` with the kinds of each."""
        self._wire.wait_for_notifications(seconds, callback)

    def close(self) -> None:
        self._wire.close()

    def _take_pending(self) -> list[BoundStatement]:
        pending_statements, self._pending = self._pending, []
        return pending_statements
