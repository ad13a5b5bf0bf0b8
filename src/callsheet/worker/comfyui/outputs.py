"""What a prompt made, as its server lists it, and which of it the task wants."""

from collections.abc import Iterable, Iterator
from typing import Any

from callsheet.worker.comfyui.base import Output

_TEXTS = ("text", "string")
_FIRST = ("videos", "gifs", "images", "audio", "files")


def listed(outputs: Any) -> tuple[Output, ...]:
    """Return everything in ComfyUI's `outputs`, by node; a key says nothing about what kind of file it is."""
    if not isinstance(outputs, dict):
        return ()
    found = (output for node, made in outputs.items() if isinstance(made, dict) for output in _of(str(node), made))
    return tuple(dict.fromkeys(found))


def _of(node: str, made: dict[str, Any]) -> Iterator[Output]:
    for key in sorted(made, key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST)):
        items = made[key] if isinstance(made[key], list) else [made[key]]
        for item in items:
            if isinstance(item, dict) and isinstance(item.get("filename"), str) and item["filename"]:
                yield Output(
                    node, item["filename"], str(item.get("subfolder") or ""), str(item.get("type") or "output")
                )
            elif isinstance(item, str) and key in _TEXTS:
                yield Output(node, key, kind="text", text=item)


def chosen(outputs: Iterable[Output], output_node: str | None) -> list[Output]:
    """Return what the task wants: the output node's, else all that was saved, else what was only shown."""
    mine = [output for output in outputs if output_node is None or output.node == output_node]
    saved = [output for output in mine if output.kind not in {"temp", "input"}]
    files = [output for output in saved if output.text is None]
    shown = [output for output in mine if output.kind == "temp"]
    return saved if files or not shown else shown + saved
