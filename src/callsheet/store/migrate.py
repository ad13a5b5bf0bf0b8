"""Forward-only migrations with checksums.

Each migration runs once, in one transaction. Migrations only add to the schema, so that servers of the previous version
keep working during and after a migration.
"""

import hashlib
import re
from importlib.resources import files
from typing import NamedTuple

from callsheet.store.connection import Connection, ConnectionLost, StoreError
from callsheet.store.dialect import POSTGRESQL, SQLITE, Dialect
from callsheet.store.event_order import continue_event_order

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_STATEMENT_END = re.compile(r";\s*\n")
_COMMENT = re.compile(r"^\s*--[^\n]*\n?", re.MULTILINE)
_ADVISORY_LOCK = 7_204_118_801
"""Arbitrary key of the lock that lets one server migrate at a time."""


class Migration(NamedTuple):
    """One version of the schema: a file in sql/migrations."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations() -> list[Migration]:
    """Return all migrations in order."""
    folder = files("callsheet.store") / "sql" / "migrations"
    return sorted(
        Migration(int(match[1]), match[2], file.read_text())
        for file in folder.iterdir()
        if (match := _FILE.fullmatch(file.name))
    )


def dialect_of(name: str) -> Dialect:
    """Return the dialect of a database."""
    return SQLITE if name == "sqlite" else POSTGRESQL


def migrate(connection: Connection, dialect: Dialect, steps: list[Migration] | None = None) -> list[Migration]:
    """Migrate a database to the newest schema; return the applied migrations.

    If the database was restored into another cluster, the order of its events is continued.
    """
    steps = migrations() if steps is None else steps
    connection.begin()
    try:
        if dialect.name == "postgresql":
            connection.run(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
        connection.run(
            dialect.render(
                "CREATE TABLE IF NOT EXISTS migration (version {int} NOT NULL PRIMARY KEY, name text NOT NULL, "
                "checksum text NOT NULL)"
            )
        )
        pending = _pending(steps, dict(connection.run("SELECT version, checksum FROM migration")))  # type: ignore[arg-type]
        for step in pending:
            for statement in statements(dialect, step.text):
                connection.run(statement)
            connection.run(
                f"INSERT INTO migration VALUES ({step.version}, '{step.name}', '{step.checksum}')"  # noqa: S608 - no user input
            )
        continue_event_order(connection)
    except Exception:  # an interrupt must not wait for the rollback: closing the connection rolls back too
        connection.rollback()
        raise
    connection.commit()
    return pending


def require_schema(connection: Connection) -> None:
    """Raise StoreError with a sentence unless the database has at least the schema of this version."""
    try:
        applied: dict[int, str] = dict(connection.run("SELECT version, checksum FROM migration"))  # type: ignore[arg-type]
    except ConnectionLost:
        raise
    except StoreError:
        applied = {}
    steps = migrations()
    if not any(step.version in applied for step in steps):
        raise StoreError("This is not a Callsheet database. Choose another, or create the schema: `callsheet migrate`.")
    if pending := _pending(steps, applied):
        raise StoreError(
            f"The database has an older schema: migration {pending[0].version} ({pending[0].name}) is missing. Run "
            "`callsheet migrate` first, or use the version of Callsheet that its servers run."
        )


def statements(dialect: Dialect, text: str) -> list[str]:
    """Render a migration for a dialect and split it into statements."""
    rendered = _COMMENT.sub("", dialect.render(text))
    return [part.strip() for part in _STATEMENT_END.split(rendered + "\n") if part.strip()]


def _pending(steps: list[Migration], applied: dict[int, str]) -> list[Migration]:
    for step in steps:
        if applied.get(step.version, step.checksum) != step.checksum:
            raise StoreError(
                f"Migration {step.version} ({step.name}) was applied in another form: another build of Callsheet "
                "created this database. Use that build, or a new database."
            )
    return [step for step in steps if step.version not in applied]
