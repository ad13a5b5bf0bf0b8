"""ComfyUI's WebSocket: news while it lasts. When it is cut it is opened again, and says how often it was."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from callsheet.worker.comfyui import frames
from callsheet.worker.comfyui.base import News

_OPEN_SECONDS = 10.0
_AGAIN_SECONDS, _AGAIN_SECONDS_MAX = 0.5, 30.0
_FRAME_BYTES_MAX = 64 << 20
_FRAMES_MAX = 1_024
"""How much may lie unread before the server has to wait: it must not wait for a slow house."""
_CLOSE_SECONDS = 1.0


class Socket:
    """One client of one server. Used by one thread."""

    def __init__(self, url: str, *, alone: bool, proxied: bool) -> None:
        self._url = url
        self._alone = alone
        self._proxied = proxied
        self._reader = frames.Reader(alone=alone)
        self._connection: ClientConnection | None = None
        self._held = ExitStack()
        self._again_at = 0.0
        self._pause = _AGAIN_SECONDS
        self.cuts = 0
        self.open()

    @property
    def ready(self) -> bool:
        """Where others are heard too, a picture has to say whose it is: the server has to have agreed to that."""
        return self._connection is not None and (self._alone or self._reader.agreed)

    def open(self) -> None:
        """Connect, unless that was tried a moment ago."""
        if self._connection is not None or time.monotonic() < self._again_at:
            return
        try:
            made = connect(
                self._url, open_timeout=_OPEN_SECONDS, close_timeout=_CLOSE_SECONDS, max_size=_FRAME_BYTES_MAX,
                max_queue=_FRAMES_MAX, compression=None, proxy=True if self._proxied else None,
            )  # fmt: skip
            self._connection = self._held.enter_context(made)
            self._connection.send(frames.HELLO)
        except (OSError, WebSocketException):
            self._lost()
        else:
            self._pause = _AGAIN_SECONDS

    def heard(self, ref: str, seconds: float) -> Sequence[News]:
        """Return what has come for a prompt; wait up to `seconds` for something."""
        self.open()
        if self._connection is None:
            time.sleep(min(seconds, max(self._again_at - time.monotonic(), 0.0)))
            return ()
        return [news for message in self._messages(seconds) for news in self._reader.read(message, ref)]

    def _messages(self, seconds: float) -> Iterator[str | bytes]:
        wait = seconds
        for _ in range(_FRAMES_MAX):
            try:
                if self._connection is None:
                    return
                yield self._connection.recv(timeout=wait)
            except TimeoutError:
                return
            except (OSError, WebSocketException):
                self._lost()
                return
            wait = 0.0

    def _lost(self) -> None:
        self.close()
        self.cuts += 1
        self._reader = frames.Reader(alone=self._alone)  # what ran may be over by the time it is heard again
        self._again_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _AGAIN_SECONDS_MAX)

    def close(self) -> None:
        self._connection = None
        self._held.close()
