"""The served Callsheet of the HTTP tests, for tests of what workers receive and report."""

from tests.http.conftest import live_server

__all__ = ["live_server"]
