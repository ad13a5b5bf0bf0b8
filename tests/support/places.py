"""PostgreSQL databases lent to one test after the other: emptying one costs a fraction of making one."""

import psycopg

from callsheet.core.rows import ROWS
from tests.support.postgres import Cluster

_OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
_EMPTY = "; ".join(f"DELETE FROM {row.TABLE}" for row in ROWS)
_SECONDS = 5


class Places:
    """Databases of a cluster whose template has the schema; when lent they have no rows."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._spare: list[str] = []

    def lend(self) -> str:
        return self._spare.pop() if self._spare else self._cluster.create_database()

    def give_back(self, url: str) -> None:
        """Empty a database for the next test; one that cannot be emptied is dropped."""
        if _emptied(url):
            self._spare.append(url)
        else:
            self._cluster.drop(url)


def _emptied(url: str) -> bool:
    try:
        with psycopg.connect(url, autocommit=True, options=f"-c statement_timeout={_SECONDS}s") as connection:
            # Whoever is still connected is a process that a test killed: it must not write into the next test.
            connection.execute(f"SELECT pg_terminate_backend(pid) {_OTHERS}")
            if connection.execute(f"SELECT 1 {_OTHERS}").fetchall():
                return False
            connection.execute(_EMPTY.encode())
    except psycopg.Error:
        return False
    return True
