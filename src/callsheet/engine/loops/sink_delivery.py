"""Delivers events to a sink in the global order, from a cursor that is stored in the database.

The cursor advances after the sink returns. An event is delivered again after a crash, and never skipped.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from callsheet.core.model.clock import seconds
from callsheet.core.model.commands import AcquireCursor, AdvanceCursor, CursorPosition
from callsheet.core.model.plural import pluralize
from callsheet.engine.loops.loop_protocol import PAGE, CommandExecutor
from callsheet.engine.reads.synchronous import PositionedEvent

_RETRY_SECONDS, _RETRY_SECONDS_MAX = 1, 60
"""Delay after the first failure of a sink; it doubles with each further failure, up to the maximum."""


class DeliveryError(Exception):
    """A sink failed. The message names the sink and says when the events are delivered again."""


class Relay:
    """Delivers events to one sink. Of several relays with the same name, one holds the cursor at a time."""

    def __init__(
        self,
        engine: CommandExecutor,
        name: str,
        holder: str,
        sink: Callable[[Sequence[PositionedEvent]], None],
        page: int = PAGE,
    ) -> None:
        self._engine = engine
        self._name = name
        self._holder = holder
        self._sink = sink
        self._page = page
        self._last_position: tuple[int, int] | None = None
        self._failures = 0
        self._retry_at = 0

    def run_once(self, now: int) -> int:
        if now < self._retry_at <= now + seconds(_RETRY_SECONDS_MAX):  # a later time was set before the clock went back
            return 0
        if self._last_position is not None and not self._engine.reads.feed(*self._last_position, 1):
            return 0  # no new events: an idle server writes nothing
        cursor: CursorPosition = self._engine.execute(AcquireCursor(name=self._name, holder=self._holder))
        if not cursor.reserved:
            return 0
        events = self._engine.reads.feed(cursor.tx, cursor.position, self._page)
        if events:
            self._deliver(events, cursor, now)
            cursor = CursorPosition(*events[-1].position)
        self._last_position = (cursor.tx, cursor.position)
        self._advance(cursor)
        return len(events)

    def _deliver(self, events: Sequence[PositionedEvent], cursor: CursorPosition, now: int) -> None:
        """Call the sink. If it fails, release the cursor, so that a restarted server need not wait for its lock."""
        try:
            self._sink(events)
        except Exception as error:
            with suppress(Exception):  # the lock expires
                self._advance(cursor)
            delay = min(_RETRY_SECONDS * 2**self._failures, _RETRY_SECONDS_MAX)
            self._failures = min(self._failures + 1, _RETRY_SECONDS_MAX)
            self._retry_at = now + seconds(delay)
            raise DeliveryError(
                f"{self._name}: {type(error).__name__}: {error}. {pluralize(len(events), 'event')} will be delivered "
                f"again in {pluralize(delay, 'second')}."
            ) from error
        self._failures = 0

    def _advance(self, cursor: CursorPosition) -> None:
        self._engine.execute(
            AdvanceCursor(name=self._name, holder=self._holder, tx=cursor.tx, position=cursor.position)
        )
