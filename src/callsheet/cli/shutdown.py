"""Shutdown of commands that run until SIGINT or SIGTERM."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

POLL_SECONDS = 0.25
_EXIT_WAIT_SECONDS = 1.0


class ShutdownSignal:
    """Waits for SIGINT or SIGTERM. The first requests an orderly shutdown, the second exits at once."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._raise_on_signal = False
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    @property
    def requested(self) -> bool:
        return self._requested.is_set()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until a shutdown is requested, or for this many seconds.

        The system may deliver a signal to any thread, but Python handles it in the main thread only, so this polls.
        """
        deadline = float("inf") if seconds is None else time.monotonic() + seconds
        while not self._requested.is_set() and (remaining := deadline - time.monotonic()) > 0:
            self._requested.wait(min(remaining, POLL_SECONDS))

    def run_interruptible(self, call: Callable[[], object]) -> None:
        """Run a call that a shutdown signal interrupts."""
        self._raise_on_signal = True
        try:
            if not self._requested.is_set():
                call()
        except KeyboardInterrupt:
            self._requested.set()
        finally:
            self._raise_on_signal = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        _ = frame
        if self._requested.is_set():
            os._exit(128 + number)
        self._requested.set()
        if self._raise_on_signal:
            raise KeyboardInterrupt


def exit_despite_hanging_threads() -> None:
    """Exit even if a thread hangs that Python would wait for, such as one in a storage call."""
    deadline = time.monotonic() + _EXIT_WAIT_SECONDS
    threads = [one for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
    for one in threads:
        one.join(max(deadline - time.monotonic(), 0))
    if any(one.is_alive() for one in threads):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
