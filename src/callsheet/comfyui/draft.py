"""Drafts a workflow definition from an exported graph: its likely inputs and its output nodes.

Prompts are found by following the links of samplers and guiders upstream, other inputs by their field names. If the
server's `/object_info` is available, types, bounds and choices come from it.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from callsheet.comfyui.node_info import (
    ObjectInfo,
    fields_of,
    find_mismatches,
    is_link,
    is_output_node,
    sends_over_websocket,
    takes_file,
)
from callsheet.comfyui.template import FILE_KEY
from callsheet.core.model.comfyui_graph import Graph, Target

_SAFE_INTEGER_MAX = 2**53 - 1
"""The largest integer that every JSON parser represents exactly."""
_TEXT_CHARS_MAX = 4_000
_TEXT_FIELDS = ("text", "text_g", "text_l", "clip_l", "t5xxl", "prompt", "string", "value")
_SEED_FIELDS = ("seed", "noise_seed")
_ROLES = {"positive": "prompt", "negative": "negative_prompt"}
_NON_TEXT_LINKS = frozenset({
    "model", "clip", "vae", "pixels", "image", "images", "mask", "latent_image", "samples", "control_net", "noise",
    "sampler", "sigmas", "audio", "video", "clip_vision", "clip_vision_output", "style_model", "start_image",
})  # fmt: skip
"""Fields whose links do not lead to a prompt."""
_NUMBER_SCHEMAS: dict[str, dict[str, Any]] = {
    "width": {"type": "integer", "minimum": 1},
    "height": {"type": "integer", "minimum": 1},
    "length": {"type": "integer", "minimum": 1},
    "duration": {"type": "number", "minimum": 0},
    "fps": {"type": "number", "minimum": 0},
    "steps": {"type": "integer", "minimum": 1},
    "cfg": {"type": "number", "minimum": 0},
    "guidance": {"type": "number", "minimum": 0},
    "denoise": {"type": "number", "minimum": 0, "maximum": 1},
}
_CHOICE_FIELDS = ("sampler_name", "scheduler")
_FILE_SCHEMA = {
    "type": "object", "required": [FILE_KEY], "additionalProperties": False,
    "properties": {FILE_KEY: {"type": "string", "description": "A file's id."}},
}  # fmt: skip
_SAVE_CLASS = re.compile(r"Save|VideoCombine")
_JSON_TYPES = {"INT": "integer", "FLOAT": "number", "STRING": "string", "BOOLEAN": "boolean"}


class DraftInput(Struct, frozen=True, kw_only=True):
    """An input of the drafted definition, with the graph's current value."""

    name: str
    targets: list[Target]
    class_type: str
    value: Any
    schema: dict[str, Any]
    required: bool = False
    random: bool = False


class WorkflowDraft(Struct, frozen=True):
    """The inputs, output nodes and notes of a drafted definition."""

    inputs: list[DraftInput]
    output_node: str | None
    notes: list[str]


def draft(graph: Graph, info: ObjectInfo | None = None) -> WorkflowDraft:
    """Draft a definition from a valid graph."""
    finder = _InputFinder(graph, info or {})
    finder.find()
    outputs, notes = _find_outputs(graph, info or {})
    if info:
        notes += [
            f"Node {mismatch.node}{mismatch.field and f', {mismatch.field}'}: {mismatch.what}"
            for mismatch in find_mismatches(graph, info)
        ]
    return WorkflowDraft(finder.found, outputs[0] if len(outputs) == 1 else None, notes)


