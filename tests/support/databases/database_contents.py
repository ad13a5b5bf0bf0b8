"""The contents of a database, table by table, to show that nothing changed."""

import hashlib
from typing import Any

import apsw
import psycopg

from callsheet.store.sqlite import SqliteDatabase
from tests.support.processes.live_server import LiveServer

_SQLITE_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
_POSTGRES_TABLES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema() ORDER BY table_name"
)


def database_contents(live_server: LiveServer) -> dict[str, tuple[int, str]]:
    """Return how many rows each table has, and a digest of them. A server updates `installation` by itself."""
    return {name: _digest(lines) for name, lines in dump_tables(live_server).items() if name != "installation"}


def dump_tables(live_server: LiveServer) -> dict[str, list[str]]:
    """Return the rows of each table, as text."""
    database: Any = live_server.engine.database
    if isinstance(database, SqliteDatabase):
        connection = apsw.Connection(str(database.path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            tables = [name for (name,) in connection.execute(_SQLITE_TABLES)]
            return {name: _lines(connection.execute(f'SELECT * FROM "{name}"')) for name in tables}
        finally:
            connection.close()
    with psycopg.connect(database.url, autocommit=True) as opened:
        tables = [name for (name,) in opened.execute(_POSTGRES_TABLES)]
        return {name: _lines(opened.execute(f'SELECT * FROM "{name}"')) for name in tables}


def _lines(rows: Any) -> list[str]:
    return sorted(repr(row) for row in rows)


def _digest(lines: list[str]) -> tuple[int, str]:
    return len(lines), hashlib.sha256("\n".join(lines).encode()).hexdigest()
