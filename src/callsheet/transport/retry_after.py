"""The `Retry-After` header of a response (RFC 9110, section 10.2.3)."""

import re
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

RETRY_AFTER_SECONDS_MAX = 60.0
"""A server cannot make a client wait longer than this."""
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def parse_retry_after(
    header: str | None, default_seconds: float = 0.0, now: Callable[[], float] = time.time
) -> float:  # fmt: skip
    """Return the requested delay in seconds, at most `RETRY_AFTER_SECONDS_MAX`.

    The header is a number of seconds or an HTTP date. Without a valid header the result is `default_seconds`.
    """
    text = (header or "").strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), RETRY_AFTER_SECONDS_MAX)
    try:
        seconds = parsedate_to_datetime(text).timestamp() - now()
    except (ValueError, OverflowError):
        return default_seconds
    return min(max(seconds, 0.0), RETRY_AFTER_SECONDS_MAX)
