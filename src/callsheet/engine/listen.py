"""Hearing other processes: PostgreSQL's notifications as hints. Losing them costs one poll, nothing else."""

from collections.abc import Callable

from callsheet.config import Settings
from callsheet.engine.background import Background
from callsheet.store.connection import Database, StoreError
from callsheet.store.postgres import PostgresConnection, PostgresDatabase

Heard = Callable[[list[str]], None]
_SLICE_SECONDS = 0.25
_PAUSE_SECONDS = 1.0


class Listener(Background):
    """A thread that listens and passes hints on; it connects again for as long as it lives."""

    def __init__(self, database: PostgresDatabase, heard: Heard) -> None:
        super().__init__("listener")
        self._database = database
        self._heard = heard

    @classmethod
    def of(cls, database: Database, heard: Heard, settings: Settings) -> "Listener | None":
        """Return a listener where there is something to listen to."""
        if isinstance(database, PostgresDatabase) and not settings.pooled:
            return cls(database, heard)
        return None

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                connection = self._database.connect(reading=True)
            except StoreError:
                self._stopping.wait(_PAUSE_SECONDS)
                continue
            try:
                self._listen(connection)
            except StoreError:
                self._stopping.wait(_PAUSE_SECONDS)
            finally:
                connection.close()

    def _listen(self, connection: PostgresConnection) -> None:
        connection.listen()
        while not self._stopping.is_set():
            connection.hear(_SLICE_SECONDS, lambda kinds: self._heard(kinds.split()))
