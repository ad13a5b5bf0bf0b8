"""The limit: the same rows in the same transactions, by bare SQL from ready-made tuples; no reads, no decisions."""

import gc
import threading
import time
from collections.abc import Sequence
from typing import Any

import apsw
from msgspec.structs import astuple

from bench.recording import Log, Transaction, Write
from callsheet.core.rows import Row
from callsheet.store import postgres, sqlite
from callsheet.store.wire import Say, Wire

Statements = list[tuple[str, Any]]


def replayed_seconds(place: str, log: Log) -> float:
    """Write a log into a fresh database; return the seconds that the measured part took."""
    setup, measured = log.cut()
    gc.disable()  # the tuples lie ready by the hundred thousand; looking through them is not the database's cost
    try:
        if place.startswith("postgresql://"):
            return _postgresql(place, setup, measured)
        return _sqlite(place, setup, measured)
    finally:
        gc.enable()


# -- SQLite


def _sqlite(place: str, setup: list[list[Transaction]], measured: list[list[Transaction]]) -> float:
    connection = apsw.Connection(place, statementcachesize=200)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -65536"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    _write_sqlite(connection, [_tuples(t.writes) for t in _in_order(setup)])
    ready = [_tuples(t.writes) for t in _in_order(measured)]
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


def _tuples(writes: Sequence[Write]) -> Statements:
    statements: Statements = []
    for new, row, rows in writes:
        tuples = [astuple(r) for r in rows]
        if new:
            statements.append((sqlite.insert_text(row), tuples))
        else:
            fixed, key = row.FIXED, len(row.KEY)
            statements.append((sqlite.update_text(row), [(*t[fixed:], *t[:key]) for t in tuples]))
    return statements


def _in_order(lanes: list[list[Transaction]]) -> list[Transaction]:
    return sorted((t for lane in lanes for t in lane), key=lambda t: t.ended)


# -- PostgreSQL


class Bare:
    """A connection as the engine's own: pipelined, its statements prepared after their first use."""

    def __init__(self, place: str) -> None:
        self._wire = Wire(place, name="bare", prepares=True, answer_seconds=60)
        self._wire.talk(postgres.WRITING)

    def write(self, says: Sequence[Say]) -> None:
        self._wire.talk([("BEGIN", ()), *says, ("COMMIT", ())])

    def close(self) -> None:
        self._wire.close()


def _postgresql(place: str, setup: list[list[Transaction]], measured: list[list[Transaction]]) -> float:
    before = [_says(t.writes) for t in _in_order(setup)]
    ready = [[_says(t.writes) for t in lane] for lane in measured]
    connections = [Bare(place) for _ in measured]
    for says in before:
        connections[0].write(says)
    ended = [[threading.Event() for _ in lane] for lane in measured]
    lanes = zip(connections, ready, _waits(measured, ended), ended, strict=True)
    threads = [threading.Thread(target=_lane, args=lane) for lane in lanes]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - start
    for connection in connections:
        connection.close()
    return took


def _lane(
    bare: Bare,
    transactions: Sequence[Sequence[Say]],
    waits: Sequence[Sequence[threading.Event]],
    ended: Sequence[threading.Event],
) -> None:
    for says, earlier, end in zip(transactions, waits, ended, strict=True):
        for event in earlier:
            event.wait()
        bare.write(says)
        end.set()


def _waits(lanes: list[list[Transaction]], ended: list[list[threading.Event]]) -> list[list[list[threading.Event]]]:
    """Return, per transaction, the last one of each other lane that had written one of its rows before.

    Rows are locked before they are read, so whoever wrote a row later also began to write later.
    """
    waits: list[list[list[threading.Event]]] = [[[] for _ in lane] for lane in lanes]
    writers: dict[Any, tuple[int, int]] = {}
    order = sorted((t.began, n, place) for n, lane in enumerate(lanes) for place, t in enumerate(lane))
    for _, mine, place in order:
        last: dict[int, int] = {}
        for key in _keys(lanes[mine][place]):
            lane, earlier = writers.get(key, (mine, 0))
            if lane != mine:
                last[lane] = max(last.get(lane, 0), earlier)
            writers[key] = (mine, place)
        waits[mine][place] = [ended[lane][earlier] for lane, earlier in last.items()]
    return waits


def _keys(transaction: Transaction) -> set[Any]:
    """Return the rows that a transaction wrote and another may write too."""
    return {(row, astuple(r)[: len(row.KEY)]) for _, row, rows in transaction.writes if row.FIXED for r in rows}


def _says(writes: Sequence[Write]) -> list[Say]:
    """Lay a transaction out with one statement for the changed and one for the new rows of a table."""
    tables: dict[tuple[bool, type[Row]], list[Row]] = {}
    for new, row, rows in writes:
        tables.setdefault((new, row), []).extend(rows)
    return [(postgres.inserting if new else postgres.updating)(row, rows) for (new, row), rows in tables.items()]
