"""A prompt from its submission to its end: looked at until the server says how it ended, whatever else is heard.

What a server says by itself makes this quick; what decides is a look. A prompt is lost when two looks in a row find
neither a place in the queue nor a record of it.
"""

import time
from collections.abc import Callable
from contextlib import closing, suppress

from callsheet.worker.comfyui.base import ABSENT, Away, Comfy, Declined, Ended, Live, Look, News, Over
from callsheet.worker.comfyui.pace import Pace

_FIRST_SECONDS = 0.1
_ABSENCES = 2
_SLICE_SECONDS = 0.25
"""How long a wish to stop goes unheard at most."""

Hear = Callable[[News], None]
Check = Callable[[], None]
"""Raises if the work is to stop."""


class TookTooLong(Exception):  # noqa: N818 - it says what happened
    """The prompt's time is over."""


class Follower:
    """One prompt at one server."""

    def __init__(self, comfy: Comfy, ref: str, pace: Pace) -> None:
        self._comfy = comfy
        self._ref = ref
        self._pace = pace
        self._absences = 0
        self._silent_since: float | None = None

    def until_ended(self, live: Live, hear: Hear, check: Check) -> Ended:
        """Wait for the end; tell what is heard on the way."""
        until = time.monotonic() + self._pace.limit_seconds
        gap = _FIRST_SECONDS
        while True:
            seen = self._look()
            if isinstance(seen, Ended):
                self._drain(live, hear)
                return seen
            if time.monotonic() >= until:
                raise TookTooLong
            self._wait(live, gap, hear, check)
            gap = min(gap * 2, self._pace.poll_seconds)

    def _look(self) -> Look:
        """Look once; silence is borne for a while, one slow answer is none."""
        try:
            seen = self._comfy.look(self._ref)
        except Away:
            now = time.monotonic()
            self._silent_since = self._silent_since or now
            if now - self._silent_since >= self._pace.away_seconds:
                raise
            return "running"
        self._silent_since = None
        self._absences = self._absences + 1 if seen == ABSENT else 0
        if self._absences >= _ABSENCES:
            return Ended("lost", error="The ComfyUI server lost the prompt.", retryable=True)
        return seen

    def _wait(self, live: Live, gap: float, hear: Hear, check: Check) -> None:
        until = time.monotonic() + gap
        while (left := until - time.monotonic()) > 0:
            check()
            over = False
            for news in live.heard(self._ref, min(left, _SLICE_SECONDS)):
                over = over or isinstance(news, Over)
                hear(news)
            if over:
                return
        check()

    def _drain(self, live: Live, hear: Hear) -> None:
        """Tell what had come before the end was seen."""
        for news in live.heard(self._ref, 0.0):
            hear(news)

    def stop(self) -> None:
        """Cancel until the server says that it is over: an interrupt may be lost, or act only at the next node."""
        until = time.monotonic() + self._pace.cancel_seconds
        gap = _FIRST_SECONDS
        while True:
            try:
                self._comfy.cancel(self._ref)
                seen = self._look()
            except Away:
                seen = "running"
            if isinstance(seen, Ended):
                forget(self._comfy, self._ref)
                return
            if time.monotonic() >= until:
                return
            time.sleep(gap)
            gap = min(gap * 2, self._pace.poll_seconds)


def forget(comfy: Comfy, ref: str) -> None:
    """Let the server drop its record. It keeps thousands, so one that stays does no harm."""
    with suppress(Away, Declined):
        comfy.forget(ref)


def listening(comfy: Comfy, prompt_id: str) -> closing[Live]:
    """Listen for as long as a block lasts."""
    return closing(comfy.listen(prompt_id))
