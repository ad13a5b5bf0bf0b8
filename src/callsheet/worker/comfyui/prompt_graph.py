"""A graph on its way to a server: its shape checked, its files named, its cached results put aside."""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

from callsheet.worker.comfyui.adapters.base import ComfyRejectedError, Graph

_EDITOR_KEYS = ("nodes", "links")
_NONCE = "callsheet_nonce"
"""An input that no node has: ComfyUI ignores it, but does not take the node from its cache."""
_TEXT_CHARS_MIN = 4


def validate_graph(graph: Any) -> Graph:
    """Return a graph of the API format; a server answers anything else with an error 500, or by dropping parts."""
    if not isinstance(graph, dict):
        raise ComfyRejectedError("The graph is not an object of nodes.")
    if all(isinstance(graph.get(part), list) for part in _EDITOR_KEYS):
        raise ComfyRejectedError("The graph is in the format of ComfyUI's editor; export it with Export (API).")
    if not graph:
        raise ComfyRejectedError("The graph is empty.")
    invalid = [node for node, body in graph.items() if not _is_node(body)]
    if invalid:
        names = ", ".join(str(node) for node in invalid[:5])
        raise ComfyRejectedError(f"Not a node with class_type and inputs: {names}.", tuple(invalid))
    return graph


def _is_node(body: Any) -> bool:
    return isinstance(body, dict) and isinstance(body.get("class_type"), str) and isinstance(body.get("inputs"), dict)


def fill_in_files(graph: Graph, files: Iterable[tuple[str, str, Any]]) -> Graph:
    """Return a copy in which (node, field) holds what the upload returned."""
    copy = deepcopy(graph)
    for node, field, value in files:
        if node not in copy:
            raise ComfyRejectedError(f"A file is for node {node}, which the graph does not have.", (node,))
        copy[node]["inputs"][field] = value
    return copy


def bypass_cache(graph: Graph, nodes: Iterable[str], nonce: str) -> Graph:
    """Return a copy whose nodes are run again although their results are in the server's cache."""
    copy = deepcopy(graph)
    for node in nodes:
        if node in copy:
            copy[node]["inputs"][_NONCE] = nonce
    return copy


def class_of(graph: Graph, node: str | None) -> str:
    body = graph.get(node or "")
    return str(body["class_type"]) if body else ""


def iter_texts(value: Any) -> Iterator[str]:
    """Yield the texts of a graph that say something: none of them may come back in an error."""
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
    """Return the texts among the inputs, the longest first."""
    found = {text for body in graph.values() for text in iter_texts(body.get("inputs"))}
    return sorted(found, key=len, reverse=True)
