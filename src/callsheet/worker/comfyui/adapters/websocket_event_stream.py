"""`WebSocketEventStream`: events from the WebSocket of a ComfyUI server, with automatic reconnects."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from callsheet.transport.backoff import backoff_delays
from callsheet.worker.comfyui.adapters import websocket_messages as websocket_frames
from callsheet.worker.comfyui.adapters.base import ProgressEvent

_OPEN_SECONDS = 10.0
_RECONNECT_SECONDS, _RECONNECT_SECONDS_MAX = 0.5, 30.0
_FRAME_BYTES_MAX = 64 << 20
_FRAMES_MAX = 1_024
"""Frames buffered before ComfyUI is slowed down; large, because uploads to the Callsheet server may be slow."""
_CLOSE_SECONDS = 1.0


class WebSocketEventStream:
    """One client of one server. Not thread-safe."""

    def __init__(self, url: str, *, exclusive: bool, use_env_proxy: bool) -> None:
        self._url = url
        self._exclusive = exclusive
        self._use_env_proxy = use_env_proxy
        self._reader = websocket_frames.MessageReader(exclusive=exclusive)
        self._connection: ClientConnection | None = None
        self._exit_stack = ExitStack()
        self._reconnect_at = 0.0
        self._reconnect_delays = _reconnect_delays()
        self.disconnects = 0
        self.open()

    @property
    def ready(self) -> bool:
        """On a shared connection, images must name their prompt, which the server has to confirm first."""
        return self._connection is not None and (self._exclusive or self._reader.features_negotiated)

    def open(self) -> None:
        """Connect, unless the reconnect delay has not passed yet."""
        if self._connection is not None or time.monotonic() < self._reconnect_at:
            return
        try:
            connection = connect(
                self._url, open_timeout=_OPEN_SECONDS, close_timeout=_CLOSE_SECONDS, max_size=_FRAME_BYTES_MAX,
                max_queue=_FRAMES_MAX, compression=None, proxy=True if self._use_env_proxy else None,
            )  # fmt: skip
            self._connection = self._exit_stack.enter_context(connection)
            self._connection.send(websocket_frames.HELLO)
        except (OSError, WebSocketException):
            self._on_disconnect()
        else:
            self._reconnect_delays = _reconnect_delays()

    def receive(self, ref: str, seconds: float) -> Sequence[ProgressEvent]:
        """Return the events of a prompt; wait up to `seconds` for the first."""
        self.open()
        if self._connection is None:
            time.sleep(min(seconds, max(self._reconnect_at - time.monotonic(), 0.0)))
            return ()
        return [event for message in self._messages(seconds) for event in self._reader.read(message, ref)]

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
                self._on_disconnect()
                return
            wait = 0.0

    def _on_disconnect(self) -> None:
        self.close()
        self.disconnects += 1
        # A new reader forgets the running node: after the reconnect it may be another one.
        self._reader = websocket_frames.MessageReader(exclusive=self._exclusive)
        self._reconnect_at = time.monotonic() + next(self._reconnect_delays)

    def close(self) -> None:
        self._connection = None
        self._exit_stack.close()


def _reconnect_delays() -> Iterator[float]:
    return backoff_delays(_RECONNECT_SECONDS, _RECONNECT_SECONDS_MAX)
