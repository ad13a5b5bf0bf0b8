"""Whether a recipe's ComfyUI graph could work: everything that can be known before a worker sends it."""

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import msgspec

from callsheet.core.comfy import ComfySpec, Graph, file_of, rewritten, targets, uses, values_of, wanted_at
from callsheet.core.comfy_info import is_link, is_socket
from callsheet.core.counting import counted
from callsheet.core.errors import BadInput
from callsheet.core.limits import Limits

EXPORT = "In ComfyUI choose Workflow > Export (API); where it is missing, turn on Dev mode in Settings."
_INPUTS = "Name it in inputs, or take it out."
_SHAPES = tuple(
    re.compile(shape)
    for shape in (
        r"__[A-Z0-9]+(?:_[A-Z0-9]+)*__", r"\{\{\s*[\w.-]+\s*\}\}", r"\$\{[\w.-]+\}", r"<<[\w.-]+>>", r"%[\w.-]+%",
    )
)  # fmt: skip
"""How placeholders look. The first always is one; another shape only where the recipe itself uses it."""


class Flaw(NamedTuple):
    """Something wrong: where in the spec, what, and what to do."""

    place: tuple[str | int, ...]
    what: str
    do: str


def check_comfy(stage: str, spec: ComfySpec, limits: Limits) -> None:
    """Refuse a graph that could not work, with the first of its flaws."""
    flaw = next(flaws(spec, limits), None)
    if flaw is not None:
        raise BadInput("invalid_graph", f"Stage {stage!r}: {flaw.what} {flaw.do}"[: limits.message_chars_max])


def flaws(spec: ComfySpec, limits: Limits) -> Iterator[Flaw]:
    """Yield what is wrong with a spec; with what goes into the graph only if the graph is sound."""
    sound = True
    for flaw in graph_flaws(spec.graph, limits):
        sound = False
        yield flaw._replace(place=("graph", *flaw.place))
    if sound:
        yield from _target_flaws(spec)
        yield from _placeholder_flaws(spec)
        yield from _value_flaws(spec)
        if spec.output_node is not None and spec.output_node not in spec.graph:
            what = f"The output_node {spec.output_node!r} is not in the graph."
            yield Flaw(("output_node",), what, f"Its nodes are {_some(spec.graph)}.")


def may_be_missing(spec: ComfySpec, schema: Any) -> str:
    """Say which placeholder a job's input may leave without a value; nothing where the schema is not plain to read."""
    if isinstance(schema, dict) and schema.keys() & {"$ref", "allOf", "anyOf", "oneOf", "if"}:
        return ""
    required = schema.get("required", ()) if isinstance(schema, dict) else ()
    known = {*spec.defaults, *spec.overrides, *spec.random, *required}
    name = next((name for name, text in spec.inputs.items() if isinstance(text, str) and name not in known), None)
    return "" if name is None else f"The input {name!r} may have no value: require it in input_schema, or default it."


def input_flaw(spec: ComfySpec, input: Any) -> str:
    """Say what is wrong with an input for a sound spec; nothing if it fits."""
    try:
        values_of(spec, input)
    except BadInput as error:
        return str(error)
    return ""


# -- the graph


def graph_flaws(graph: Any, limits: Limits) -> Iterator[Flaw]:
    """Yield what is wrong with a graph by itself; what is no graph of the API format has one flaw."""
    whole = _whole_flaw(graph, limits)
    if whole is not None:
        yield whole
        return
    broken = list(_node_flaws(graph))
    yield from broken
    if not broken:
        yield from _link_flaws(graph)
        yield from _cycle_flaws(graph)


def _whole_flaw(graph: Any, limits: Limits) -> Flaw | None:
    if not isinstance(graph, dict):
        return Flaw((), "A graph is an object with a node by each id.", EXPORT)
    if isinstance(graph.get("nodes"), list) and "links" in graph:
        return Flaw((), "This is a graph as ComfyUI's editor saves it; a server takes the API format.", EXPORT)
    for name in ("prompt", "output"):
        if isinstance(graph.get(name), dict) and "class_type" not in graph[name]:
            return Flaw((), f"The graph is wrapped in {name!r}.", f"Take what is in {name!r} alone.")
    if not graph:
        return Flaw((), "The graph is empty.", EXPORT)
    if len(graph) > limits.graph_nodes_max:
        what = f"The graph has {counted(len(graph), 'node')}; at most {limits.graph_nodes_max} are taken."
        return Flaw((), what, "Split it.")
    if _deeper(graph, limits.input_depth_max):
        return Flaw((), f"The graph is nested deeper than {limits.input_depth_max} levels.", "Flatten it.")
    size = len(msgspec.json.encode(graph))
    if size > limits.graph_bytes_max:
        what = f"The graph has {counted(size, 'byte')}; at most {limits.graph_bytes_max} are taken."
        return Flaw((), what, "Take pictures and other data out of it, and give them as files.")
    return None


