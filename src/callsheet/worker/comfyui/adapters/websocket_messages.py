"""Parses the messages of ComfyUI's WebSocket: JSON text and binary frames."""

import json
import struct
from collections.abc import Iterator
from typing import Any

from callsheet.core.policy.magic_bytes import HEAD_BYTES, JPEG, PNG, sniff
from callsheet.worker.comfyui.adapters.base import NodeProgress, Preview, ProgressEvent, PromptEnded

HELLO = json.dumps({"type": "feature_flags", "data": {"supports_preview_metadata": True}})
"""The first message of a client: it requests previews that name their prompt."""
_PREVIEW, _TEXT, _PREVIEW_WITH_METADATA = 1, 3, 4
_UINT32 = struct.Struct(">I")
_END_EVENTS = {"execution_success", "execution_error", "execution_interrupted"}
_PICTURE_TYPES = {PNG, JPEG}


class MessageReader:
    """Parses the messages of one connection. `exclusive`: the connection receives events of one prompt only.

    An image in the old format does not name its node: it belongs to the node that was last reported as running.
    """

    def __init__(self, *, exclusive: bool) -> None:
        self._exclusive = exclusive
        self._node: str | None = None
        self.features_negotiated = False
        """Whether the server has answered the first message of the client."""

    def read(self, message: str | bytes, ref: str) -> Iterator[ProgressEvent]:
        """Yield the events of one prompt in a message."""
        if isinstance(message, bytes):
            yield from self._read_binary(message, ref)
            return
        try:
            decoded = json.loads(message)
        except ValueError:
            return
        data = decoded.get("data") if isinstance(decoded, dict) else None
        self.features_negotiated = self.features_negotiated or (
            isinstance(data, dict) and decoded["type"] == "feature_flags"
        )
        if not isinstance(data, dict):
            return
        # After a reconnect, the server reports the running node without a prompt id.
        belongs_to_prompt = data.get("prompt_id") == ref or (self._exclusive and "prompt_id" not in data)
        if belongs_to_prompt and decoded.get("type") == "executing":
            self._node = _node_id(data.get("node"))
        if data.get("prompt_id") != ref:
            return
        yield from _read_text(decoded.get("type"), data)

    def _read_binary(self, frame: bytes, ref: str) -> Iterator[ProgressEvent]:
        kind, payload = _read_uint32(frame)
        if kind == _PREVIEW and self._exclusive:
            yield from _read_picture(_read_uint32(payload)[1], self._node)
        elif kind == _PREVIEW_WITH_METADATA:
            size, payload = _read_uint32(payload)
            try:
                metadata = json.loads(payload[:size])
            except ValueError:
                return
            if isinstance(metadata, dict) and metadata.get("prompt_id") == ref:
                yield from _read_picture(payload[size:], _node_id(metadata.get("node_id")))
        elif kind == _TEXT:
            return  # progress text of a node: not used


def _read_text(kind: Any, data: dict[str, Any]) -> Iterator[ProgressEvent]:
    node = data.get("node")
    if kind in _END_EVENTS or (kind == "executing" and node is None):
        yield PromptEnded()
    elif kind == "execution_cached" and isinstance(data.get("nodes"), list):
        yield NodeProgress(done=tuple(str(node) for node in data["nodes"]))
    elif kind == "progress_state" and isinstance(data.get("nodes"), dict):
        yield _node_progress(data["nodes"])
    elif kind == "executed":
        yield NodeProgress(done=(str(node),))
    elif kind == "executing":
        yield NodeProgress(fractions=((str(node), 0.0),))
    elif kind == "progress":
        yield NodeProgress(fractions=((str(node), _fraction_of(data)),), steps=tuple(_step_counts({str(node): data})))


def _node_progress(nodes: dict[str, Any]) -> NodeProgress:
    states_by_node = {str(node): state for node, state in nodes.items() if isinstance(state, dict)}
    return NodeProgress(
        done=tuple(node for node, state in states_by_node.items() if state.get("state") == "finished"),
        fractions=tuple(
            (node, _fraction_of(state)) for node, state in states_by_node.items() if state.get("state") == "running"
        ),
        steps=tuple(_step_counts(states_by_node)),
    )


def _step_counts(states: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the number of steps of nodes; a node that has not started to count reports the float 1.0."""
    return ((node, state["max"]) for node, state in states.items() if isinstance(state.get("max"), int))


def _fraction_of(state: dict[str, Any]) -> float:
    value, maximum = state.get("value"), state.get("max")
    return (
        value / maximum if isinstance(value, int | float) and isinstance(maximum, int | float) and maximum > 0 else 0.0
    )


def _read_uint32(frame: bytes) -> tuple[int, bytes]:
    if len(frame) < _UINT32.size:
        return 0, b""
    return _UINT32.unpack_from(frame)[0], frame[_UINT32.size :]


def _read_picture(body: bytes, node: str | None) -> Iterator[ProgressEvent]:
    if sniff(body[:HEAD_BYTES]) in _PICTURE_TYPES:
        yield Preview(body, node)


def _node_id(node: Any) -> str | None:
    return None if node is None else str(node)
