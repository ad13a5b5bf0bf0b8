"""Workflows."""

from typing import Annotated, Any

from msgspec import Struct

from callsheet.api.shared_fields import Example, Time, doc

_SCHEMA = {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}
_DEFINITION = {"price": 3, "stages": [{"name": "sketch", "kind": "sketch"}], "input_schema": _SCHEMA}


class Workflow(Struct, frozen=True):
    """The current version of a workflow."""

    name: Annotated[str, doc("Name of the workflow.", "sketch")]
    version: Annotated[int, doc("Version number. Each change of the definition adds 1.", 1)]
    enabled: Annotated[bool, doc("Whether jobs can be submitted.", True)]
    price: Annotated[int, doc("Price of a job in credits.", 3)]
    created_at: Annotated[Time, doc("Time at which this version was created.", Example.AT)]
    stages: Annotated[list[str], doc("Names of the stages, in order.", ["sketch"])]
    definition: Annotated[dict[str, Any], doc("The whole definition.", {"name": "sketch", **_DEFINITION})]


class WorkflowPage(Struct, frozen=True):
    """One page of workflows, sorted by name."""

    workflows: Annotated[list[Workflow], doc("Workflows of this page.")]
    next: Annotated[str | None, doc("Cursor of the next page. Null on the last page.", None)]


class WorkflowBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A workflow to create or replace. Its name is in the path."""

    definition: Annotated[dict[str, Any], doc("The whole definition. It replaces the current one.", _DEFINITION)]
