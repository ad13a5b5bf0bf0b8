"""A real PostgreSQL for the suite: databases cloned from one template that is prepared once.

The suite starts a temporary server, unless CALLSHEET_TEST_POSTGRES_URL names one (a maintenance URL whose user may
create databases). Only the temporary server can be killed, stopped and started.
"""

import atexit
import os
import secrets
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit

import psycopg

from tests.support.databases.postgres_server import SUPERUSER, Server

URL_VARIABLE = "CALLSHEET_TEST_POSTGRES_URL"


class Cluster:
    """A PostgreSQL server and its test databases; started when first used."""

    def __init__(self, maintenance_url: str | None = None, report: Callable[[str], None] = print) -> None:
        self._maintenance_url = maintenance_url
        self._report = report
        self._server: Server | None = None
        self._template: str | None = None
        self._databases: set[str] = set()
        atexit.register(self.close)

    @classmethod
    def from_environment(cls, report: Callable[[str], None] = print) -> Self:
        return cls(os.environ.get(URL_VARIABLE), report)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def url(self, database: str) -> str:
        parts = urlsplit(self._maintenance_url or self._own_url())
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme}://{parts.netloc}/{database}{query}"

    def template(self, prepare: Callable[[str], None]) -> None:
        """Create every later database as a copy of a template that `prepare` fills."""
        self._template = None
        url = self.create_database()
        prepare(url)
        self._template = _database_of(url)

    def create_database(self) -> str:
        name = f"callsheet_test_{secrets.token_hex(6)}"
        clone = f' TEMPLATE "{self._template}"' if self._template else ""
        self._administer(f'CREATE DATABASE "{name}"{clone}')
        self._databases.add(name)
        return self.url(name)

    def drop(self, url: str) -> None:
        name = _database_of(url)
        if name not in self._databases:
            raise ValueError(f"not a database of this cluster: {name}")
        self._administer(f'DROP DATABASE "{name}" WITH (FORCE)')
        self._databases.discard(name)

    def spend_transactions(self, count: int) -> None:
        """Raise the number of the next transaction, as other databases of the cluster do."""
        self._administer(f"DO $$ BEGIN FOR n IN 1..{count} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")

    def start(self, *, standby: bool = False) -> None:
        self._own().start(standby=standby)

    def promote(self) -> None:
        """Make a standby the primary server."""
        self._administer("SELECT pg_promote()")

    def stop(self) -> None:
        self._own().stop()

    def kill(self) -> None:
        self._own().kill()

    def close(self) -> None:
        atexit.unregister(self.close)
        if self._server:
            self._server.close()
            self._server = None
        elif self._maintenance_url:
            for name in sorted(self._databases):
                self.drop(self.url(name))
        self._databases.clear()

    def _own(self) -> Server:
        if self._maintenance_url:
            raise RuntimeError(f"the server in {URL_VARIABLE} cannot be started, stopped or killed by tests")
        if self._server is None:
            self._server = Server(self._report)
        return self._server

    def _own_url(self) -> str:
        server = self._own()
        if not server.port:
            server.start()
        return f"postgresql://{SUPERUSER}@127.0.0.1:{server.port}/postgres"

    def _administer(self, statement: str) -> None:
        url = self._maintenance_url or self._own_url()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())


def _database_of(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")
