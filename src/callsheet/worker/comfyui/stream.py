"""Server-sent events of the Comfy API v2: read in a thread of their own, taken by the one who follows the job.

The stream has no ids and does not resume: each event says all that there is to know, so what is missed is no loss.
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

from callsheet.worker.comfyui.base import Fraction, News, Over, Preview

_EVENTS_MAX = 256
_AGAIN_SECONDS, _AGAIN_SECONDS_MAX = 0.5, 30.0
_OVER = {"succeeded", "failed", "canceled", "expired"}

Open = Callable[[str], AbstractContextManager[httpx.Response]]
"""Opens the stream of a job."""


class Stream:
    """The news of one job."""

    ready, cuts = False, 0

    def __init__(self, opened: Open) -> None:
        self._opened = opened
        self._news: queue.Queue[News] = queue.Queue(_EVENTS_MAX)
        self._closed = threading.Event()
        self._response: httpx.Response | None = None
        self._thread: threading.Thread | None = None

    def heard(self, ref: str, seconds: float) -> Sequence[News]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, args=(ref,), name="callsheet-comfy-events", daemon=True)
            self._thread.start()
        found: list[News] = []
        with suppress(queue.Empty):
            found.append(self._news.get(timeout=seconds) if seconds > 0 else self._news.get_nowait())
            while True:
                found.append(self._news.get_nowait())
        return found

    def close(self) -> None:
        """End the thread, which may be waiting for the server's next word."""
        self._closed.set()
        if self._response is not None:
            stream = self._response.extensions.get("network_stream")
            raw = stream.get_extra_info("socket") if stream is not None else None
            if raw is not None:
                with suppress(OSError):
                    raw.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join(1.0)

    def _read(self, ref: str) -> None:
        pause = _AGAIN_SECONDS
        while not self._closed.is_set():
            began = time.monotonic()
            with suppress(httpx.HTTPError, httpx.StreamError, OSError), self._opened(ref) as response:
                self._response = response
                if response.is_success and not self._closed.is_set():
                    for news in _events(response.iter_lines()):
                        self._put(news)
                        if isinstance(news, Over):
                            return
            if time.monotonic() - began > _AGAIN_SECONDS_MAX:
                pause = _AGAIN_SECONDS
            self._closed.wait(pause)
            pause = min(pause * 2, _AGAIN_SECONDS_MAX)

    def _put(self, news: News) -> None:
        """Keep the newest: whoever is slow misses what is older."""
        while True:
            try:
                self._news.put_nowait(news)
            except queue.Full:
                with suppress(queue.Empty):
                    self._news.get_nowait()
            else:
                return


def _events(lines: Iterator[str]) -> Iterator[News]:
    name, data = "", []
    for line in lines:
        field, _, value = line.partition(":")
        if field == "event":
            name = value.strip()
        elif field == "data":
            data.append(value.removeprefix(" "))
        elif not line:
            yield from _event(name, "\n".join(data))
            name, data = "", []


def _event(name: str, text: str) -> Iterator[News]:
    try:
        data: Any = json.loads(text)
    except ValueError:
        return
    if not isinstance(data, dict):
        return
    if name == "progress" and isinstance(data.get("value"), int | float):
        yield Fraction(float(data["value"]), data.get("current_node"))
    elif name == "preview":
        with suppress(ValueError):
            yield Preview(base64.b64decode(data.get("data_base64") or ""))
    elif name == "status" and data.get("status") in _OVER:
        yield Over()
