"""A ComfyUI graph as part of a recipe: where a job's values go, and the graph that a worker sends.

Values go into the parsed tree, in one pass and never in text: what a user writes is one leaf, whatever it holds.
Later wins: the graph's own value, the workflow's defaults, what a workflow that extends it sets, the job's input.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from callsheet.core.comfy_info import is_link, takes_file
from callsheet.core.errors import BadInput
from callsheet.core.media import SHA256

Graph = dict[str, Any]
"""The API format: a node's id -> {class_type, inputs, _meta}."""
FILE, DIGEST = "$file", "sha256"


class Target(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field of a node."""

    node: str
    """The node's id in the graph."""
    field: str
    """The name of one of its inputs, which has a value and no link."""


class ComfySpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A graph, and what of it a job may set."""

    graph: Graph
    """The graph as ComfyUI exports it with Export (API): a file in the folder of the workflow, or a table. At most
    `graph_bytes_max` bytes and `graph_nodes_max` nodes."""
    inputs: dict[str, Target | list[Target] | str] = {}
    """By name in the job's input: the field of a node, `{ node, field }`, a list of them, or a placeholder: a text that
    stands in the graph."""
    defaults: dict[str, Any] = {}
    """Values by input; without one the graph's own holds. A file is {"$file": id, "sha256": digest}."""
    overrides: dict[str, Any] = {}
    """Values of a workflow that extends another, which has them as `[overrides]`; they go before the defaults."""
    random: list[str] = []
    """Inputs that get a number of 31 bits where nobody gives one. It follows from the task: every task has its own, and
    every try of a task the same, so that a retry makes the same picture."""
    output_node: str | None = None
    """The node whose files are the output; without it every file is."""


class Slot(Struct, frozen=True):
    """A field that takes the name under which ComfyUI keeps an uploaded file."""

    node: str
    field: str
    file_id: str
    sha256: str | None = None
    """The digest that the workflow states; a job's own input states none, its file's row does."""
    input: str = ""


class Rendered(Struct, frozen=True):
    """A graph with its values, ready to be sent once the slots are filled."""

    graph: Graph
    assets: list[Slot] = []
    output_node: str | None = None


class File(NamedTuple):
    """A file among the values."""

    id: str
    sha256: str | None


class Use(NamedTuple):
    """One place where an input's value goes."""

    input: str
    node: str
    field: str
    how: Literal["field", "leaf", "nested", "inner"]
    """A whole field; a text that is a whole field, or a leaf within one; a part of a longer text."""
    class_type: str
    old: Any


def render(spec: ComfySpec, input: Any, task_id: str) -> Rendered:
    """Put a task's values into a copy of the graph."""
    values = values_of(spec, input, task_id)
    assets: list[Slot] = []

    def put(use: Use) -> Any:
        value = values.get(use.input, use.old)
        if isinstance(value, File):
            assets.append(Slot(use.node, use.field, value.id, value.sha256, use.input))
            return ""
        return value

    return Rendered(rewritten(spec, put), assets, spec.output_node)


def values_of(spec: ComfySpec, input: Any, task_id: str = "") -> dict[str, Any]:
    """Return the value of every input that has one; what is missing or does not fit its place is refused by name."""
    given = _given(spec, input)
    values: dict[str, Any] = {}
    for name in spec.inputs:
        value = next((known[name] for known in _known(spec, given) if known.get(name) is not None), None)
        if value is not None:
            values[name] = file_of(value, trusted=name not in given) or value
        elif name in spec.random:
            values[name] = seed_of(task_id, name)
    for use in uses(spec):
        if use.input in values:
            wanted = wanted_at(use, values[use.input], given=use.input in given)
        else:
            wanted = "" if use.how == "field" else "must have a value: the workflow has none for it"
        if wanted:
            raise BadInput("invalid_input", f"{use.input}: {wanted}.")
    return values


def _given(spec: ComfySpec, input: Any) -> dict[str, Any]:
    """Return what the job says; nothing is said by null."""
    if input is not None and not isinstance(input, dict) and spec.inputs:
        raise BadInput("invalid_input", "input: must be an object with the workflow's inputs.")
    return {name: value for name, value in (input or {}).items() if value is not None} if spec.inputs else {}


def _known(spec: ComfySpec, given: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return given, spec.overrides, spec.defaults


def seed_of(task_id: str, name: str) -> int:
    """Return a number of 31 bits, which every node's seed takes, that follows from the task."""
    return int.from_bytes(hashlib.sha256(f"{task_id}/{name}".encode()).digest()[:4]) >> 1


def file_of(value: Any, *, trusted: bool) -> File | None:
    """Return the file that a value names, or None. A digest counts only from the workflow: a cache is keyed by it."""
    if not isinstance(value, dict) or not {FILE} <= value.keys() <= {FILE, DIGEST}:
        return None
    name, digest = value[FILE], value.get(DIGEST)
    if not isinstance(name, str) or not name:
        return None
    if digest is not None and not (isinstance(digest, str) and SHA256.match(digest)):
        return None
    return File(name, digest if trusted else None)


def wanted_at(use: Use, value: Any, *, given: bool) -> str:
    """Say what a place wants instead of a value; nothing if it fits.

    A list never fits: ComfyUI would read a pair as a link to another node.
    """
    if isinstance(value, File):
        whole = use.how == "leaf" or (use.how == "field" and isinstance(use.old, str | None))
        return "" if whole else f"must not be a file: {_at(use)} takes no file's name"
    if given and takes_file(use.class_type, use.field):
        return 'must be a file: {"$file": "<id>"}'
    if isinstance(value, list | dict):
        return "must be a text, a number, true or false, or a file"
    if use.how == "inner":
        return "must be a text or a number: it stands within a text" if isinstance(value, bool) else ""
    return _wanted(use.old, value) if use.how == "field" else ""


def _wanted(old: Any, value: Any) -> str:
    """Compare a value with what the graph has in its field."""
    if isinstance(old, bool):
        return "" if isinstance(value, bool) else "must be true or false"
    if isinstance(old, int | float):
        return "" if isinstance(value, int | float) and not isinstance(value, bool) else "must be a number"
    if isinstance(old, str):
        return "" if isinstance(value, str) else "must be a text"
    return ""


def _at(use: Use) -> str:
    return f"{use.field!r} of node {use.node} ({use.class_type})"


# -- the tree


def uses(spec: ComfySpec) -> list[Use]:
    """Return every place where a value goes."""
    found: list[Use] = []

    def note(use: Use) -> Any:
        found.append(use)
        return ""

    rewritten(spec, note)
    return found


def rewritten(spec: ComfySpec, put: Callable[[Use], Any]) -> Graph:
    """Return a copy of a sound graph, in which `put` says what stands at every use."""
    aimed = {(target.node, target.field): name for name, target in targets(spec)}
    texts = {text: name for name, text in spec.inputs.items() if isinstance(text, str)}
    pattern = re.compile("|".join(map(re.escape, texts))) if texts else None

    def leaf(use: Use, value: Any, how: Literal["leaf", "nested"]) -> Any:
        if isinstance(value, str):
            if value in texts:
                return put(use._replace(input=texts[value], how=how, old=value))
            return pattern.sub(lambda found: _inner(use, found[0]), value) if pattern else value
        if isinstance(value, list):
            return list(value) if is_link(value) else [leaf(use, one, "nested") for one in value]
        if isinstance(value, dict):
            return {name: leaf(use, one, "nested") for name, one in value.items()}
        return value

    def _inner(use: Use, text: str) -> str:
        value = put(use._replace(input=texts[text], how="inner", old=text))
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    def field(use: Use, value: Any) -> Any:
        name = aimed.get((use.node, use.field))
        return leaf(use, value, "leaf") if name is None else put(use._replace(input=name, old=value))

    return {
        node: {
            **body,
            "inputs": {
                name: field(Use("", node, name, "field", body["class_type"], None), value)
                for name, value in body["inputs"].items()
            },
        }
        for node, body in spec.graph.items()
    }


def targets(spec: ComfySpec) -> Iterator[tuple[str, Target]]:
    """Yield the fields that inputs set, with the input's name."""
    for name, where in spec.inputs.items():
        if isinstance(where, Target):
            yield name, where
        elif isinstance(where, list):
            yield from ((name, target) for target in where)
