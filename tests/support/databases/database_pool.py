"""A pool of PostgreSQL databases for tests: emptying a database is much faster than creating one."""

import psycopg

from callsheet.core.model.rows import ROWS
from tests.support.databases.postgres import Cluster

_OTHER_SESSIONS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
_DELETE_ALL_ROWS = "; ".join(f"DELETE FROM {row.TABLE}" for row in ROWS)
_STATEMENT_SECONDS = 5


class DatabasePool:
    """Databases of a cluster whose template has the schema; an acquired database has no rows."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._idle: list[str] = []

    def acquire(self) -> str:
        return self._idle.pop() if self._idle else self._cluster.create_database()

    def release(self, url: str) -> None:
        """Empty a database for the next test; one that cannot be emptied is dropped."""
        if _empty_database(url):
            self._idle.append(url)
        else:
            self._cluster.drop(url)


def _empty_database(url: str) -> bool:
    try:
        with psycopg.connect(url, autocommit=True, options=f"-c statement_timeout={_STATEMENT_SECONDS}s") as connection:
            # An open session belongs to a process that a test killed: it must not write into the next test.
            connection.execute(f"SELECT pg_terminate_backend(pid) {_OTHER_SESSIONS}")
            if connection.execute(f"SELECT 1 {_OTHER_SESSIONS}").fetchall():
                return False
            connection.execute(_DELETE_ALL_ROWS.encode())
    except psycopg.Error:
        return False
    return True
