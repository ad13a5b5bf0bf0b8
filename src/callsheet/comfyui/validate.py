"""Validation of the ComfyUI graph of a workflow definition: everything that can be checked without a server."""

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import msgspec

from callsheet.comfyui.node_info import is_link, is_socket
from callsheet.comfyui.placeholders import count_placeholders, iter_texts
from callsheet.comfyui.template import (
    describe_mismatch,
    graph_texts,
    iter_targets,
    parse_file_ref,
    placements,
    resolve_values,
    rewrite_graph,
)
from callsheet.core.model.comfyui_graph import ComfySpec, Graph
from callsheet.core.model.errors import BadInput
from callsheet.core.model.plural import pluralize
from callsheet.core.policy.engine_limits import Limits

EXPORT_HINT = "In ComfyUI choose Workflow > Export (API). If it is missing, turn on Dev mode in Settings."
_INPUTS_HINT = "Add it to inputs, or remove it."
_PLACEHOLDER_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        r"__[A-Z0-9]+(?:_[A-Z0-9]+)*__", r"\{\{\s*[\w.-]+\s*\}\}", r"\$\{[\w.-]+\}", r"<<[\w.-]+>>", r"%[\w.-]+%",
    )
)  # fmt: skip
"""Shapes of placeholders. The first is always one; the others only if the definition uses them."""


class GraphIssue(NamedTuple):
    """One problem: its path in the spec, a message, and a hint what to do."""

    key_path: tuple[str | int, ...]
    message: str
    hint: str


def find_issues(spec: ComfySpec, limits: Limits) -> Iterator[GraphIssue]:
    """Yield the problems of a spec; inputs and values are only checked if the graph is valid."""
    valid = True
    for issue in find_graph_issues(spec.graph, limits):
        valid = False
        yield issue._replace(key_path=("graph", *issue.key_path))
    if valid:
        if (issue_of_size := _size_issue(spec, limits)) is not None:
            yield issue_of_size
            return
        yield from _target_issues(spec)
        yield from _placeholder_issues(spec)
        yield from _value_issues(spec)
        if spec.output_node is not None and spec.output_node not in spec.graph:
            message = f"The output_node {spec.output_node!r} is not in the graph."
            yield GraphIssue(("output_node",), message, f"Its nodes are {_list_some(spec.graph)}.")


def describe_unset_placeholder(spec: ComfySpec, schema: Any) -> str:
    """Return which placeholder may be left without a value; empty if none, or if the schema is too complex to tell."""
    if isinstance(schema, dict) and schema.keys() & {"$ref", "allOf", "anyOf", "oneOf", "if"}:
        return ""
    required = schema.get("required", ()) if isinstance(schema, dict) else ()
    with_value = {*spec.defaults, *spec.overrides, *spec.random, *required}
    name = next((name for name, text in spec.inputs.items() if isinstance(text, str) and name not in with_value), None)
    if name is None:
        return ""
    return f"The input {name!r} may have no value: require it in input_schema, or add a default."


def describe_invalid_input(spec: ComfySpec, input: Any) -> str:
    """Return what is wrong with an input for a valid spec; empty if it fits."""
    try:
        resolve_values(spec, input)
    except BadInput as error:
        return str(error)
    return ""


# -- the graph


def find_graph_issues(graph: Any, limits: Limits) -> Iterator[GraphIssue]:
    """Yield the problems of a graph; only one if it is not in the API format."""
    format_issue = _format_issue(graph, limits)
    if format_issue is not None:
        yield format_issue
        return
    broken = list(_node_issues(graph))
    yield from broken
    if not broken:
        yield from _link_issues(graph)
        yield from _cycle_issues(graph)


