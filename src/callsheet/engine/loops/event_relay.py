"""Delivers events to a sink in the global order, from a cursor that is stored in the database.

The cursor advances after the sink returns. An event is delivered again after a crash, and never skipped.
"""

from collections.abc import Callable, Sequence

from callsheet.core.model.commands import AcquireCursor, AdvanceCursor, CursorPosition
from callsheet.engine.loops.loop_protocol import PAGE, CommandExecutor
from callsheet.engine.reads.synchronous import PositionedEvent


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

    def run_once(self, now: int) -> int:  # noqa: ARG002 - the cursor's lease is measured by the database's clock
        if self._last_position is not None and not self._engine.reads.feed(*self._last_position, 1):
            return 0  # no new events: an idle server writes nothing
        cursor: CursorPosition = self._engine.execute(AcquireCursor(name=self._name, holder=self._holder))
        if not cursor.reserved:
            return 0
        events = self._engine.reads.feed(cursor.tx, cursor.position, self._page)
        if events:
            self._sink(events)
            cursor = CursorPosition(*events[-1].position)
        self._last_position = (cursor.tx, cursor.position)
        self._engine.execute(
            AdvanceCursor(name=self._name, holder=self._holder, tx=cursor.tx, position=cursor.position)
        )
        return len(events)
