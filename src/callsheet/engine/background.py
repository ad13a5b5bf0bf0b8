"""A thread that works until it is told to stop."""

import threading
from abc import ABC, abstractmethod


class Background(ABC):
    """Something that runs beside the engine."""

    def __init__(self, name: str) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"callsheet-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    @abstractmethod
    def _work(self) -> None:
        """Work, looking at `_stopping` every now and then."""
