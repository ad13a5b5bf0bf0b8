"""Rendering of a ComfyUI graph: inserts a job's values into the graph of a workflow definition.

Values are inserted into the parsed tree in one pass, never into JSON text, so a user's text cannot change the
structure of the graph. Precedence, lowest first: the graph's own value, the workflow's defaults, the overrides of an
extending workflow, the job's input.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from callsheet.comfyui.node_info import is_link, takes_file
from callsheet.comfyui.placeholders import iter_texts, split_at_placeholders, texts_with_placeholders
from callsheet.core.model.comfyui_graph import ComfySpec, FileSlot, Graph, RenderedGraph, Target
from callsheet.core.model.errors import BadInput
from callsheet.core.model.header_value_patterns import SHA256
from callsheet.core.model.plural import pluralize
from callsheet.core.policy.engine_limits import Limits

FILE_KEY, DIGEST_KEY = "$file", "sha256"


class FileRef(NamedTuple):
    """A value that refers to a file."""

    id: str
    sha256: str | None


class Placement(NamedTuple):
    """One place in the graph where an input's value is inserted."""

    input: str
    node: str
    field: str
    how: Literal["field", "leaf", "nested", "inner"]
    """`field`: a target field. `leaf`, `nested`: a placeholder that is a whole field, or a whole text within one.
    `inner`: a placeholder within a longer text."""
    class_type: str
    current: Any


def render(spec: ComfySpec, input: Any, task_id: str) -> RenderedGraph:
    """Return a copy of the graph with the values of a task."""
    values = resolve_values(spec, input, task_id)
    assets: list[FileSlot] = []

    def replacement_for(placement: Placement) -> Any:
        value = values.get(placement.input, placement.current)
        if isinstance(value, FileRef):
            assets.append(FileSlot(placement.node, placement.field, value.id, value.sha256, placement.input))
            return ""
        return value

    return RenderedGraph(rewrite_graph(spec, replacement_for), assets, spec.output_node)


def resolve_values(spec: ComfySpec, input: Any, task_id: str = "") -> dict[str, Any]:
    """Return the values of the inputs. Raises `BadInput` if a value is missing or its type does not fit the graph."""
    from_job = _job_values(spec, input)
    values: dict[str, Any] = {}
    for name in spec.inputs:
        value = next((source[name] for source in _value_sources(spec, from_job) if source.get(name) is not None), None)
        if value is not None:
            values[name] = parse_file_ref(value, trusted=name not in from_job) or value
        elif name in spec.random:
            values[name] = derive_seed(task_id, name)
    for placement in placements(spec):
        if placement.input in values:
            problem = describe_mismatch(placement, values[placement.input], from_job=placement.input in from_job)
        else:
            problem = "" if placement.how == "field" else "must have a value: the workflow has none for it"
        if problem:
            raise BadInput("invalid_input", f"{placement.input}: {problem}.")
    return values


def _job_values(spec: ComfySpec, input: Any) -> dict[str, Any]:
    """Return the values that the job sets; null means not set."""
    if input is not None and not isinstance(input, dict) and spec.inputs:
        raise BadInput("invalid_input", "input: must be an object with the workflow's inputs.")
    return {name: value for name, value in (input or {}).items() if value is not None} if spec.inputs else {}


