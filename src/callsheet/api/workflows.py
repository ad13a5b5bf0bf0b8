"""Workflows."""

from datetime import datetime
from typing import Any

from msgspec import Struct


class Workflow(Struct, frozen=True):
    """A definition: what may be asked for, and what it costs."""

    name: str
    version: int
    enabled: bool
    price: int
    created_at: datetime
    stages: list[str]
    definition: dict[str, Any]


class WorkflowPage(Struct, frozen=True):
    """Workflows by name."""

    workflows: list[Workflow]
    next: str | None


class WorkflowBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A definition; its name is the path's."""

    definition: dict[str, Any]