class _InputFinder:
    def __init__(self, graph: Graph, info: ObjectInfo) -> None:
        self._graph = graph
        self._info = info
        self._used: set[tuple[str, str]] = set()
        self.found: list[DraftInput] = []

    def find(self) -> None:
        """Find all inputs, the most important first."""
        for role, name in _ROLES.items():
            self._add_prompts(
                name, [place for root in self._prompt_roots(role) for place in self._upstream_texts(root, role)]
            )
        for place in self._literals(self._is_free_text):
            field = place[1]
            self._add_prompts(
                "prompt" if self._is_encoder(place[0]) else "text" if field == "value" else field, [place]
            )
        for place in self._literals(lambda node, field: takes_file(self._class_of(node), field)):
            self._add_input("video" if place[1] == "file" else place[1], [place], _FILE_SCHEMA, required=True)
        for field, schema in _NUMBER_SCHEMAS.items():
            for place in self._literals(
                lambda node, name, field=field: name == field and self._is_adjustable(node, name)
            ):
                self._add_input(field, [place], schema | self._bounds(place))
        for field in _CHOICE_FIELDS:
            for place in self._literals(lambda _, name, field=field: name == field):
                if "enum" in self._bounds(place):
                    self._add_input(field, [place], self._bounds(place))
        seeds = list(self._literals(lambda _, name: name in _SEED_FIELDS))
        if seeds:
            self._add_input("seed", seeds, {"type": "integer", "minimum": 0, "maximum": _SAFE_INTEGER_MAX}, random=True)

    # -- reading the graph

    def _class_of(self, node: str) -> str:
        return str(self._graph[node]["class_type"])

    def _literals(self, matches: Callable[..., bool]) -> Iterator[tuple[str, str]]:
        """Yield fields with a literal value that no input sets yet."""
        for node, body in self._graph.items():
            for field, value in body["inputs"].items():
                is_plain = isinstance(value, str | int | float) and (node, field) not in self._used
                if is_plain and matches(node, field):
                    yield node, field

    def _is_encoder(self, node: str) -> bool:
        return "TextEncode" in self._class_of(node)

    def _is_free_text(self, node: str, field: str) -> bool:
        if not isinstance(self._graph[node]["inputs"][field], str):
            return False
        encoder, prompt = self._is_encoder(node) and field in _TEXT_FIELDS, field in {"prompt", "negative_prompt"}
        return encoder or prompt or (field == "value" and self._class_of(node).startswith("PrimitiveString"))

    def _is_adjustable(self, node: str, field: str) -> bool:
        """Return whether users would set a number: not the sizes of an encoder, and not a denoise of 1."""
        value = self._graph[node]["inputs"][field]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and not self._is_encoder(node) and not (field == "denoise" and value == 1)

    # -- prompts

    def _prompt_roots(self, role: str) -> Iterator[str]:
        """Yield the nodes that the prompts of a role are linked into."""
        for body in self._graph.values():
            guider = role == "positive" and "Guider" in body["class_type"]
            for field in (role, "conditioning") if guider else (role,):
                value = body["inputs"].get(field)
                if is_link(value):
                    yield value[0]

    def _upstream_texts(self, root: str, role: str) -> Iterator[tuple[str, str]]:
        """Yield the texts upstream of a link, the nearest first."""
        layer, seen = [root], {root}
        while layer:
            node = layer.pop(0)
            inputs = self._graph[node]["inputs"]
            yield from ((node, field) for field in _TEXT_FIELDS if isinstance(inputs.get(field), str))
            other_roles = {other for other in _ROLES if other != role and role in inputs}
            for field, value in inputs.items():
                if is_link(value) and field not in _NON_TEXT_LINKS | other_roles and value[0] not in seen:
                    seen.add(value[0])
                    layer.append(value[0])

    def _add_prompts(self, name: str, places: list[tuple[str, str]]) -> None:
        """Add prompts; equal texts of the graph become one input."""
        places_by_text: dict[str, list[tuple[str, str]]] = {}
        for node, field in dict.fromkeys(places):
            if (node, field) not in self._used:
                places_by_text.setdefault(self._graph[node]["inputs"][field], []).append((node, field))
        for group in places_by_text.values():
            schema = {"type": "string", "maxLength": _TEXT_CHARS_MAX}
            self._add_input(name, group, schema, required=name == "prompt" and not self._has_input("prompt"))

    # -- inputs

    def _has_input(self, name: str) -> bool:
        return any(found.name == name for found in self.found)

    def _add_input(
        self, name: str, places: list[tuple[str, str]], schema: dict[str, Any], *, required: bool = False,
        random: bool = False,
    ) -> None:  # fmt: skip
        names = [name, *(f"{name}_{no}" for no in range(2, len(self._graph) + len(self.found) + 3))]
        unique_name = next(candidate for candidate in names if not self._has_input(candidate))
        node, field = places[0]
        value = self._graph[node]["inputs"][field]
        if required and isinstance(value, str) and value and schema["type"] == "string":
            schema = schema | {"examples": [value]}
        elif not required and not random:
            schema = schema | {"default": value}
        self._used.update(places)
        self.found.append(
            DraftInput(
                name=unique_name, targets=[Target(node=node, field=field) for node, field in places],
                class_type=self._class_of(node), value=value, schema=schema, required=required, random=random,
            )
        )  # fmt: skip

    def _bounds(self, place: tuple[str, str]) -> dict[str, Any]:
        """Return the server's description of a field as JSON Schema."""
        node, name = place
        field = fields_of(self._info, self._class_of(node)).get(name)
        if field is None:
            return {}
        if field.choices is not None:
            texts = [choice for choice in field.choices if isinstance(choice, str)]
            return {"type": "string", "enum": texts} if texts else {}
        schema: dict[str, Any] = {"type": _JSON_TYPES[field.type]} if field.type in _JSON_TYPES else {}
        bounds = (("minimum", field.minimum), ("maximum", field.maximum))
        return schema | {
            keyword: bound for keyword, bound in bounds if bound is not None and abs(bound) <= _SAFE_INTEGER_MAX
        }


def _find_outputs(graph: Graph, info: ObjectInfo) -> tuple[list[str], list[str]]:
    """Return the output nodes, and notes about them."""
    classes = {node: body["class_type"] for node, body in graph.items()}
    output_nodes = [node for node, name in classes.items() if is_output_node(info, name) and "Preview" not in name]
    save_nodes = [node for node, name in classes.items() if node in output_nodes or _SAVE_CLASS.search(name)]
    preview_nodes = [node for node, name in classes.items() if "Preview" in name]
    notes = []
    if not save_nodes:
        notes.append(
            "No node saves a file: add one such as SaveImage. ComfyUI deletes previews when it restarts."
            if preview_nodes
            else "No node saves a file: add one such as SaveImage."
        )
    if len(save_nodes) > 1:
        notes.append(
            f"Nodes {', '.join(save_nodes)} save files, and all files are outputs: set output_node to use only one."
        )
    notes += [
        f"Node {node} ({classes[node]}) saves no file on the server: if the connection breaks while it sends its "
        "images, the attempt fails. Use SaveImage instead; the Comfy API v2 requires it."
        for node in save_nodes
        if sends_over_websocket(classes[node])
    ]
    return save_nodes or preview_nodes, notes