def _format_issue(graph: Any, limits: Limits) -> GraphIssue | None:
    if not isinstance(graph, dict):
        return GraphIssue((), "The graph is not an object with nodes by id.", EXPORT_HINT)
    if isinstance(graph.get("nodes"), list) and "links" in graph:
        return GraphIssue((), "The graph is in the editor's format; ComfyUI servers take the API format.", EXPORT_HINT)
    for name in ("prompt", "output"):
        if isinstance(graph.get(name), dict) and "class_type" not in graph[name]:
            return GraphIssue((), f"The graph is wrapped in {name!r}.", f"Use only the value of {name!r}.")
    if not graph:
        return GraphIssue((), "The graph is empty.", EXPORT_HINT)
    if len(graph) > limits.graph_nodes_max:
        message = f"The graph has {pluralize(len(graph), 'node')}; at most {limits.graph_nodes_max} are allowed."
        return GraphIssue((), message, "Split it.")
    if _is_deeper_than(graph, limits.input_depth_max):
        return GraphIssue((), f"The graph is nested deeper than {limits.input_depth_max} levels.", "Flatten it.")
    size = len(msgspec.json.encode(graph))
    if size > limits.graph_bytes_max:
        message = f"The graph has {pluralize(size, 'byte')}; at most {limits.graph_bytes_max} are allowed."
        return GraphIssue((), message, "Upload images and other data as files and refer to them.")
    return None


