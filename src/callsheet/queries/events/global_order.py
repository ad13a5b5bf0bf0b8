"""The feed: the events of all tenants in the order of commits."""

from collections.abc import Iterator
from contextlib import contextmanager

from callsheet.core.model.errors import TemporarilyUnavailable
from callsheet.engine.reads.synchronous import BlockingReader, PositionedEvent
from callsheet.store.connection import StoreError

Position = tuple[int, int]
"""A position in the order of all events: transaction and id."""


class EventFeed:
    """Reads the events of all tenants in the order of commits. The methods block: call them from a thread.

    They raise `TemporarilyUnavailable` if the database does not answer.
    """

    def __init__(self, reads: BlockingReader) -> None:
        self._reads = reads
        self._position: Position | None = None

    def seek_end(self) -> None:
        """Skip all events that are visible now."""
        with store_errors_as_unavailable():
            self._position = self._reads.feed_end()

    def read_page(self, count: int) -> list[PositionedEvent]:
        """Return the next events; none before the first `seek_end`."""
        if self._position is None:
            return []
        with store_errors_as_unavailable():
            page = self._reads.feed(*self._position, count=count)
        if page:
            self._position = page[-1].position
        return page

    def subjects_not_yet_visible(self) -> list[str]:
        """Return the jobs with committed events that an older open transaction keeps out of the order of commits."""
        if self._position is None:
            return []
        with store_errors_as_unavailable():
            return self._reads.subjects_not_yet_visible(*self._position)


@contextmanager
def store_errors_as_unavailable() -> Iterator[None]:
    """Raise 503 if the database does not answer."""
    try:
        yield
    except StoreError as error:
        raise TemporarilyUnavailable(
            "unavailable", "The database does not answer. Retry after a second.", retry_after_seconds=1
        ) from error
