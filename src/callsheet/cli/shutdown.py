"""Shutdown of commands that run until SIGINT or SIGTERM."""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self

POLL_SECONDS = 0.25
_WAKEUP_BYTES = 4_096
_EXIT_WAIT_SECONDS = 1.0


class ShutdownSignal:
    """Waits for SIGINT or SIGTERM. The first requests an orderly shutdown, the second exits at once.

    A start may take long, because the database is away or another server migrates it. In an `interrupting` block, the
    first signal therefore raises KeyboardInterrupt, which ends the `with` block of the ShutdownSignal.

    A signal handler runs between any two instructions of the main thread, also while that thread holds the lock of a
    `threading.Event`; setting the event would then deadlock. The handler therefore only sets a flag. The interpreter
    writes a byte to a pipe for each signal, on whichever thread it arrives, and `wait` selects on that pipe.
    """

    def __init__(self) -> None:
        self.requested = False
        self._raise_on_signal = False
        self._previous_handlers: dict[int, Any] = {}
        self._previous_wakeup = -1
        self._wakeup_read, self._wakeup_write = -1, -1

    def __enter__(self) -> Self:
        self._wakeup_read, self._wakeup_write = os.pipe()
        os.set_blocking(self._wakeup_read, False)
        os.set_blocking(self._wakeup_write, False)
        self._previous_wakeup = signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        os.close(self._wakeup_read)
        os.close(self._wakeup_write)
        return kind is KeyboardInterrupt and self.requested

    def wait(self, seconds: float | None = None) -> None:
        """Wait until a shutdown is requested, or for this many seconds."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self.requested:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return
            select.select([self._wakeup_read], [], [], remaining)
            with suppress(BlockingIOError):
                os.read(self._wakeup_read, _WAKEUP_BYTES)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise KeyboardInterrupt in this block if a shutdown is requested, also if it was requested before."""
        self._raise_on_signal = True
        try:
            if not self.requested:
                yield
        finally:
            self._raise_on_signal = False
        if self.requested:  # also if the block caught the exception, as a finalizer does
            raise KeyboardInterrupt

    def run_interruptible(self, call: Callable[[], object]) -> None:
        """Run a call that a shutdown signal interrupts."""
        if not self.requested:
            with suppress(KeyboardInterrupt), self.interrupting():
                call()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        _ = frame
        if self.requested:
            os._exit(128 + number)
        self.requested = True
        if self._raise_on_signal:
            raise KeyboardInterrupt


def exit_despite_hanging_threads() -> None:
    """Exit even if a non-daemon thread hangs, for example in a storage call. Python would wait for it."""
    deadline = time.monotonic() + _EXIT_WAIT_SECONDS
    threads = [
        thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()
    ]
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    if any(thread.is_alive() for thread in threads):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
