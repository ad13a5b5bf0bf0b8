"""Parses the `outputs` of a prompt and selects those that the task returns."""

from collections.abc import Iterable, Iterator
from typing import Any

from callsheet.worker.comfyui.adapters.base import Output

_TEXT_KEYS = ("text", "string")
_KEY_ORDER = ("videos", "gifs", "images", "audio", "files")


def parse_outputs(outputs: Any) -> tuple[Output, ...]:
    """Return all outputs, by node. The key of an output does not tell its file type."""
    if not isinstance(outputs, dict):
        return ()
    found = (
        output
        for node, fields in outputs.items()
        if isinstance(fields, dict)
        for output in _node_outputs(str(node), fields)
    )
    return tuple(dict.fromkeys(found))


def _node_outputs(node: str, fields: dict[str, Any]) -> Iterator[Output]:
    for key in sorted(fields, key=lambda key: _KEY_ORDER.index(key) if key in _KEY_ORDER else len(_KEY_ORDER)):
        items = fields[key] if isinstance(fields[key], list) else [fields[key]]
        for item in items:
            if isinstance(item, dict) and isinstance(item.get("filename"), str) and item["filename"]:
                yield Output(
                    node, item["filename"], str(item.get("subfolder") or ""), str(item.get("type") or "output")
                )
            elif isinstance(item, str) and key in _TEXT_KEYS:
                yield Output(node, key, kind="text", text=item)


def select_outputs(outputs: Iterable[Output], output_node: str | None) -> list[Output]:
    """Return the outputs of the output node; without one, all saved outputs, else the temporary ones."""
    candidates = [output for output in outputs if output_node is None or output.node == output_node]
    saved = [output for output in candidates if output.kind not in {"temp", "input"}]
    files = [output for output in saved if output.text is None]
    temporary = [output for output in candidates if output.kind == "temp"]
    return saved if files or not temporary else temporary + saved
