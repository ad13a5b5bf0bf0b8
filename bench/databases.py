"""New databases for benchmarks: SQLite files on the disk, and databases in a temporary PostgreSQL server."""

import itertools
import tempfile
from pathlib import Path
from typing import Self

from callsheet.engine.engine import database_for
from callsheet.settings import Settings
from callsheet.store.connection import Connection, Database
from callsheet.store.migrate import dialect_of, migrate
from tests.support.databases.postgres import Cluster

SQLITE = "SQLite"
POSTGRESQL = "PostgreSQL"
DATABASE_KINDS = (SQLITE, POSTGRESQL)


class Databases:
    """Creates and deletes databases; PostgreSQL starts when it is first needed."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="callsheet-bench-", ignore_cleanup_errors=True)
        self._numbers = itertools.count()
        self._cluster: Cluster | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._cluster:
            self._cluster.close()
        self._folder.cleanup()

    def create(self, kind: str) -> str:
        """Return the DSN of a new, migrated database."""
        if kind == POSTGRESQL:
            return self.cluster.create_database()
        dsn = str(Path(self._folder.name) / f"{next(self._numbers)}.db")
        migrate_at(dsn)
        return dsn

    def drop(self, dsn: str) -> None:
        if dsn.startswith("postgresql://"):
            self.cluster.drop(dsn)
            return
        for end in ("", "-wal", "-shm"):
            Path(dsn + end).unlink(missing_ok=True)

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster.from_environment()
            self._cluster.template(migrate_at)
        return self._cluster


def migrate_at(dsn: str) -> None:
    connection = connect_to(dsn)
    try:
        migrate(connection, dialect_of(database_at(dsn).name))
    finally:
        connection.close()


def database_at(dsn: str) -> Database:
    return database_for(dsn, Settings())


def connect_to(dsn: str) -> Connection:
    return database_at(dsn).connect()
