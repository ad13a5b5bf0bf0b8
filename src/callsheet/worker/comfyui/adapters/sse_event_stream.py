"""Server-sent events of the Comfy API v2, read in a background thread.

The stream has no event ids and cannot resume. Each event contains the full state, so missed events do not matter.
"""

import base64
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import httpx

from callsheet.transport.backoff import backoff_delays
from callsheet.transport.sse_parser import SseEventTooLargeError, SseParser
from callsheet.worker.comfyui.adapters.base import OverallProgress, Preview, ProgressEvent, PromptEnded

_EVENTS_MAX = 256
_EVENT_BYTES_MAX = 64 << 20
_RECONNECT_SECONDS, _RECONNECT_SECONDS_MAX = 0.5, 30.0
_STREAM_ERRORS = (httpx.HTTPError, httpx.StreamError, OSError, SseEventTooLargeError)
_END_STATUSES = {"succeeded", "failed", "canceled", "expired"}

OpenStream = Callable[[str], AbstractContextManager[httpx.Response]]
"""Opens the event stream of a job."""


class SseEventStream:
    """The events of one job."""

    ready, disconnects = False, 0

    def __init__(self, open_stream: OpenStream) -> None:
        self._open_stream = open_stream
        self._event_queue: queue.Queue[ProgressEvent] = queue.Queue(_EVENTS_MAX)
        self._closed = threading.Event()
        self._response: httpx.Response | None = None
        self._thread: threading.Thread | None = None

    def receive(self, ref: str, seconds: float) -> Sequence[ProgressEvent]:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._read_events, args=(ref,), name="callsheet-comfy-events", daemon=True
            )
            self._thread.start()
        received: list[ProgressEvent] = []
        with suppress(queue.Empty):
            received.append(self._event_queue.get(timeout=seconds) if seconds > 0 else self._event_queue.get_nowait())
            while True:
                received.append(self._event_queue.get_nowait())
        return received

    def close(self) -> None:
        """End the thread, which may be blocked in a read."""
        self._closed.set()
        if self._response is not None:
            stream = self._response.extensions.get("network_stream")
            raw = stream.get_extra_info("socket") if stream is not None else None
            if raw is not None:
                with suppress(OSError):
                    raw.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join(1.0)

    def _read_events(self, ref: str) -> None:
        delays = backoff_delays(_RECONNECT_SECONDS, _RECONNECT_SECONDS_MAX)
        while not self._closed.is_set():
            started_at = time.monotonic()
            with suppress(*_STREAM_ERRORS), self._open_stream(ref) as response:
                self._response = response
                if response.is_success and not self._closed.is_set():
                    for event in _read_chunks(response):
                        self._enqueue(event)
                        if isinstance(event, PromptEnded):
                            return
            if time.monotonic() - started_at > _RECONNECT_SECONDS_MAX:
                delays = backoff_delays(_RECONNECT_SECONDS, _RECONNECT_SECONDS_MAX)
            self._closed.wait(next(delays))

    def _enqueue(self, event: ProgressEvent) -> None:
        """Add an event; drop the oldest if the queue is full."""
        while True:
            try:
                self._event_queue.put_nowait(event)
            except queue.Full:
                with suppress(queue.Empty):
                    self._event_queue.get_nowait()
            else:
                return


def _read_chunks(response: httpx.Response) -> Iterator[ProgressEvent]:
    parser = SseParser(_EVENT_BYTES_MAX)
    for chunk in response.iter_bytes():
        for event in parser.feed(chunk):
            yield from _parse_event(event.name, event.data)


def _parse_event(name: str, body: bytes) -> Iterator[ProgressEvent]:
    try:
        data: Any = json.loads(body)
    except ValueError:
        return
    if not isinstance(data, dict):
        return
    if name == "progress" and isinstance(data.get("value"), int | float):
        yield OverallProgress(float(data["value"]), data.get("current_node"))
    elif name == "preview":
        with suppress(ValueError):
            yield Preview(base64.b64decode(data.get("data_base64") or ""))
    elif name == "status" and data.get("status") in _END_STATUSES:
        yield PromptEnded()
