"""PostgreSQL databases lent to one test after the other: emptying one costs a fraction of making one."""

import asyncio

import asyncpg

from callsheet.core.rows import ROWS
from tests.support.postgres import Cluster

_OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
_EMPTY = "; ".join(f"DELETE FROM {row.TABLE}" for row in ROWS)
_SECONDS = 5.0


class Places:
    """Databases of a cluster whose template has the schema; when lent they have no rows."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._spare: list[str] = []

    def lend(self) -> str:
        return self._spare.pop() if self._spare else self._cluster.create_database()

    def give_back(self, url: str) -> None:
        """Empty a database for the next test; one that cannot be emptied is dropped."""
        if asyncio.run(_emptied(url)):
            self._spare.append(url)
        else:
            self._cluster.drop(url)


async def _emptied(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url, command_timeout=_SECONDS)
    except (OSError, asyncpg.PostgresError):
        return False
    try:
        # Whoever is still connected is a process that a test killed: it must not write into the next test.
        await connection.execute(f"SELECT pg_terminate_backend(pid) {_OTHERS}")
        if await connection.fetchval(f"SELECT count(*) {_OTHERS}"):
            return False
        await connection.execute(_EMPTY)
    except (OSError, TimeoutError, asyncpg.PostgresError):
        return False
    finally:
        await connection.close()
    return True
