"""A workflow file written from a draft: TOML that a person goes on with."""

import json
import re
from collections.abc import Iterator
from typing import Any

from callsheet.comfyui.draft import WorkflowDraft
from callsheet.core.model.comfyui_graph import Target
from callsheet.core.model.workflow_definition import NAME
from callsheet.core.policy.engine_limits import Limits

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")
_HEADER = """\
# Made by `callsheet workflows import` from {source}.
# Set the price, take out what users may not set, and narrow the bounds to what you sell.
price = 0
"""


def workflow_name(stem: str) -> str:
    """Make a workflow's name from that of a graph's file."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", re.sub(r"[._-](api|graph)\Z", "", stem)).strip("-._")
    return name[: Limits().name_chars_max] if NAME.match(name) else "workflow"


def render_toml(draft: WorkflowDraft, source: str, graph_file: str) -> str:
    """Write a definition with one stage that has the graph."""
    return "\n".join(
        [_HEADER.format(source=_to_ascii_line(source)), *_schema_lines(draft), *_stage_lines(draft, graph_file)]
    )


def _schema_lines(draft: WorkflowDraft) -> Iterator[str]:
    yield "[input_schema]"
    yield 'type = "object"'
    yield f"required = {format_toml_value([one.name for one in draft.inputs if one.required])}"
    yield "additionalProperties = false"
    yield ""
    for one in draft.inputs:
        yield f"[input_schema.properties.{_format_key(one.name)}]"
        yield from (f"{_format_key(name)} = {format_toml_value(value)}" for name, value in one.schema.items())
        yield ""


def _stage_lines(draft: WorkflowDraft, graph_file: str) -> Iterator[str]:
    yield "[[stages]]"
    yield 'name = "render"'
    yield 'kind = "comfyui"  # workers of this kind take it'
    yield ""
    yield "[stages.comfyui]"
    yield f"graph = {format_toml_value(graph_file)}"
    if draft.output_node is not None:
        yield f"output_node = {format_toml_value(draft.output_node)}"
    if random := [one.name for one in draft.inputs if one.random]:
        yield f"random = {format_toml_value(random)}  # without a value each task has its own, the same on every try"
    yield ""
    if draft.inputs:
        yield "[stages.comfyui.inputs]"
    for one in draft.inputs:
        targets = [_format_target(target) for target in one.targets]
        yield f"{_format_key(one.name)} = {targets[0] if len(targets) == 1 else '[' + ', '.join(targets) + ']'}"
    yield ""


def _format_target(target: Target) -> str:
    return f"{{ node = {format_toml_value(target.node)}, field = {format_toml_value(target.field)} }}"


def format_toml_value(value: Any) -> str:
    """Write a JSON value as TOML on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_format_key(name)} = {format_toml_value(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(format_toml_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _format_key(name: str) -> str:
    return name if _BARE_KEY.match(name) else format_toml_value(name)


def _to_ascii_line(text: str) -> str:
    return re.sub(r"[^ -~]", "?", text)
