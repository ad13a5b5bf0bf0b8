"""The rules about a stage's graph that decisions call, as a protocol; `callsheet.comfyui` implements it."""

from typing import Any, Protocol

from callsheet.core.model.comfyui_graph import ComfySpec
from callsheet.core.model.errors import BadInput
from callsheet.core.policy.engine_limits import Limits


class GraphRules(Protocol):
    """Checks graphs, and inputs against them. Each method raises `BadInput` if the check fails."""

    def check_graph(self, stage: str, spec: ComfySpec, limits: Limits) -> None:
        """Check the graph of a stage by itself."""

    def check_schema(self, stage: str, spec: ComfySpec, input_schema: Any) -> None:
        """Check that every input that the schema accepts gives each placeholder a value."""

    def check_input(self, spec: ComfySpec, input: Any, limits: Limits) -> None:
        """Check an input against a graph that passed `check_graph`."""


class _NoGraphs:
    """Refuses every graph."""

    def check_graph(self, stage: str, _spec: ComfySpec, _limits: Limits) -> None:
        raise BadInput("invalid_graph", f"Stage {stage!r} has a graph. This engine does not support graphs: remove it.")

    def check_schema(self, stage: str, _spec: ComfySpec, _input_schema: Any) -> None:
        raise BadInput("invalid_graph", f"Stage {stage!r} has a graph. This engine does not support graphs: remove it.")

    def check_input(self, _spec: ComfySpec, _input: Any, _limits: Limits) -> None:
        raise BadInput("invalid_graph", "The stage has a graph. This engine does not support graphs: remove it.")


NO_GRAPHS: GraphRules = _NoGraphs()
"""For engines without ComfyUI."""
