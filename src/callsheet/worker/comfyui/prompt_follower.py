"""A prompt from its submission to its end: looked at until the server says how it ended, whatever else is heard.

What a server says by itself makes this quick; what decides is a look. A prompt is lost when two looks in a row find
neither a place in the queue nor a record of it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from callsheet.worker.comfyui.adapters.base import (
    NOT_FOUND,
    ComfyAccessDeniedError,
    ComfyBackend,
    ComfyUnreachableError,
    EventStream,
    ProgressEvent,
    PromptEnded,
    PromptResult,
    PromptStatus,
)
from callsheet.worker.comfyui.timeouts import Timeouts

_FIRST_POLL_SECONDS = 0.1
_ABSENCES_MAX = 2
_FAILED_PICTURES_SECONDS = 1.0
"""How long pictures of a prompt that failed are waited for."""
_STOP_CHECK_SECONDS = 0.25
"""How long a wish to stop goes unheard at most."""

EventCallback = Callable[[ProgressEvent], None]
Check = Callable[[], None]
"""Raises if the work is to stop."""
AllReceived = Callable[[], bool]
"""Says whether all is here that comes over the socket alone."""


OutageCallback = Callable[[ComfyUnreachableError | None], None]
"""Told that the server does not answer, and that it does again."""


class PromptTimeoutError(Exception):
    """The prompt's time is over."""


class Follower:
    """One prompt at one server."""

    def __init__(
        self, comfy: ComfyBackend, ref: str, timeouts: Timeouts, on_outage: OutageCallback = lambda _: None
    ) -> None:
        self._comfy = comfy
        self._ref = ref
        self._timeouts = timeouts
        self._on_outage = on_outage
        self._absences = 0
        self._unreachable_since: float | None = None
        self.end_seen = False
        """Whether the server's last word on it was heard."""

    def wait_until_ended(
        self, live: EventStream, on_event: EventCallback, check: Check, all_received: AllReceived = lambda: True
    ) -> PromptResult:
        """Wait for the end; tell what is heard on the way."""
        deadline = time.monotonic() + self._timeouts.prompt_timeout_seconds
        interval = min(_FIRST_POLL_SECONDS, self._timeouts.poll_seconds)
        while True:
            status = self._poll_status()
            if isinstance(status, PromptResult):
                self._forward_events(live, 0.0, on_event)
                if status.outcome in {"succeeded", "failed"}:
                    succeeded = status.outcome == "succeeded"
                    self._receive_rest(
                        live,
                        on_event,
                        check,
                        all_received,
                        self._timeouts.picture_timeout_seconds if succeeded else _FAILED_PICTURES_SECONDS,
                    )
                return status
            if time.monotonic() >= deadline:
                raise PromptTimeoutError
            self._wait(live, interval, on_event, check)
            interval = min(interval * 2, self._timeouts.poll_seconds)

    def _poll_status(self) -> PromptStatus:
        """Look once; silence is borne for a while, one slow answer is none."""
        try:
            status = self._comfy.get_status(self._ref)
        except ComfyUnreachableError as error:
            now = time.monotonic()
            self._unreachable_since = self._unreachable_since or now
            if now - self._unreachable_since >= self._timeouts.outage_timeout_seconds:
                raise
            self._on_outage(error)
            return "running"
        if self._unreachable_since is not None:
            self._unreachable_since = None
            self._on_outage(None)
        self._absences = self._absences + 1 if status == NOT_FOUND else 0
        if self._absences >= _ABSENCES_MAX:
            return PromptResult("lost", error="The ComfyUI server lost the prompt.", retryable=True)
        return status

    def _wait(self, live: EventStream, interval: float, on_event: EventCallback, check: Check) -> None:
        deadline = time.monotonic() + interval
        while (remaining := deadline - time.monotonic()) > 0:
            check()
            events = self._forward_events(live, min(remaining, _STOP_CHECK_SECONDS), on_event)
            if any(isinstance(event, PromptEnded) for event in events):
                return
        check()

    def _forward_events(self, live: EventStream, seconds: float, on_event: EventCallback) -> Sequence[ProgressEvent]:
        """Tell what has come, and return it."""
        events = live.receive(self._ref, seconds)
        for event in events:
            self.end_seen = self.end_seen or isinstance(event, PromptEnded)
            on_event(event)
        return events

    def _receive_rest(
        self, live: EventStream, on_event: EventCallback, check: Check, all_received: AllReceived, silence: float
    ) -> None:
        """Go on listening for what is missing: a server has a record of the end while it still encodes pictures.

        It says everything in order, so nothing comes after its last word.
        """
        deadline = time.monotonic() + silence
        while not (self.end_seen or all_received()) and (remaining := deadline - time.monotonic()) > 0:
            check()
            if self._forward_events(live, min(remaining, _STOP_CHECK_SECONDS), on_event):
                deadline = time.monotonic() + silence

    def stop(self) -> None:
        """Cancel until the server says that it is over: an interrupt may be lost, or act only at the next node."""
        deadline = time.monotonic() + self._timeouts.cancel_timeout_seconds
        interval = min(_FIRST_POLL_SECONDS, self._timeouts.poll_seconds)
        while True:
            try:
                self._comfy.cancel(self._ref)
                status = self._poll_status()
            except ComfyUnreachableError:
                status = "running"
            if isinstance(status, PromptResult):
                forget(self._comfy, self._ref)
                return
            if time.monotonic() >= deadline:
                return
            time.sleep(interval)
            interval = min(interval * 2, self._timeouts.poll_seconds)


def forget(comfy: ComfyBackend, ref: str) -> None:
    """Let the server drop its record. It keeps thousands, so one that stays does no harm."""
    with suppress(ComfyUnreachableError, ComfyAccessDeniedError):
        comfy.forget(ref)


def open_events(comfy: ComfyBackend, prompt_id: str) -> closing[EventStream]:
    """Listen for as long as a block lasts."""
    return closing(comfy.listen(prompt_id))
