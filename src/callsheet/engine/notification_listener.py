"""Receives PostgreSQL notifications of other processes as hints. A lost one only delays work until the next poll."""

from collections.abc import Callable

from callsheet.engine.stoppable_thread import BackgroundThread
from callsheet.settings import Settings
from callsheet.store.connection import Database, StoreError
from callsheet.store.postgres import PostgresConnection, PostgresDatabase

HintHandler = Callable[[list[str]], None]
_POLL_SECONDS = 0.25
_RECONNECT_SECONDS = 1.0


class Listener(BackgroundThread):
    """A thread that forwards notifications as hints, and reconnects until it is stopped."""

    def __init__(self, database: PostgresDatabase, on_hint: HintHandler) -> None:
        super().__init__("listener")
        self._database = database
        self._on_hint = on_hint

    @classmethod
    def for_database(cls, database: Database, on_hint: HintHandler, settings: Settings) -> "Listener | None":
        """Return a listener if the database has notifications."""
        if isinstance(database, PostgresDatabase) and not settings.transaction_pooling:
            return cls(database, on_hint)
        return None

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                connection = self._database.connect(reading=True)
            except StoreError:
                self._stopping.wait(_RECONNECT_SECONDS)
                continue
            try:
                self._listen(connection)
            except StoreError:
                self._stopping.wait(_RECONNECT_SECONDS)
            finally:
                connection.close()

    def _listen(self, connection: PostgresConnection) -> None:
        connection.listen()
        while not self._stopping.is_set():
            connection.wait_for_notifications(_POLL_SECONDS, lambda kinds: self._on_hint(kinds.split()))
