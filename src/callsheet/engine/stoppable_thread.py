"""A thread that runs until it is stopped."""

import threading
from abc import ABC, abstractmethod


class BackgroundThread(ABC):
    """Base class of background threads."""

    def __init__(self, name: str) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"callsheet-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def name(self) -> str:
        return self._thread.name.removeprefix("callsheet-")

    def request_stop(self) -> None:
        """Request a stop after the current step."""
        self._stopping.set()

    def stop(self, timeout_seconds: float | None = None) -> bool:
        """Request a stop and wait for it; return whether the thread has ended."""
        self.request_stop()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    @abstractmethod
    def _work(self) -> None:
        """Do the work, checking `_stopping` regularly."""
