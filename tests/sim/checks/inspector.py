"""Read-only access of the simulation to the database."""

import hashlib
from pathlib import Path
from typing import Any

import apsw

from callsheet.core.model.rows import ROWS
from callsheet.store.sqlite import SqliteDatabase


class Inspector:
    """Runs plain SQL queries."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=200)
        self.connection = SqliteDatabase(path).connect(reading=True)
        """The connection for `verify`."""

    def rows(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(text, params).fetchall()

    def one(self, text: str, *params: Any) -> Any:
        """Return the first value of the first row, or None."""
        rows = self.rows(text, *params)
        return rows[0][0] if rows else None

    def digest(self) -> str:
        """Return a digest of every row of every table."""
        hasher = hashlib.sha256()
        for row in ROWS:
            hasher.update(repr(self.rows(f"SELECT * FROM {row.TABLE} ORDER BY {', '.join(row.KEY)}")).encode())
        return hasher.hexdigest()

    def close(self) -> None:
        self._connection.close()
        self.connection.close()
