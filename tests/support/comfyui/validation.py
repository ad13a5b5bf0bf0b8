"""The validation of a submitted graph: the errors of 0.33.0, and of 0.7.0 where they differ."""

from collections.abc import Callable
from typing import Any

from tests.support.comfyui.nodes import NODES

Graph = dict[str, Any]
Errors = dict[str, dict[str, Any]]
_FAILED = ("prompt_outputs_failed_validation", "Prompt outputs failed validation")
_KINDS: dict[str, Callable[[Any], Any]] = {"INT": int, "FLOAT": float, "STRING": str}


class Invalid(Exception):  # noqa: N818 - an answer, not an error
    """The graph is refused; with `trouble` the server answers 500."""

    def __init__(self, error: dict[str, Any] | None = None, node_errors: Errors | None = None) -> None:
        super().__init__("invalid")
        self.body = {"error": error, "node_errors": node_errors or {}}
        self.trouble = error is None


def error(kind: str, message: str, details: str = "", **more: Any) -> dict[str, Any]:
    return {"type": kind, "message": message, "details": details, "extra_info": more}


def validate_graph(graph: Any, version: str, has_file: Callable[[str], bool]) -> tuple[list[str], Errors]:
    """Return the output nodes that will run, and the errors of those that will not."""
    if not isinstance(graph, dict):
        raise Invalid
    for node, body in graph.items():
        _check_class(node, body, version)
    outputs = [node for node, body in graph.items() if NODES[body["class_type"]].get("output_node")]
    if not outputs:
        raise Invalid(error("prompt_no_outputs", "Prompt has no outputs"))
    checker = _Validator(graph, version, has_file)
    good = [node for node in outputs if checker.is_valid(node, node)]
    if not good:
        raise Invalid(error(*_FAILED), checker.errors)
    return good, checker.errors


def _check_class(node: str, body: Any, version: str) -> None:
    new, where = version != "0.7.0", f"Node ID '#{node}'"
    if not isinstance(body, dict):
        if new:
            raise Invalid
        message = "Cannot execute because a node is missing the class_type property."
        raise Invalid(error("invalid_prompt", message, where))
    name = body.get("class_type")
    if name is None:
        message = f"Node 'ID #{node}' has no class_type. The workflow may be corrupted or a custom node is missing."
        if not new:
            message = "Cannot execute because a node is missing the class_type property."
    elif name not in NODES:
        message = f"Node '{name}' not found. The custom node may not be installed."
        if not new:
            message = f"Cannot execute because node {name} does not exist."
    else:
        return
    if not new:
        raise Invalid(error("invalid_prompt", message, where))
    raise Invalid(error("missing_node_type", message, where, node_id=node, class_type=name, node_title=name))


