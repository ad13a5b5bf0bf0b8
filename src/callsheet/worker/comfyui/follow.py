"""A prompt from its submission to its end: looked at until the server says how it ended, whatever else is heard.

What a server says by itself makes this quick; what decides is a look. A prompt is lost when two looks in a row find
neither a place in the queue nor a record of it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from callsheet.worker.comfyui.base import ABSENT, Away, Comfy, Declined, Ended, Live, Look, News, Over
from callsheet.worker.comfyui.pace import Pace

_FIRST_SECONDS = 0.1
_ABSENCES = 2
_EVIDENCE_SECONDS = 1.0
"""How long pictures of a prompt that failed are waited for."""
_SLICE_SECONDS = 0.25
"""How long a wish to stop goes unheard at most."""

Hear = Callable[[News], None]
Check = Callable[[], None]
"""Raises if the work is to stop."""
Whole = Callable[[], bool]
"""Says whether all is here that comes over the socket alone."""


Silent = Callable[[Away | None], None]
"""Told that the server does not answer, and that it does again."""


class TookTooLong(Exception):  # noqa: N818 - it says what happened
    """The prompt's time is over."""


class Follower:
    """One prompt at one server."""

    def __init__(self, comfy: Comfy, ref: str, pace: Pace, silent: Silent = lambda _: None) -> None:
        self._comfy = comfy
        self._ref = ref
        self._pace = pace
        self._silent = silent
        self._absences = 0
        self._silent_since: float | None = None
        self.over = False
        """Whether the server's last word on it was heard."""

    def until_ended(self, live: Live, hear: Hear, check: Check, whole: Whole = lambda: True) -> Ended:
        """Wait for the end; tell what is heard on the way."""
        until = time.monotonic() + self._pace.limit_seconds
        gap = min(_FIRST_SECONDS, self._pace.poll_seconds)
        while True:
            seen = self._look()
            if isinstance(seen, Ended):
                self._told(live, 0.0, hear)
                if seen.outcome in {"succeeded", "failed"}:
                    good = seen.outcome == "succeeded"
                    self._hear_out(live, hear, check, whole, self._pace.silence_seconds if good else _EVIDENCE_SECONDS)
                return seen
            if time.monotonic() >= until:
                raise TookTooLong
            self._wait(live, gap, hear, check)
            gap = min(gap * 2, self._pace.poll_seconds)

    def _look(self) -> Look:
        """Look once; silence is borne for a while, one slow answer is none."""
        try:
            seen = self._comfy.look(self._ref)
        except Away as error:
            now = time.monotonic()
            self._silent_since = self._silent_since or now
            if now - self._silent_since >= self._pace.away_seconds:
                raise
            self._silent(error)
            return "running"
        if self._silent_since is not None:
            self._silent_since = None
            self._silent(None)
        self._absences = self._absences + 1 if seen == ABSENT else 0
        if self._absences >= _ABSENCES:
            return Ended("lost", error="The ComfyUI server lost the prompt.", retryable=True)
        return seen

    def _wait(self, live: Live, gap: float, hear: Hear, check: Check) -> None:
        until = time.monotonic() + gap
        while (left := until - time.monotonic()) > 0:
            check()
            heard = self._told(live, min(left, _SLICE_SECONDS), hear)
            if any(isinstance(news, Over) for news in heard):
                return
        check()

    def _told(self, live: Live, seconds: float, hear: Hear) -> Sequence[News]:
        """Tell what has come, and return it."""
        heard = live.heard(self._ref, seconds)
        for news in heard:
            self.over = self.over or isinstance(news, Over)
            hear(news)
        return heard

    def _hear_out(self, live: Live, hear: Hear, check: Check, whole: Whole, silence: float) -> None:
        """Go on listening for what is missing: a server has a record of the end while it still encodes pictures.

        It says everything in order, so nothing comes after its last word.
        """
        until = time.monotonic() + silence
        while not (self.over or whole()) and (left := until - time.monotonic()) > 0:
            check()
            if self._told(live, min(left, _SLICE_SECONDS), hear):
                until = time.monotonic() + silence

    def stop(self) -> None:
        """Cancel until the server says that it is over: an interrupt may be lost, or act only at the next node."""
        until = time.monotonic() + self._pace.cancel_seconds
        gap = min(_FIRST_SECONDS, self._pace.poll_seconds)
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
