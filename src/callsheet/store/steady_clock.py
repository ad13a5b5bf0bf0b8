"""The engine's time: the database's clock, made steady, so that no wait grows when that clock is set back."""

import threading

from callsheet.core.model.clock import SECOND

_STOP_MAX = 5 * SECOND
"""A smaller step back stops the engine's time for as long. A larger one does not stop it."""
_SLOWDOWN = 10
"""Ahead of the database's clock, the engine's time runs slower by one part in this many."""


class SteadyClock:
    """Turns readings of the database's clock into the engine's time, which never goes back. Thread-safe.

    If the database's clock was set back, the engine's time continues from the newest time that it has seen. It is then
    ahead, and runs slower until the database's clock has caught up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest = 0
        """The newest engine time that was read or stored."""
        self._ahead = 0
        """How far the engine's time is ahead of the database's clock."""
        self._last_reading = 0

    def advance_to(self, at: int) -> None:
        """Make sure that the engine's time is not before a stored time."""
        with self._lock:
            self._newest = max(self._newest, at)

    def read(self, database_time: int) -> int:
        """Return the engine's time for a reading of the database's clock."""
        with self._lock:
            if database_time >= self._newest:
                self._ahead = 0
            else:
                self._ahead = max(self._ahead - max(database_time - self._last_reading, 0) // _SLOWDOWN, 0)
                if database_time + self._ahead < self._newest - _STOP_MAX:
                    self._ahead = self._newest - database_time
            self._last_reading = database_time
            self._newest = max(self._newest, database_time + self._ahead)
            return self._newest
