"""Starts a server on the database of a fixture's parameter; a module of tests shares the server."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.settings import HttpSettings
from tests.support.databases.database_pool import DatabasePool
from tests.support.processes.live_server import LiveServer

DATABASES = ["sqlite", "postgresql"]


@contextmanager
def start_server(
    request: pytest.FixtureRequest, data: Path, http: HttpSettings | None = None, **options: Any
) -> Iterator[LiveServer]:
    """Run a server on SQLite or PostgreSQL, whichever is the parameter of the fixture."""
    http = replace(http or HttpSettings(), failed_auth_max=1_000_000)  # the tests send many invalid keys
    if request.param == "sqlite":
        with LiveServer(data / "callsheet.db", data, http, **options) as server:
            yield server
        return
    database_pool: DatabasePool = request.getfixturevalue("database_pool")
    url = database_pool.acquire()
    with LiveServer(url, data, http, **options) as server:
        yield server
    database_pool.release(url)
