"""ComfyUI's implementation of the core's `GraphRules`."""

from typing import Any

from callsheet.comfyui.template import check_rendered_size, resolve_values
from callsheet.comfyui.validate import describe_unset_placeholder, find_issues
from callsheet.core.model.comfyui_graph import ComfySpec
from callsheet.core.model.errors import BadInput
from callsheet.core.model.graph_rules_protocol import GraphRules
from callsheet.core.policy.engine_limits import Limits


class ComfyUIGraphRules:
    """Checks ComfyUI graphs, and inputs against them."""

    def check_graph(self, stage: str, spec: ComfySpec, limits: Limits) -> None:
        """Raise `BadInput` with the first issue of a graph."""
        issue = next(find_issues(spec, limits), None)
        if issue is not None:
            message = f"Stage {stage!r}: {issue.message} {issue.hint}"
            raise BadInput("invalid_graph", message[: limits.message_chars_max])

    def check_schema(self, stage: str, spec: ComfySpec, input_schema: Any) -> None:
        if problem := describe_unset_placeholder(spec, input_schema):
            raise BadInput("invalid_graph", f"Stage {stage!r}: {problem}")

    def check_input(self, spec: ComfySpec, input: Any, limits: Limits) -> None:
        check_rendered_size(spec, resolve_values(spec, input), limits)


COMFYUI_GRAPH_RULES: GraphRules = ComfyUIGraphRules()
