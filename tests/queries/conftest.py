"""The server of the HTTP tests, for tests of the query layer."""

from tests.http.conftest import live_server

__all__ = ["live_server"]
