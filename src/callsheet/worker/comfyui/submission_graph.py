"""Prepares a graph for submission: validates its shape, fills in files, bypasses the server's cache."""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

from callsheet.worker.comfyui.adapters.base import ComfyRejectedError, Graph

_EDITOR_KEYS = ("nodes", "links")
_NONCE = "callsheet_nonce"
"""An input that no node defines. ComfyUI ignores it, but treats the node as changed."""
_TEXT_CHARS_MIN = 4


def validate_graph(graph: Any) -> Graph:
    """Check that a graph has the API format. Servers answer other formats with status 500 or drop nodes silently."""
    if not isinstance(graph, dict):
        raise ComfyRejectedError("The graph must be a JSON object of nodes.")
    if all(isinstance(graph.get(part), list) for part in _EDITOR_KEYS):
        raise ComfyRejectedError("The graph is in the editor format of ComfyUI. Export it with Export (API).")
    if not graph:
        raise ComfyRejectedError("The graph is empty.")
    invalid = [node for node, body in graph.items() if not _is_node(body)]
    if invalid:
        names = ", ".join(str(node) for node in invalid[:5])
        raise ComfyRejectedError(f"Every node needs class_type and inputs. Invalid: {names}.", tuple(invalid))
    return graph


def _is_node(body: Any) -> bool:
    return isinstance(body, dict) and isinstance(body.get("class_type"), str) and isinstance(body.get("inputs"), dict)


def fill_in_files(graph: Graph, files: Iterable[tuple[str, str, Any]]) -> Graph:
    """Return a copy with (node, field) set to the value of the uploaded file."""
    copy = deepcopy(graph)
    for node, field, value in files:
        if node not in copy:
            raise ComfyRejectedError(f"A file refers to node {node}, which the graph does not contain.", (node,))
        copy[node]["inputs"][field] = value
    return copy


def bypass_cache(graph: Graph, nodes: Iterable[str], nonce: str) -> Graph:
    """Return a copy in which the server runs these nodes even if their results are cached."""
    copy = deepcopy(graph)
    for node in nodes:
        if node in copy:
            copy[node]["inputs"][_NONCE] = nonce
    return copy


def class_of(graph: Graph, node: str | None) -> str:
    body = graph.get(node or "")
    return str(body["class_type"]) if body else ""


def iter_texts(value: Any) -> Iterator[str]:
    """Yield the texts of a value. Error messages must not contain them."""
    if isinstance(value, str):
        if len(value) >= _TEXT_CHARS_MIN:
            yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from iter_texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from iter_texts(part)


def input_texts(graph: Graph) -> list[str]:
    """Return the input texts of a graph, longest first."""
    found = {text for body in graph.values() for text in iter_texts(body.get("inputs"))}
    return sorted(found, key=len, reverse=True)
