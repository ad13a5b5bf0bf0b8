"""Write a draft as a workflow file in TOML, for the user to edit."""

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
# Created by `callsheet workflows import` from {source}.
# Set the price, remove the inputs that users must not set, and narrow the limits of the others.
price = 0
"""


def workflow_name(stem: str) -> str:
    """Derive a workflow name from the name of a graph file."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", re.sub(r"[._-](api|graph)\Z", "", stem)).strip("-._")
    return name[: Limits().name_chars_max] if NAME.match(name) else "workflow"


def render_toml(draft: WorkflowDraft, source: str, graph_file: str) -> str:
    """Return the TOML of a definition with item stage that runs the graph."""
    return "\n".join(
        [_HEADER.format(source=_to_ascii_line(source)), *_schema_lines(draft), *_stage_lines(draft, graph_file)]
    )


def _schema_lines(draft: WorkflowDraft) -> Iterator[str]:
    yield "[input_schema]"
    yield 'type = "object"'
    yield f"required = {format_toml_value([item.name for item in draft.inputs if item.required])}"
    yield "additionalProperties = false"
    yield ""
    for item in draft.inputs:
        yield f"[input_schema.properties.{_format_key(item.name)}]"
        yield from (f"{_format_key(name)} = {format_toml_value(value)}" for name, value in item.schema.items())
        yield ""


def _stage_lines(draft: WorkflowDraft, graph_file: str) -> Iterator[str]:
    yield "[[stages]]"
    yield 'name = "render"'
    yield 'kind = "comfyui"  # workers of this kind run it'
    yield ""
    yield "[stages.comfyui]"
    yield f"graph = {format_toml_value(graph_file)}"
    if draft.output_node is not None:
        yield f"output_node = {format_toml_value(draft.output_node)}"
    if random := [item.name for item in draft.inputs if item.random]:
        yield f"random = {format_toml_value(random)}  # if unset, each task gets a value that all its attempts share"
    yield ""
    if draft.inputs:
        yield "[stages.comfyui.inputs]"
    for item in draft.inputs:
        targets = [_format_target(target) for target in item.targets]
        yield f"{_format_key(item.name)} = {targets[0] if len(targets) == 1 else '[' + ', '.join(targets) + ']'}"
    yield ""


def _format_target(target: Target) -> str:
    return f"{{ node = {format_toml_value(target.node)}, field = {format_toml_value(target.field)} }}"


def format_toml_value(value: Any) -> str:
    """Format a JSON value as TOML on item line."""
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{_format_key(name)} = {format_toml_value(item)}" for name, item in value.items()) + " }"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(format_toml_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _format_key(name: str) -> str:
    return name if _BARE_KEY.match(name) else format_toml_value(name)


def _to_ascii_line(text: str) -> str:
    return re.sub(r"[^ -~]", "?", text)
