"""A graph on its way to a server: its shape checked, its files named, its cached results put aside."""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

from callsheet.worker.comfyui.base import Graph, Rejected

_UI = ("nodes", "links")
_NONCE = "callsheet_nonce"
"""An input that no node has: ComfyUI ignores it, but does not take the node from its cache."""
_TEXT_CHARS_MIN = 4


def checked(graph: Any) -> Graph:
    """Return a graph of the API format; a server answers anything else with an error 500, or by dropping parts."""
    if not isinstance(graph, dict):
        raise Rejected("The graph is not an object of nodes.")
    if all(isinstance(graph.get(part), list) for part in _UI):
        raise Rejected("The graph is in the format of ComfyUI's editor; export it with Export (API).")
    if not graph:
        raise Rejected("The graph is empty.")
    wrong = [node for node, body in graph.items() if not _is_node(body)]
    if wrong:
        names = ", ".join(str(node) for node in wrong[:5])
        raise Rejected(f"Not a node with class_type and inputs: {names}.", tuple(wrong))
    return graph


def _is_node(body: Any) -> bool:
    return isinstance(body, dict) and isinstance(body.get("class_type"), str) and isinstance(body.get("inputs"), dict)


def filled(graph: Graph, files: Iterable[tuple[str, str, Any]]) -> Graph:
    """Return a copy in which (node, field) holds what the upload returned."""
    copy = deepcopy(graph)
    for node, field, value in files:
        if node not in copy:
            raise Rejected(f"A file is for node {node}, which the graph does not have.", (node,))
        copy[node]["inputs"][field] = value
    return copy


def anew(graph: Graph, nodes: Iterable[str], nonce: str) -> Graph:
    """Return a copy whose nodes are run again although their results are in the server's cache."""
    copy = deepcopy(graph)
    for node in nodes:
        if node in copy:
            copy[node]["inputs"][_NONCE] = nonce
    return copy


def class_of(graph: Graph, node: str | None) -> str:
    body = graph.get(node or "")
    return str(body["class_type"]) if body else ""


def texts(value: Any) -> Iterator[str]:
    """Yield the texts of a graph that say something: none of them may come back in an error."""
    if isinstance(value, str):
        if len(value) >= _TEXT_CHARS_MIN:
            yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts(part)


def inputs(graph: Graph) -> list[str]:
    """Return the texts among the inputs, the longest first."""
    found = {text for body in graph.values() for text in texts(body.get("inputs"))}
    return sorted(found, key=len, reverse=True)
