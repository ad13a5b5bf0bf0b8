"""Waiting for the end of a command that goes on until it is told to end."""

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
    """Waits for SIGINT or SIGTERM. The first one ends things in order, a second one at once."""

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
        """Wait until somebody asks for the end, or for so long.

        The system may hand a signal to any thread, and Python acts on it in this one only: so it looks up now and then.
        """
        deadline = float("inf") if seconds is None else time.monotonic() + seconds
        while not self._requested.is_set() and (remaining := deadline - time.monotonic()) > 0:
            self._requested.wait(min(remaining, POLL_SECONDS))

    def run_interruptible(self, call: Callable[[], object]) -> None:
        """Do something that ends early when the end is asked for."""
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
    """End the process, everything being closed, if a thread hangs that Python would wait for: in a storage, say."""
    deadline = time.monotonic() + _EXIT_WAIT_SECONDS
    threads = [one for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
    for one in threads:
        one.join(max(deadline - time.monotonic(), 0))
    if any(one.is_alive() for one in threads):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
