"""Forward-only migrations with checksums.

Each runs once, in one transaction, and only ever adds: a server of the version before goes on working while and
after it runs.
"""

import hashlib
import re
from importlib.resources import files
from typing import NamedTuple

from callsheet.store.connection import Connection, StoreError
from callsheet.store.dialect import POSTGRESQL, SQLITE, Dialect

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_STATEMENT_END = re.compile(r";\s*\n")
_COMMENT = re.compile(r"^\s*--[^\n]*\n?", re.MULTILINE)
_LOCK = 7_204_118_801


class Migration(NamedTuple):
    """One step of the schema."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations() -> list[Migration]:
    """Return all steps in order."""
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
    """Migrate a database to the newest schema; return the applied steps."""
    steps = migrations() if steps is None else steps
    connection.begin()
    try:
        if dialect.name == "postgresql":
            connection.run(f"SELECT pg_advisory_xact_lock({_LOCK})")
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
                f"INSERT INTO migration VALUES ({step.version}, '{step.name}', '{step.checksum}')"  # noqa: S608 - our own files
            )
    except BaseException:
        connection.rollback()
        raise
    connection.commit()
    return pending


def statements(dialect: Dialect, text: str) -> list[str]:
    """Split a step into statements."""
    rendered = _COMMENT.sub("", dialect.render(text))
    return [part.strip() for part in _STATEMENT_END.split(rendered + "\n") if part.strip()]


def _pending(steps: list[Migration], applied: dict[int, str]) -> list[Migration]:
    for step in steps:
        if applied.get(step.version, step.checksum) != step.checksum:
            raise StoreError(
                f"Migration {step.version} ({step.name}) was applied with another text: "
                "this database was made by a changed copy of Callsheet."
            )
    return [step for step in steps if step.version not in applied]
