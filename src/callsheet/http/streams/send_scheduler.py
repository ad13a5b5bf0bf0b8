"""Turns: how many streams send before the event loop does other work.

Streams wait in lines, one line per job or tenant. A few of them get a turn, one line after the other; then they pause,
so that requests are answered and other threads run. So a tenant with many streams does not delay anybody else.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

TURNS_MAX = 32
"""How many streams send between two pauses: about two milliseconds of work."""
_PAUSE_SECONDS = 0.001
"""The shortest time that an event loop can wait."""

Turn = asyncio.Future[bool]
"""Becomes True when the stream may send."""


class Line:
    """Streams of one job or tenant that wait for their turn."""

    __slots__ = ("on_empty", "turns")

    def __init__(self, on_empty: Callable[[], None]) -> None:
        self.turns: deque[Turn] = deque()
        self.on_empty = on_empty
        """Called when the last stream gets its turn."""


class Turns:
    """Gives turns to the streams of all lines."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque()
        """Lines that are not empty."""
        self._scheduled = False

    def join(self, line: Line, turns: Iterable[Turn]) -> None:
        """Let streams wait at the end of their line."""
        was_empty = not line.turns
        line.turns.extend(turns)
        if was_empty and line.turns:
            self._lines.append(line)
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        """Give some turns, then pause."""
        given = 0
        while self._lines and given < TURNS_MAX:
            line = self._lines.popleft()
            turn = line.turns.popleft()
            if line.turns:
                self._lines.append(line)
            else:
                line.on_empty()
            if not turn.done():
                turn.set_result(True)
                given += 1
        self._scheduled = bool(self._lines)
        if self._scheduled:
            asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._give)
