"""`Follower`: follows a submitted prompt until it ends.

Events of the server only trigger a status query early; the status query decides. A prompt counts as lost when two
queries in a row find it neither in the queue nor in the history.
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
"""How long to wait for the images of a failed prompt."""
_STOP_CHECK_SECONDS = 0.25
"""Maximum delay until a stop request is noticed."""

EventCallback = Callable[[ProgressEvent], None]
Check = Callable[[], None]
"""Raises if the task must stop."""
AllReceived = Callable[[], bool]
"""Returns whether all images that are only sent over the WebSocket have arrived."""


OutageCallback = Callable[[ComfyUnreachableError | None], None]
"""Called with the error when an outage begins, with None when it ends."""


class PromptTimeoutError(Exception):
    """The prompt exceeded its timeout."""


class Follower:
    """Follows one prompt on one server."""

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
        """Whether the final event of the prompt was received."""

    def wait_until_ended(
        self, event_stream: EventStream, on_event: EventCallback, check: Check, all_received: AllReceived = lambda: True
    ) -> PromptResult:
        """Wait until the prompt ends; forward its events."""
        deadline = time.monotonic() + self._timeouts.prompt_timeout_seconds
        interval = min(_FIRST_POLL_SECONDS, self._timeouts.poll_seconds)
        while True:
            status = self._poll_status()
            if isinstance(status, PromptResult):
                self._forward_events(event_stream, 0.0, on_event)
                if status.outcome in {"succeeded", "failed"}:
                    succeeded = status.outcome == "succeeded"
                    self._receive_rest(
                        event_stream,
                        on_event,
                        check,
                        all_received,
                        self._timeouts.picture_timeout_seconds if succeeded else _FAILED_PICTURES_SECONDS,
                    )
                return status
            if time.monotonic() >= deadline:
                raise PromptTimeoutError
            self._wait(event_stream, interval, on_event, check)
            interval = min(interval * 2, self._timeouts.poll_seconds)

    def _poll_status(self) -> PromptStatus:
        """Query the status once. An outage up to its timeout counts as running."""
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

    def _wait(self, event_stream: EventStream, interval: float, on_event: EventCallback, check: Check) -> None:
        deadline = time.monotonic() + interval
        while (remaining := deadline - time.monotonic()) > 0:
            check()
            events = self._forward_events(event_stream, min(remaining, _STOP_CHECK_SECONDS), on_event)
            if any(isinstance(event, PromptEnded) for event in events):
                return
        check()

    def _forward_events(
        self, event_stream: EventStream, seconds: float, on_event: EventCallback
    ) -> Sequence[ProgressEvent]:
        """Forward the received events and return them."""
        events = event_stream.receive(self._ref, seconds)
        for event in events:
            self.end_seen = self.end_seen or isinstance(event, PromptEnded)
            on_event(event)
        return events

    def _receive_rest(
        self,
        event_stream: EventStream,
        on_event: EventCallback,
        check: Check,
        all_received: AllReceived,
        quiet_seconds: float,
    ) -> None:
        """Receive missing images after the end: the server records the end while it still encodes them.

        Events arrive in order, so nothing follows the final event.
        """
        deadline = time.monotonic() + quiet_seconds
        while not (self.end_seen or all_received()) and (remaining := deadline - time.monotonic()) > 0:
            check()
            if self._forward_events(event_stream, min(remaining, _STOP_CHECK_SECONDS), on_event):
                deadline = time.monotonic() + quiet_seconds

    def stop(self) -> None:
        """Cancel until the server confirms the end: an interrupt may be lost or take effect at the next node."""
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
    """Delete the server's record of a prompt. Failures are ignored: a leftover record does no harm."""
    with suppress(ComfyUnreachableError, ComfyAccessDeniedError):
        comfy.forget(ref)


def open_events(comfy: ComfyBackend, prompt_id: str) -> closing[EventStream]:
    """Open the event stream as a context manager."""
    return closing(comfy.listen(prompt_id))
