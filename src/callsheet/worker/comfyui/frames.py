"""What comes over ComfyUI's WebSocket, read: text messages and binary frames."""

import json
import struct
from collections.abc import Iterator
from typing import Any

from callsheet.worker.comfyui.base import News, Nodes, Over, Preview

HELLO = json.dumps({"type": "feature_flags", "data": {"supports_preview_metadata": True}})
"""The first message of a client: previews then come with the prompt that they are of."""
_PREVIEW, _TEXT, _PREVIEW_WITH_METADATA = 1, 3, 4
_NUMBER = struct.Struct(">I")
_OVER = {"execution_success", "execution_error", "execution_interrupted"}
_PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")


class Reader:
    """Reads one connection, as long as it holds. `alone`: it hears of no other prompt, whatever is not said.

    A picture in the old form does not say whose it is: it is of the node that was said to run.
    """

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self._node: str | None = None
        self.agreed = False
        """Whether the server has answered what a client says of itself first."""

    def read(self, message: str | bytes, ref: str) -> Iterator[News]:
        """Yield what a message says of one prompt."""
        if isinstance(message, bytes):
            yield from self._binary(message, ref)
            return
        try:
            said = json.loads(message)
        except ValueError:
            return
        data = said.get("data") if isinstance(said, dict) else None
        self.agreed = self.agreed or (isinstance(data, dict) and said["type"] == "feature_flags")
        if not isinstance(data, dict):
            return
        mine = data.get("prompt_id") == ref or (self._alone and "prompt_id" not in data)  # so after a reconnect
        if mine and said.get("type") == "executing":
            self._node = _name(data.get("node"))
        if data.get("prompt_id") != ref:
            return
        yield from _text(said.get("type"), data)

    def _binary(self, frame: bytes, ref: str) -> Iterator[News]:
        kind, rest = _number(frame)
        if kind == _PREVIEW and self._alone:
            yield from _picture(_number(rest)[1], self._node)
        elif kind == _PREVIEW_WITH_METADATA:
            size, rest = _number(rest)
            try:
                metadata = json.loads(rest[:size])
            except ValueError:
                return
            if isinstance(metadata, dict) and metadata.get("prompt_id") == ref:
                yield from _picture(rest[size:], _name(metadata.get("node_id")))
        elif kind == _TEXT:
            return  # words of a node, such as how long it will take: nothing that a user needs


def _text(kind: Any, data: dict[str, Any]) -> Iterator[News]:
    node = data.get("node")
    if kind in _OVER or (kind == "executing" and node is None):
        yield Over()
    elif kind == "execution_cached" and isinstance(data.get("nodes"), list):
        yield Nodes(done=tuple(str(node) for node in data["nodes"]))
    elif kind == "progress_state" and isinstance(data.get("nodes"), dict):
        yield _states(data["nodes"])
    elif kind == "executed":
        yield Nodes(done=(str(node),))
    elif kind == "executing":
        yield Nodes(parts=((str(node), 0.0),))
    elif kind == "progress":
        yield Nodes(parts=((str(node), _part(data)),), steps=tuple(_steps({str(node): data})))


def _states(nodes: dict[str, Any]) -> Nodes:
    known = {str(node): state for node, state in nodes.items() if isinstance(state, dict)}
    return Nodes(
        done=tuple(node for node, state in known.items() if state.get("state") == "finished"),
        parts=tuple((node, _part(state)) for node, state in known.items() if state.get("state") == "running"),
        steps=tuple(_steps(known)),
    )


def _steps(states: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield how many steps nodes have; one that has not begun to count says 1.0."""
    return ((node, state["max"]) for node, state in states.items() if isinstance(state.get("max"), int))


def _part(state: dict[str, Any]) -> float:
    value, most = state.get("value"), state.get("max")
    return value / most if isinstance(value, int | float) and isinstance(most, int | float) and most > 0 else 0.0


def _number(frame: bytes) -> tuple[int, bytes]:
    if len(frame) < _NUMBER.size:
        return 0, b""
    return _NUMBER.unpack_from(frame)[0], frame[_NUMBER.size :]


def _picture(body: bytes, node: str | None) -> Iterator[News]:
    if body.startswith(_PICTURES):
        yield Preview(body, node)


def _name(node: Any) -> str | None:
    return None if node is None else str(node)