def _is_deeper_than(value: Any, levels: int) -> bool:
    """Return whether a value is nested deeper than `levels`, without recursing deeper."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper_than(item, levels - 1) for item in inner)


def _node_issues(graph: Graph) -> Iterator[GraphIssue]:
    for node, body in graph.items():
        if not isinstance(body, dict):
            yield GraphIssue((node,), f"Node {node!r} is not an object with class_type and inputs.", EXPORT_HINT)
        elif not (isinstance(body.get("class_type"), str) and body["class_type"]):
            yield GraphIssue((node,), f"Node {node!r} has no class_type.", EXPORT_HINT)
        elif not isinstance(body.get("inputs"), dict):
            yield GraphIssue(
                (node,), f"Node {node!r} ({body['class_type']}) has no inputs.", "Write {} if it has none."
            )


def _link_issues(graph: Graph) -> Iterator[GraphIssue]:
    for node, body in graph.items():
        for field, value in body["inputs"].items():
            key_path, location = (node, "inputs", field), f"{field!r} of node {node} ({body['class_type']})"
            if not is_link(value):
                if is_socket(body["class_type"], field):
                    message = f"{location} is a value, but must be a link to another node."
                    yield GraphIssue(key_path, message, 'Write ["<node>", <output>].')
            elif value[0] not in graph:
                message = f"{location} links to node {value[0]!r}, which is not in the graph."
                yield GraphIssue(key_path, message, "Link to an existing node.")
            elif not isinstance(value[1], int) or value[1] < 0:
                yield GraphIssue(key_path, f"{location} links to output {value[1]}.", "The first output is 0.")


def _cycle_issues(graph: Graph) -> Iterator[GraphIssue]:
    try:
        TopologicalSorter({node: _upstream_nodes(graph, node) for node in graph}).prepare()
    except CycleError as error:
        cycle = error.args[1][::-1]
        message = f"Nodes link in a circle: {' → '.join(cycle[:12])}."
        yield GraphIssue((cycle[0],), message, "Remove one of these links.")


def _upstream_nodes(graph: Graph, node: str) -> list[str]:
    return [value[0] for value in graph[node]["inputs"].values() if is_link(value) and value[0] in graph]


# -- inputs and values


def _size_issue(spec: ComfySpec, limits: Limits) -> GraphIssue | None:
    """Return the issue of a spec with too many inputs, or too many places for their values."""
    if len(spec.inputs) > limits.graph_inputs_max:
        message = f"The graph has {len(spec.inputs)} inputs; at most {limits.graph_inputs_max} are allowed."
        return GraphIssue(("inputs",), message, "Remove some.")
    placeholders = [text for text in spec.inputs.values() if isinstance(text, str) and text]
    places = sum(1 for _ in iter_targets(spec)) + count_placeholders(graph_texts(spec.graph), placeholders)
    if places > limits.graph_placements_max:
        message = f"Inputs are inserted at {places} places; at most {limits.graph_placements_max} are allowed."
        return GraphIssue(("inputs",), message, "Choose placeholders that occur less often.")
    return None


def _target_issues(spec: ComfySpec) -> Iterator[GraphIssue]:
    input_by_field: dict[tuple[str, str], str] = {}
    for name, target in iter_targets(spec):
        key_path: tuple[str | int, ...] = ("inputs", name)
        body = spec.graph.get(target.node)
        if body is None:
            yield GraphIssue(
                key_path, f"There is no node {target.node!r}.", f"The graph's nodes are {_list_some(spec.graph)}."
            )
            continue
        where = f"node {target.node} ({body['class_type']})"
        if target.field not in body["inputs"]:
            yield GraphIssue(
                key_path, f"There is no field {target.field!r} in {where}.", f"It has {_list_some(body['inputs'])}."
            )
        elif is_link(body["inputs"][target.field]):
            message = f"{target.field!r} of {where} is a link to another node and cannot be set."
            yield GraphIssue(key_path, message, f"Set a field of node {body['inputs'][target.field][0]} instead.")
        elif input_by_field.setdefault((target.node, target.field), name) != name:
            other = input_by_field[target.node, target.field]
            message = f"{target.field!r} of {where} is also set by {other!r}."
            yield GraphIssue(key_path, message, "Let one input set it.")


def _placeholder_issues(spec: ComfySpec) -> Iterator[GraphIssue]:
    placeholders = {name: text for name, text in spec.inputs.items() if isinstance(text, str)}
    for name, text in placeholders.items():
        for other, longer in placeholders.items():
            if other != name and text and text in longer:
                message = f"The placeholder {text!r} is part of the placeholder of {other!r}."
                yield GraphIssue(("inputs", name), message, "Choose texts that are not part of each other.")
    used = {placement.input for placement in placements(spec)} if all(placeholders.values()) else set()
    for name, text in placeholders.items():
        if name not in used:
            message = f"The placeholder {text!r} is not in the graph." if text else "A placeholder is empty."
            yield GraphIssue(
                ("inputs", name), message, "Add it to the graph, or set node and field: { node = …, field = … }."
            )
    if all(placeholders.values()):
        yield from _leftover_issues(spec, list(placeholders.values()))


def _leftover_issues(spec: ComfySpec, placeholders: list[str]) -> Iterator[GraphIssue]:
    """Yield texts that look like placeholders but belong to no input."""
    patterns = [
        pattern
        for no, pattern in enumerate(_PLACEHOLDER_PATTERNS)
        if no == 0 or any(map(pattern.fullmatch, placeholders))
    ]
    rewritten_graph = rewrite_graph(spec, lambda _: "")
    for node, body in rewritten_graph.items():
        for field, value in body["inputs"].items():
            for text in iter_texts(value):
                for pattern in patterns:
                    for found in pattern.findall(text):
                        message = f"{found!r} in {field!r} of node {node} ({body['class_type']}) belongs to no input."
                        yield GraphIssue(
                            ("graph", node, "inputs", field), message, "Add it to inputs, or change the text."
                        )


def _value_issues(spec: ComfySpec) -> Iterator[GraphIssue]:
    for part, with_value in (("defaults", spec.defaults), ("overrides", spec.overrides)):
        for name in with_value.keys() - spec.inputs.keys():
            yield GraphIssue((part, name), f"There is no input {name!r} in this graph.", _INPUTS_HINT)
        for placement in placements(spec):
            value = with_value.get(placement.input)
            if value is None:
                continue
            problem = describe_mismatch(placement, parse_file_ref(value, trusted=True) or value, from_job=False)
            if problem:
                yield GraphIssue((part, placement.input), f"{placement.input!r} {problem}.", "Set another value.")
    for name in spec.random:
        if name not in spec.inputs:
            yield GraphIssue(("random",), f"There is no input {name!r} in this graph.", _INPUTS_HINT)


def _list_some(names: Any) -> str:
    """Return the first names as a list for messages."""
    listed = [repr(name) for _, name in zip(range(12), names, strict=False)]
    return ", ".join(listed) + (", …" if len(names) > len(listed) else "")
