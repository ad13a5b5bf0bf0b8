"""The limit: the same rows in the same transactions, by bare SQL from ready-made tuples; no reads, no decisions."""

import asyncio
import gc
import time
from collections.abc import Sequence
from typing import Any, Self

import apsw
import asyncpg
from asyncpg.prepared_stmt import PreparedStatement
from msgspec.structs import astuple

from bench.recording import Log, Transaction, Write
from callsheet.store import postgres, sqlite

Statements = list[tuple[str, Any]]


def replayed_seconds(place: str, log: Log) -> float:
    """Write a log into a fresh database; return the seconds that the measured part took."""
    setup, measured = log.cut()
    gc.disable()  # the tuples lie ready by the hundred thousand; looking through them is not the database's cost
    try:
        if place.startswith("postgresql://"):
            return asyncio.run(_postgresql(place, setup, measured))
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
    """A connection with its statements prepared, as the engine's own connections have after their first calls."""

    def __init__(self, connection: "asyncpg.Connection[Any]", prepared: "dict[str, PreparedStatement[Any]]") -> None:
        self._connection = connection
        self._prepared = prepared

    @classmethod
    async def open(cls, place: str, texts: set[str]) -> Self:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(place, server_settings=postgres.WRITING)
        return cls(connection, {text: await connection.prepare(text) for text in sorted(texts)})

    async def write(self, statements: Statements) -> None:
        await self._connection.execute("BEGIN")
        for text, arrays in statements:
            await self._prepared[text].fetch(*arrays)
        await self._connection.execute("COMMIT")

    async def close(self) -> None:
        await self._connection.close()


async def _postgresql(place: str, setup: list[list[Transaction]], measured: list[list[Transaction]]) -> float:
    before = [_arrays(t.writes) for t in _in_order(setup)]
    ready = [[_arrays(t.writes) for t in lane] for lane in measured]
    texts = {text for lane in (before, *ready) for statements in lane for text, _ in statements}
    connections = [await Bare.open(place, texts) for _ in measured]
    for statements in before:
        await connections[0].write(statements)
    ended = [[asyncio.Event() for _ in lane] for lane in measured]
    lanes = zip(connections, ready, _waits(measured, ended), ended, strict=True)
    start = time.perf_counter()
    await asyncio.gather(*(_lane(*lane) for lane in lanes))
    took = time.perf_counter() - start
    for connection in connections:
        await connection.close()
    return took


async def _lane(
    bare: Bare,
    transactions: Sequence[Statements],
    waits: Sequence[Sequence[asyncio.Event]],
    ended: Sequence[asyncio.Event],
) -> None:
    for statements, earlier, end in zip(transactions, waits, ended, strict=True):
        for event in earlier:
            await event.wait()
        await bare.write(statements)
        end.set()


def _waits(lanes: list[list[Transaction]], ended: list[list[asyncio.Event]]) -> list[list[list[asyncio.Event]]]:
    """Return, per transaction, the last one of each other lane that had written one of its rows before.

    Rows are locked before they are read, so whoever wrote a row later also began to write later.
    """
    waits: list[list[list[asyncio.Event]]] = [[[] for _ in lane] for lane in lanes]
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


def _arrays(writes: Sequence[Write]) -> Statements:
    """Lay a transaction out as the engine sends it: one statement for what changed, one for what is new."""
    statements: Statements = []
    for text, new in ((postgres.update_text, False), (postgres.insert_text, True)):
        mine = [(row, rows) for is_new, row, rows in writes if is_new == new]
        if mine:
            arrays = [
                list(array)
                for row, rows in mine
                for array in (postgres.new_arrays(rows) if new else postgres.changed_arrays(row, rows))
            ]
            statements.append((postgres.together(text, tuple(row for row, _ in mine)), arrays))
    return statements