def _value_sources(spec: ComfySpec, from_job: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return from_job, spec.overrides, spec.defaults


def check_rendered_size(spec: ComfySpec, values: dict[str, Any], limits: Limits) -> None:
    """Refuse values with which the graph becomes too large: each value is inserted at all of its placements."""
    sizes = {name: len(msgspec.json.encode(value)) for name, value in values.items()}
    inserted = sum(sizes.get(placement.input, 0) for placement in placements(spec))
    if inserted > limits.graph_values_bytes_max:
        most = limits.graph_values_bytes_max
        message = (
            f"input: its values take {pluralize(inserted, 'byte')} in the graph; at most {most} are allowed. Send "
            "shorter texts."
        )
        raise BadInput("input_too_large", message)


def derive_seed(task_id: str, name: str) -> int:
    """Return a seed that is derived from the task. It has 31 bits, which every seed field accepts."""
    return int.from_bytes(hashlib.sha256(f"{task_id}/{name}".encode()).digest()[:4]) >> 1


def parse_file_ref(value: Any, *, trusted: bool) -> FileRef | None:
    """Return the file that a value refers to, or None. A digest from a job is ignored: it is a cache key."""
    if not isinstance(value, dict) or not {FILE_KEY} <= value.keys() <= {FILE_KEY, DIGEST_KEY}:
        return None
    name, digest = value[FILE_KEY], value.get(DIGEST_KEY)
    if not isinstance(name, str) or not name:
        return None
    if digest is not None and not (isinstance(digest, str) and SHA256.match(digest)):
        return None
    return FileRef(name, digest if trusted else None)


def describe_mismatch(placement: Placement, value: Any, *, from_job: bool) -> str:
    """Return what is wrong with a value for its place; empty if it fits.

    A list never fits: ComfyUI would interpret a pair as a link to another node.
    """
    if isinstance(value, FileRef):
        is_whole_field = placement.how == "leaf" or (
            placement.how == "field" and isinstance(placement.current, str | None)
        )
        return "" if is_whole_field else f"must not be a file: {_describe_field(placement)} does not take a file"
    if from_job and takes_file(placement.class_type, placement.field):
        return 'must be a file: {"$file": "<id>"}'
    if isinstance(value, list | dict):
        return "must be a text, a number, true or false, or a file"
    if placement.how == "inner":
        return "must be a text or a number: it is part of a longer text" if isinstance(value, bool) else ""
    return _describe_type_mismatch(placement.current, value) if placement.how == "field" else ""


def _describe_type_mismatch(current: Any, value: Any) -> str:
    """Compare the type of a value with the graph's current value."""
    if isinstance(current, bool):
        return "" if isinstance(value, bool) else "must be true or false"
    if isinstance(current, int | float):
        return "" if isinstance(value, int | float) and not isinstance(value, bool) else "must be a number"
    if isinstance(current, str):
        return "" if isinstance(value, str) else "must be a text"
    return ""


def _describe_field(placement: Placement) -> str:
    return f"{placement.field!r} of node {placement.node} ({placement.class_type})"


# -- traversal of the graph


def placements(spec: ComfySpec) -> list[Placement]:
    """Return every place in the graph where a value is inserted."""
    found: list[Placement] = []

    def collect(placement: Placement) -> Any:
        found.append(placement)
        return ""

    rewrite_graph(spec, collect)
    return found


def rewrite_graph(spec: ComfySpec, replacement_for: Callable[[Placement], Any]) -> Graph:
    """Return a copy of a valid graph in which `replacement_for` provides the value at every placement."""
    inputs_by_field = {(target.node, target.field): name for name, target in iter_targets(spec)}
    placeholders = {text: name for name, text in spec.inputs.items() if isinstance(text, str) and text}
    with_placeholders = texts_with_placeholders(graph_texts(spec.graph), placeholders) if placeholders else set()

    def rewrite_value(placement: Placement, value: Any, how: Literal["leaf", "nested"]) -> Any:
        if isinstance(value, str):
            if value in placeholders:
                return replacement_for(placement._replace(input=placeholders[value], how=how, current=value))
            if value not in with_placeholders:
                return value
            parts = split_at_placeholders(value, placeholders)
            return "".join(before + (rewrite_inline(placement, text) if text else "") for before, text in parts)
        if isinstance(value, list):
            return list(value) if is_link(value) else [rewrite_value(placement, item, "nested") for item in value]
        if isinstance(value, dict):
            return {name: rewrite_value(placement, item, "nested") for name, item in value.items()}
        return value

    def rewrite_inline(placement: Placement, text: str) -> str:
        value = replacement_for(placement._replace(input=placeholders[text], how="inner", current=text))
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    def rewrite_field(placement: Placement, value: Any) -> Any:
        name = inputs_by_field.get((placement.node, placement.field))
        return (
            rewrite_value(placement, value, "leaf")
            if name is None
            else replacement_for(placement._replace(input=name, current=value))
        )

    return {
        node: {
            **body,
            "inputs": {
                name: rewrite_field(Placement("", node, name, "field", body["class_type"], None), value)
                for name, value in body["inputs"].items()
            },
        }
        for node, body in spec.graph.items()
    }


def graph_texts(graph: Graph) -> list[str]:
    """Return the texts in which placeholders are replaced."""
    return [text for body in graph.values() for value in body["inputs"].values() for text in iter_texts(value)]


def iter_targets(spec: ComfySpec) -> Iterator[tuple[str, Target]]:
    """Yield the target fields of inputs, with the name of the input."""
    for name, target_or_text in spec.inputs.items():
        if isinstance(target_or_text, Target):
            yield name, target_or_text
        elif isinstance(target_or_text, list):
            yield from ((name, target) for target in target_or_text)
