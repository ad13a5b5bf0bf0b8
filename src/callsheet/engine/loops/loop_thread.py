"""Runs a loop in a thread."""

from collections.abc import Callable

from callsheet.engine.loops.loop_protocol import Loop
from callsheet.engine.stoppable_thread import BackgroundThread


class LoopRunner(BackgroundThread):
    """Runs one loop until it is stopped; sleeps for an interval whenever nothing was due.

    An error is reported once, until the loop succeeds or fails with another error.
    """

    def __init__(
        self, loop: Loop, clock: Callable[[], int], interval_seconds: float, on_error: Callable[[Loop, Exception], None]
    ) -> None:
        super().__init__(type(loop).__name__.lower())
        self._loop = loop
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._on_error = on_error
        self._reported_error = ""

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                done = self._loop.run_once(self._clock())
                self._reported_error = ""
            except Exception as error:  # noqa: BLE001 - reported to on_error; the loop continues
                if repr(error) != self._reported_error:
                    self._on_error(self._loop, error)
                self._reported_error = repr(error)
                done = 0
            if not done:
                self._stopping.wait(self._interval_seconds)
