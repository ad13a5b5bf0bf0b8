"""Keys that end: held in one place, and fetched anew by one thread before they do."""

import threading
import time
from collections.abc import Callable
from typing import Final

from callsheet.blobs.base import KeysEnded
from callsheet.blobs.lenders import Lender, NotLent
from callsheet.blobs.sigv4 import S3Keys

EARLY_SECONDS: Final = 900.0
"""So long before the end new keys are asked for; AWS has some from five minutes before it on."""
_LAST_SECONDS: Final = 2.0
"""Keys that end so soon sign nothing more: an address is good for a second at least, and never longer than they."""
_EVERY_SECONDS: Final = 10.0


class Lent:
    """The keys of the moment; asking for them is quick, and never waits for whoever lends them."""

    def __init__(self, lender: Lender, now: Callable[[], float] = time.time) -> None:
        self._lender = lender
        self._now = now
        self._keys = lender()
        self._why = "they were not asked for"
        self._closing = threading.Event()

    def __call__(self) -> S3Keys:
        keys = self._keys
        if keys.left(self._now()) < _LAST_SECONDS:
            raise KeysEnded(self._why)
        return keys

    def start(self, every_seconds: float = _EVERY_SECONDS) -> None:
        """Look after the keys until they are closed. By the clock of the day: a machine that slept has old ones."""
        threading.Thread(target=self._work, args=(every_seconds,), name="callsheet-keys", daemon=True).start()

    def close(self) -> None:
        self._closing.set()

    def keep(self) -> None:
        """Fetch new keys if the old ones end soon; if there are none, the old ones hold until their end."""
        if self._keys.left(self._now()) > EARLY_SECONDS:
            return
        try:
            self._keys = self._lender()
            self._why = "those that are lent have ended too"
        except NotLent as why:
            self._why = str(why)

    def _work(self, every_seconds: float) -> None:
        while not self._closing.wait(every_seconds):
            self.keep()
