"""A workflow file written from a draft: TOML that a person goes on with."""

import json
import re
from collections.abc import Iterator
from typing import Any

from callsheet.core.comfy import Target
from callsheet.core.comfy_draft import Draft
from callsheet.core.limits import Limits
from callsheet.core.recipe import NAME

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_HEAD = """\
# Made by `callsheet workflows import` from {source}.
# Set the price, take out what users may not set, and narrow the bounds to what you sell.
price = 0
"""


def name_of(stem: str) -> str:
    """Make a workflow's name from that of a graph's file."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", re.sub(r"[._-](api|graph)\Z", "", stem)).strip("-._")
    return plain[: Limits().name_chars_max] if NAME.match(plain) else "workflow"


def toml_of(draft: Draft, source: str, graph_file: str) -> str:
    """Write a recipe with one stage that has the graph."""
    return "\n".join([_HEAD.format(source=_one_line(source)), *_schema(draft), *_stage(draft, graph_file)])


def _schema(draft: Draft) -> Iterator[str]:
    yield "[input_schema]"
    yield 'type = "object"'
    yield f"required = {written([one.name for one in draft.inputs if one.required])}"
    yield "additionalProperties = false"
    yield ""
    for one in draft.inputs:
        yield f"[input_schema.properties.{_key(one.name)}]"
        yield from (f"{_key(name)} = {written(value)}" for name, value in one.schema.items())
        yield ""


def _stage(draft: Draft, graph_file: str) -> Iterator[str]:
    yield "[[stages]]"
    yield 'name = "render"'
    yield 'kind = "comfyui"  # workers of this kind take it'
    yield ""
    yield "[stages.comfyui]"
    yield f"graph = {written(graph_file)}"
    if draft.output_node is not None:
        yield f"output_node = {written(draft.output_node)}"
    if random := [one.name for one in draft.inputs if one.random]:
        yield f"random = {written(random)}  # without a value each task has its own, the same on every try"
    yield ""
    if draft.inputs:
        yield "[stages.comfyui.inputs]"
    for one in draft.inputs:
        targets = [_target(target) for target in one.targets]
        yield f"{_key(one.name)} = {targets[0] if len(targets) == 1 else '[' + ', '.join(targets) + ']'}"
    yield ""


def _target(target: Target) -> str:
    return f"{{ node = {written(target.node)}, field = {written(target.field)} }}"


def written(value: Any) -> str:
    """Write a JSON value as TOML on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(name)} = {written(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _key(name: str) -> str:
    return name if _BARE.match(name) else written(name)


def _one_line(text: str) -> str:
    return re.sub(r"[^ -~]", "?", text)
