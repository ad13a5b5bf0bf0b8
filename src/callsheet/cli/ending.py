"""Waiting for the end of a command that goes on until it is told to end."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

LOOK_SECONDS = 0.25
_PARTING_SECONDS = 1.0


class Ending:
    """Waits for SIGINT or SIGTERM. The first one ends things in order, a second one at once."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._interrupts = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until somebody asks for the end, or for so long.

        The system may hand a signal to any thread, and Python acts on it in this one only: so it looks up now and then.
        """
        until = float("inf") if seconds is None else time.monotonic() + seconds
        while not self._asked.is_set() and (rest := until - time.monotonic()) > 0:
            self._asked.wait(min(rest, LOOK_SECONDS))

    def during(self, call: Callable[[], object]) -> None:
        """Do something that ends early when the end is asked for."""
        self._interrupts = True
        try:
            if not self._asked.is_set():
                call()
        except KeyboardInterrupt:
            self._asked.set()
        finally:
            self._interrupts = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        _ = frame
        if self._asked.is_set():
            os._exit(128 + number)
        self._asked.set()
        if self._interrupts:
            raise KeyboardInterrupt


def leave_behind() -> None:
    """End the process, everything being closed, if a thread hangs that Python would wait for: in a storage, say."""
    until = time.monotonic() + _PARTING_SECONDS
    left = [one for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
    for one in left:
        one.join(max(until - time.monotonic(), 0))
    if any(one.is_alive() for one in left):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
