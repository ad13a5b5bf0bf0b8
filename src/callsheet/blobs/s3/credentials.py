"""Keys that end: held in one place, and fetched anew by one thread before they do."""

import threading
import time
from collections.abc import Callable
from typing import Final

from callsheet.blobs.base import CredentialsExpired
from callsheet.blobs.s3.credential_sources import CredentialSource, CredentialsUnavailable
from callsheet.blobs.s3.sigv4 import S3Credentials

REFRESH_BEFORE_SECONDS: Final = 900.0
"""So long before the end new keys are asked for; AWS has some from five minutes before it on."""
_REMAINING_SECONDS_MIN: Final = 2.0
"""Keys that end so soon sign nothing more: an address is good for a second at least, and never longer than they."""
_CHECK_EVERY_SECONDS: Final = 10.0


class CachedCredentials:
    """The keys of the moment; asking for them is quick, and never waits for whoever lends them."""

    def __init__(self, source: CredentialSource, now: Callable[[], float] = time.time) -> None:
        self._source = source
        self._now = now
        self._keys = source()
        self._failure = "they were not asked for"
        self._closing = threading.Event()

    def __call__(self) -> S3Credentials:
        keys = self._keys
        if keys.remaining_seconds(self._now()) < _REMAINING_SECONDS_MIN:
            raise CredentialsExpired(self._failure)
        return keys

    def start(self, check_every_seconds: float = _CHECK_EVERY_SECONDS) -> None:
        """Look after the keys until they are closed. By the clock of the day: a machine that slept has old ones."""
        threading.Thread(
            target=self._refresh_loop, args=(check_every_seconds,), name="callsheet-keys", daemon=True
        ).start()

    def close(self) -> None:
        self._closing.set()

    def refresh_if_due(self) -> None:
        """Fetch new keys if the old ones end soon; if there are none, the old ones hold until their end."""
        if self._keys.remaining_seconds(self._now()) > REFRESH_BEFORE_SECONDS:
            return
        try:
            self._keys = self._source()
            self._failure = "those that are lent have ended too"
        except CredentialsUnavailable as reason:
            self._failure = str(reason)

    def _refresh_loop(self, check_every_seconds: float) -> None:
        while not self._closing.wait(check_every_seconds):
            self.refresh_if_due()