class _Validator:
    def __init__(self, graph: Graph, version: str, has_file: Callable[[str], bool]) -> None:
        self.errors: Errors = {}
        self._graph = graph
        self._version = version
        self._has_file = has_file
        self._verdicts: dict[str, bool] = {}
        self._path: list[str] = []

    def is_valid(self, node: str, output: str) -> bool:
        if node in self._path:
            return self._cycle(node, output)
        if node not in self._verdicts:
            self._path.append(node)
            try:
                found = self._reasons(node, output)
            finally:
                self._path.pop()
            good, reasons = found
            self._verdicts[node] = good and not reasons
            if reasons:
                self._add(node, output, reasons)
        else:
            self._add_dependent(node, output)
        return self._verdicts[node]

    def _add_dependent(self, node: str, output: str) -> None:
        """Record that another output depends on an invalid node."""
        if node in self.errors and output not in self.errors[node]["dependent_outputs"]:
            self.errors[node]["dependent_outputs"].append(output)
        for value in self._graph[node]["inputs"].values():
            if (
                isinstance(value, list)
                and len(value) == 2
                and value[0] in self._verdicts
                and not self._verdicts[value[0]]
            ):
                self._add_dependent(value[0], output)

    def _add(self, node: str, output: str, reasons: list[dict[str, Any]]) -> None:
        name = self._graph[node]["class_type"]
        self.errors[node] = {"errors": reasons, "dependent_outputs": [output], "class_type": name}

    def _cycle(self, node: str, output: str) -> bool:
        if self._version != "0.7.0":
            ring = self._path[self._path.index(node) :]
            names = [f"{one} ({self._graph[one]['class_type']})" for one in [*ring, node]]
            for one in ring:
                node_error = error("dependency_cycle", "Dependency cycle detected", " -> ".join(names), node_id=one)
                node_error["extra_info"]["cycle_nodes"] = ring
                self._add(one, output, [node_error])
        return False

    def _reasons(self, node: str, output: str) -> tuple[bool, list[dict[str, Any]]]:
        body = self._graph[node]
        spec = NODES[body["class_type"]]
        good, reasons = True, []
        for part in ("required", "optional"):
            for field, config in spec.get(part, {}).items():
                if field not in body["inputs"]:
                    if part == "required":
                        reasons.append(
                            error("required_input_missing", "Required input is missing", field, input_name=field)
                        )
                    continue
                value = body["inputs"][field]
                if isinstance(value, list):
                    linked, reason = self._linked(field, value, config, output)
                    good = good and linked
                else:
                    reason = self._literal(body, field, value, config)
                if reason:
                    reasons.append(reason)
        return good, reasons

    def _linked(self, field: str, value: list[Any], config: list[Any], output: str) -> tuple[bool, Any]:
        about = {"input_name": field, "input_config": config}
        if len(value) != 2:
            message = "Bad linked input, must be a length-2 list of [node_id, slot_index]"
            return True, error("bad_linked_input", message, field, **about, received_value=value)
        source = str(value[0])
        wanted, received = config[0], NODES[self._graph[source]["class_type"]]["output"][value[1]]
        if wanted not in {received, "*"}:
            details = f"{field}, received_type({received}) mismatch input_type({wanted})"
            message = "Return type mismatch between linked nodes"
            return True, error(
                "return_type_mismatch", message, details, **about, received_type=received, linked_node=value
            )
        try:
            return self.is_valid(source, output), None
        except (KeyError, IndexError) as raised:
            text = "tuple index out of range" if isinstance(raised, IndexError) else str(raised)
            node_error = error(
                "exception_during_inner_validation", "Exception when validating inner node", text, **about
            )
            node_error["extra_info"] |= {"exception_message": text, "exception_type": type(raised).__name__}
            node_error["extra_info"] |= {"traceback": ["<traceback lines>"], "linked_node": value}
            self._verdicts[source] = False
            self._add(source, output, [node_error])
            return False, None

    def _literal(self, body: dict[str, Any], field: str, value: Any, config: list[Any]) -> dict[str, Any] | None:
        about = {"input_name": field, "input_config": config, "received_value": value}
        if body["class_type"] == "LoadImage" and field == "image":
            if self._has_file(str(value)):
                return None
            details = f"image - Invalid image file: {value}"
            return error("custom_validation_failed", "Custom validation failed for node", details, input_name=field)
        kind, limits = config[0], config[1] if len(config) > 1 else {}
        try:
            value = _KINDS[kind](value) if isinstance(kind, str) and kind in _KINDS else value
        except ValueError as raised:
            message = f"Failed to convert an input value to a {kind} value"
            details = f"{field}, {value}, {raised}"
            return error("invalid_input_type", message, details, **about, exception_message=str(raised))
        if "min" in limits and value < limits["min"]:
            return error("value_smaller_than_min", f"Value {value} smaller than min of {limits['min']}", field, **about)
        if "max" in limits and value > limits["max"]:
            return error("value_bigger_than_max", f"Value {value} bigger than max of {limits['max']}", field, **about)
        options = kind if isinstance(kind, list) else limits.get("options")
        if isinstance(options, list) and value not in options:
            return error("value_not_in_list", "Value not in list", f"{field}: '{value}' not in {options}", **about)
        return None
