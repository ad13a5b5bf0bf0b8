"""A thread that works until it is told to stop."""

import threading
from abc import ABC, abstractmethod


class BackgroundThread(ABC):
    """Something that runs beside the engine."""

    def __init__(self, name: str) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"callsheet-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def name(self) -> str:
        return self._thread.name.removeprefix("callsheet-")

    def request_stop(self) -> None:
        """Let it end when it has done what it is at."""
        self._stopping.set()

    def stop(self, timeout_seconds: float | None = None) -> bool:
        """Ask it to stop and wait until it has, for so long at most; say whether it has."""
        self.request_stop()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    @abstractmethod
    def _work(self) -> None:
        """Work, looking at `_stopping` every now and then."""
