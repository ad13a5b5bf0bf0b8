"""Where the benches work: fresh SQLite files on the disk, and fresh databases in a throwaway PostgreSQL."""

import itertools
import tempfile
from pathlib import Path
from typing import Self

from callsheet.config import Settings
from callsheet.engine.engine import database_of
from callsheet.store.connection import Connection, Database
from callsheet.store.migrate import dialect_of, migrate
from tests.support.postgres import Cluster

SQLITE = "SQLite"
POSTGRESQL = "PostgreSQL"
BOTH = (SQLITE, POSTGRESQL)


class Places:
    """Makes and removes databases; PostgreSQL starts when it is first asked for."""

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

    def fresh(self, kind: str) -> str:
        """Return the place of a new, migrated database."""
        if kind == POSTGRESQL:
            return self.cluster.create_database()
        place = str(Path(self._folder.name) / f"{next(self._numbers)}.db")
        migrated(place)
        return place

    def drop(self, place: str) -> None:
        if place.startswith("postgresql://"):
            self.cluster.drop(place)
            return
        for end in ("", "-wal", "-shm"):
            Path(place + end).unlink(missing_ok=True)

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster.from_environment()
            self._cluster.template(migrated)
        return self._cluster


def migrated(place: str) -> None:
    connection = connected(place)
    try:
        migrate(connection, dialect_of(named(place).name))
    finally:
        connection.close()


def named(place: str) -> Database:
    return database_of(place, Settings())


def connected(place: str) -> Connection:
    return named(place).connect()