def _deeper(value: Any, levels: int) -> bool:
    """Say whether a value is nested deeper, without going deeper."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper(one, levels - 1) for one in inner)


def _node_flaws(graph: Graph) -> Iterator[Flaw]:
    for node, body in graph.items():
        if not isinstance(body, dict):
            yield Flaw((node,), f"Node {node!r} is not an object with class_type and inputs.", EXPORT)
        elif not (isinstance(body.get("class_type"), str) and body["class_type"]):
            yield Flaw((node,), f"Node {node!r} has no class_type.", EXPORT)
        elif not isinstance(body.get("inputs"), dict):
            yield Flaw((node,), f"Node {node!r} ({body['class_type']}) has no inputs.", "Write {} where it has none.")


def _link_flaws(graph: Graph) -> Iterator[Flaw]:
    for node, body in graph.items():
        for field, value in body["inputs"].items():
            place, at = (node, "inputs", field), f"{field!r} of node {node} ({body['class_type']})"
            if not is_link(value):
                if is_socket(body["class_type"], field):
                    what = f"{at} is a value where a link to another node belongs."
                    yield Flaw(place, what, 'Write ["<node>", <output>]; ComfyUI would only fail when it runs.')
            elif value[0] not in graph:
                what = f"{at} links to node {value[0]!r}, which is not in the graph."
                yield Flaw(place, what, "Link to one that is.")
            elif not isinstance(value[1], int) or value[1] < 0:
                yield Flaw(place, f"{at} links to output {value[1]}.", "The first output is 0.")


def _cycle_flaws(graph: Graph) -> Iterator[Flaw]:
    try:
        TopologicalSorter({node: _upstream(graph, node) for node in graph}).prepare()
    except CycleError as error:
        circle = error.args[1][::-1]
        yield Flaw((circle[0],), f"Nodes link in a circle: {' → '.join(circle[:12])}.", "Take one link out.")


def _upstream(graph: Graph, node: str) -> list[str]:
    return [value[0] for value in graph[node]["inputs"].values() if is_link(value) and value[0] in graph]


# -- what goes into it


def _target_flaws(spec: ComfySpec) -> Iterator[Flaw]:
    taken: dict[tuple[str, str], str] = {}
    for name, target in targets(spec):
        place: tuple[str | int, ...] = ("inputs", name)
        body = spec.graph.get(target.node)
        if body is None:
            yield Flaw(place, f"There is no node {target.node!r}.", f"The graph's nodes are {_some(spec.graph)}.")
            continue
        at = f"node {target.node} ({body['class_type']})"
        if target.field not in body["inputs"]:
            yield Flaw(place, f"There is no field {target.field!r} in {at}.", f"It has {_some(body['inputs'])}.")
        elif is_link(body["inputs"][target.field]):
            what = f"{target.field!r} of {at} is a link to another node: a value there fails when it runs."
            yield Flaw(place, what, f"Set a field of node {body['inputs'][target.field][0]} instead.")
        elif taken.setdefault((target.node, target.field), name) != name:
            other = taken[target.node, target.field]
            yield Flaw(place, f"{target.field!r} of {at} is set by {other!r} too.", "Let one input set it.")


def _placeholder_flaws(spec: ComfySpec) -> Iterator[Flaw]:
    texts = {name: text for name, text in spec.inputs.items() if isinstance(text, str)}
    for name, text in texts.items():
        for other, longer in texts.items():
            if other != name and text and text in longer:
                what = f"The placeholder {text!r} is within that of {other!r}."
                yield Flaw(("inputs", name), what, "Choose texts that are not part of each other.")
    used = {use.input for use in uses(spec)} if all(texts.values()) else set()
    for name, text in texts.items():
        if name not in used:
            what = f"The placeholder {text!r} does not stand in the graph." if text else "A placeholder is empty."
            yield Flaw(("inputs", name), what, "Write it there, or name node and field: { node = …, field = … }.")
    if all(texts.values()):
        yield from _left_over(spec, list(texts.values()))


def _left_over(spec: ComfySpec, texts: list[str]) -> Iterator[Flaw]:
    """Find texts that look like placeholders and belong to no input."""
    shapes = [shape for no, shape in enumerate(_SHAPES) if no == 0 or any(map(shape.fullmatch, texts))]
    rest = rewritten(spec, lambda _: "")
    for node, body in rest.items():
        for field, value in body["inputs"].items():
            for text in _texts(value):
                for shape in shapes:
                    for found in shape.findall(text):
                        what = f"{found!r} in {field!r} of node {node} ({body['class_type']}) belongs to no input."
                        yield Flaw(("graph", node, "inputs", field), what, "Name it in inputs, or write it otherwise.")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict) and not is_link(value):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _value_flaws(spec: ComfySpec) -> Iterator[Flaw]:
    for part, known in (("defaults", spec.defaults), ("overrides", spec.overrides)):
        for name in known.keys() - spec.inputs.keys():
            yield Flaw((part, name), f"There is no input {name!r} in this graph.", _INPUTS)
        for use in uses(spec):
            value = known.get(use.input)
            if value is None:
                continue
            wanted = wanted_at(use, file_of(value, trusted=True) or value, given=False)
            if wanted:
                yield Flaw((part, use.input), f"{use.input!r} {wanted}.", "Give it another value.")
    for name in spec.random:
        if name not in spec.inputs:
            yield Flaw(("random",), f"There is no input {name!r} in this graph.", _INPUTS)


def _some(names: Any) -> str:
    """Name a few."""
    few = [repr(name) for _, name in zip(range(12), names, strict=False)]
    return ", ".join(few) + (", …" if len(names) > len(few) else "")
