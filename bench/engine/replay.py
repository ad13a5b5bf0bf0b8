"""The limit of throughput: bare SQL writes the same rows in the same transactions, without reads and decisions."""

import gc
import threading
import time
from collections.abc import Sequence
from typing import Any

import apsw
from msgspec.structs import astuple

from bench.engine.recording import Transaction, Write, WriteLog
from callsheet.core.model.rows import Row
from callsheet.store import postgres, sqlite
from callsheet.store.postgres_pipeline import BoundStatement, PipelineConnection

Statements = list[tuple[str, Any]]


def time_replay(dsn: str, log: WriteLog) -> float:
    """Write a log into a fresh database; return the seconds that the measured part took."""
    setup, measured = log.split_at_mark()
    gc.disable()  # scanning hundreds of thousands of prepared tuples is no cost of the database
    try:
        if dsn.startswith("postgresql://"):
            return _replay_postgresql(dsn, setup, measured)
        return _replay_sqlite(dsn, setup, measured)
    finally:
        gc.enable()


# -- SQLite


def _replay_sqlite(dsn: str, setup: list[list[Transaction]], measured: list[list[Transaction]]) -> float:
    connection = apsw.Connection(dsn, statementcachesize=200)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -65536"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    _write_sqlite(connection, [_sqlite_statements(t.writes) for t in _in_commit_order(setup)])
    ready = [_sqlite_statements(t.writes) for t in _in_commit_order(measured)]
    start = time.perf_counter()
    _write_sqlite(connection, ready)
    took = time.perf_counter() - start
    connection.close()
    return took


def _write_sqlite(connection: apsw.Connection, transactions: Sequence[Statements]) -> None:
    for statements in transactions:
        connection.execute("BEGIN IMMEDIATE")
        for text, rows in statements:
            connection.executemany(text, rows)
        connection.execute("COMMIT")


def _sqlite_statements(writes: Sequence[Write]) -> Statements:
    statements: Statements = []
    for new, row, rows in writes:
        tuples = [astuple(r) for r in rows]
        if new:
            statements.append((sqlite.insert_text(row), tuples))
        else:
            fixed, key = row.FIXED_COLUMNS, len(row.KEY)
            statements.append((sqlite.update_text(row), [(*t[fixed:], *t[:key]) for t in tuples]))
    return statements


def _in_commit_order(lanes: list[list[Transaction]]) -> list[Transaction]:
    return sorted((t for lane in lanes for t in lane), key=lambda t: t.ended)


# -- PostgreSQL


class PipelinedConnection:
    """A connection like the engine's: pipelined, with statements that are prepared after their first use."""

    def __init__(self, dsn: str) -> None:
        self._wire = PipelineConnection(dsn, name="bare", use_prepared=True, answer_seconds=60)
        self._wire.execute(postgres.SESSION_SETTINGS)

    def write(self, statements: Sequence[BoundStatement]) -> None:
        self._wire.execute([("BEGIN", ()), *statements, ("COMMIT", ())])

    def close(self) -> None:
        self._wire.close()


def _replay_postgresql(dsn: str, setup: list[list[Transaction]], measured: list[list[Transaction]]) -> float:
    before = [_postgres_statements(t.writes) for t in _in_commit_order(setup)]
    ready = [[_postgres_statements(t.writes) for t in lane] for lane in measured]
    connections = [PipelinedConnection(dsn) for _ in measured]
    for statements in before:
        connections[0].write(statements)
    ended = [[threading.Event() for _ in lane] for lane in measured]
    lanes = zip(connections, ready, _dependencies(measured, ended), ended, strict=True)
    threads = [threading.Thread(target=_replay_lane, args=lane) for lane in lanes]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - start
    for connection in connections:
        connection.close()
    return took


def _replay_lane(
    bare: PipelinedConnection,
    transactions: Sequence[Sequence[BoundStatement]],
    dependencies: Sequence[Sequence[threading.Event]],
    ended: Sequence[threading.Event],
) -> None:
    for statements, earlier, end in zip(transactions, dependencies, ended, strict=True):
        for event in earlier:
            event.wait()
        bare.write(statements)
        end.set()


def _dependencies(
    lanes: list[list[Transaction]], ended: list[list[threading.Event]]
) -> list[list[list[threading.Event]]]:
    """Return, per transaction, the last earlier transaction of each other lane that wrote one of its rows.

    Rows are locked before they are read, so a later writer of a row also started later.
    """
    dependencies: list[list[list[threading.Event]]] = [[[] for _ in lane] for lane in lanes]
    writers: dict[Any, tuple[int, int]] = {}
    order = sorted((t.began, n, position) for n, lane in enumerate(lanes) for position, t in enumerate(lane))
    for _, mine, position in order:
        last: dict[int, int] = {}
        for key in _updatable_rows(lanes[mine][position]):
            lane, earlier = writers.get(key, (mine, 0))
            if lane != mine:
                last[lane] = max(last.get(lane, 0), earlier)
            writers[key] = (mine, position)
        dependencies[mine][position] = [ended[lane][earlier] for lane, earlier in last.items()]
    return dependencies


def _updatable_rows(transaction: Transaction) -> set[Any]:
    """Return the rows of a transaction that other transactions may also write."""
    return {(row, astuple(r)[: len(row.KEY)]) for _, row, rows in transaction.writes if row.FIXED_COLUMNS for r in rows}


def _postgres_statements(writes: Sequence[Write]) -> list[BoundStatement]:
    """Return one statement per table for its changed rows and one for its new rows."""
    tables: dict[tuple[bool, type[Row]], list[Row]] = {}
    for new, row, rows in writes:
        tables.setdefault((new, row), []).extend(rows)
    return [
        (postgres.insert_statement if new else postgres.update_statement)(row, rows)
        for (new, row), rows in tables.items()
    ]
