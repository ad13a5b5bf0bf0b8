"""Databases that stop to accept writes, and accept them again: on failing disks, in recovery, without rights."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import apsw
import psycopg
import pytest

from callsheet.store.connection import DAMAGED, DISK_ERROR, DISK_FULL, MISSING_RIGHTS, READ_ONLY
from tests.support.databases.database_pool import DatabasePool
from tests.support.databases.failing_disk import failing_disk

_OTHER_SESSIONS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


class RefusingDatabase(NamedTuple):
    """A database, the sentence about its failure, and how to cause and to repair it."""

    url: str
    reason: str
    fail: Callable[[], None]
    repair: Callable[[], None]


Fault = Callable[[pytest.FixtureRequest, Path], AbstractContextManager[RefusingDatabase]]


def sqlite_error(error: type[apsw.Error], reason: str) -> Fault:
    """SQLite on a disk whose writes fail with an error."""

    @contextmanager
    def open_database(request: pytest.FixtureRequest, folder: Path) -> Iterator[RefusingDatabase]:
        _ = request
        with failing_disk() as disk:
            yield RefusingDatabase(
                str(folder / "callsheet.db"),
                reason,
                lambda: setattr(disk, "error", error),
                lambda: setattr(disk, "error", None),
            )

    return open_database


@contextmanager
def postgres_read_only(request: pytest.FixtureRequest, folder: Path) -> Iterator[RefusingDatabase]:
    """PostgreSQL whose sessions are read-only, as after a failover to a standby."""
    _ = folder
    pool: DatabasePool = request.getfixturevalue("database_pool")
    url = pool.acquire()
    name = urlsplit(url).path.removeprefix("/")

    def run(statement: str) -> None:
        with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as connection:
            connection.execute(statement.encode())
            connection.execute(f"SELECT pg_terminate_backend(pid) {_OTHER_SESSIONS}")

    yield RefusingDatabase(
        url,
        READ_ONLY,
        lambda: run(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'),
        lambda: run(f'ALTER DATABASE "{name}" RESET default_transaction_read_only'),
    )
    pool.release(url)


@contextmanager
def postgres_missing_rights(request: pytest.FixtureRequest, folder: Path) -> Iterator[RefusingDatabase]:
    """PostgreSQL with a user of its own, whose rights are revoked."""
    _ = folder
    pool: DatabasePool = request.getfixturevalue("database_pool")
    url, user = pool.acquire(), f"tester_{secrets.token_hex(4)}"
    parts = urlsplit(url)
    with psycopg.connect(url, autocommit=True) as connection:

        def run(statement: str) -> None:
            connection.execute(statement.format(user=user).encode())

        run("CREATE ROLE {user} LOGIN")
        run("GRANT CREATE, USAGE ON SCHEMA public TO {user}")
        run("GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}")
        yield RefusingDatabase(
            parts._replace(netloc=f"{user}@{parts.hostname}:{parts.port}").geturl(),
            MISSING_RIGHTS,
            lambda: run("REVOKE INSERT, UPDATE ON ALL TABLES IN SCHEMA public FROM {user}"),
            lambda: run("GRANT INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {user}"),
        )
        run("DROP OWNED BY {user}")
        run("DROP ROLE {user}")
    pool.release(url)


FAULTS: dict[str, Fault] = {
    "sqlite on a full disk": sqlite_error(apsw.FullError, DISK_FULL),
    "sqlite on a read-only disk": sqlite_error(apsw.ReadOnlyError, READ_ONLY),
    "sqlite on a broken disk": sqlite_error(apsw.IOError, DISK_ERROR),
    "sqlite with a damaged file": sqlite_error(apsw.CorruptError, DAMAGED),
    "postgresql in read-only mode": postgres_read_only,
    "postgresql without rights": postgres_missing_rights,
}
