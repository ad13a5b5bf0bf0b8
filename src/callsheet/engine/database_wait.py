"""Waits for a database that is away when a server starts: both may start at the same time, or it restarts."""

import time
from collections.abc import Callable

from callsheet.store.connection import ConnectionLost, Database, DatabaseUnusable

_RETRY_SECONDS, _RETRY_SECONDS_MAX = 0.1, 2.0


def wait_for_database(database: Database, seconds: float, announce: Callable[[str], None]) -> None:
    """Wait until a database answers; raise its error after `seconds`. `announce` gets the first error, as text."""
    end, pause = time.monotonic() + seconds, _RETRY_SECONDS
    announced = False
    while True:
        try:
            database.connect(reading=True).close()
        except DatabaseUnusable:
            raise
        except ConnectionLost as error:
            if time.monotonic() >= end:
                raise
            if not announced:
                announce(str(error))
            announced = True
        else:
            return
        time.sleep(min(pause, max(end - time.monotonic(), 0)))
        pause = min(pause * 2, _RETRY_SECONDS_MAX)
