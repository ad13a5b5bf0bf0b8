"""What a database holds, table by table: to show that nothing was changed."""

import hashlib
from typing import Any

import apsw
import psycopg

from callsheet.store.sqlite import SqliteDatabase
from tests.support.served import Served

_SQLITE_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
_POSTGRES_TABLES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema() ORDER BY table_name"
)


def contents(served: Served) -> dict[str, tuple[int, str]]:
    """Return how many rows each table has, and a digest of them."""
    database: Any = served.engine.database
    if isinstance(database, SqliteDatabase):
        connection = apsw.Connection(str(database.path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            tables = [name for (name,) in connection.execute(_SQLITE_TABLES)]
            return {name: _digest(connection.execute(f'SELECT * FROM "{name}"')) for name in tables}
        finally:
            connection.close()
    with psycopg.connect(database.url, autocommit=True) as opened:
        tables = [name for (name,) in opened.execute(_POSTGRES_TABLES)]
        return {name: _digest(opened.execute(f'SELECT * FROM "{name}"')) for name in tables}


def _digest(rows: Any) -> tuple[int, str]:
    lines = sorted(repr(row) for row in rows)
    return len(lines), hashlib.sha256("\n".join(lines).encode()).hexdigest()
