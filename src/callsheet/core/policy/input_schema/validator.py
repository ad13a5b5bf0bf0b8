"""Input schemas: a workflow's JSON Schema, compiled, with a limit on what validation may cost.

Whether an input is valid is decided by the library's yes/no check, after its steps were counted. An explanation costs
more: the library collects the errors of every alternative, and each error holds a copy of the input. An input whose
explanation would be too large gets a short message.
"""

from typing import Any

from callsheet.core.model.errors import BadInput
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.input_schema.validation_cost import ValidationCost, count_values

_EXPLAINED_ERRORS_MAX = 10_000
_EXPLAINED_BYTES_MAX = 32 * 1024 * 1024
"""The most errors of one explanation, and the most bytes that they may hold."""


def check_input_schema(workflow: str, schema: Any, limits: Limits) -> None:
    """Refuse an input schema that is not valid or too large. None is no schema."""
    size = count_values(schema)
    if size > limits.schema_values_max:
        message = (
            f"The input schema of {workflow!r} has {size} values; at most {limits.schema_values_max} are allowed. "
            "Shorten it, or check long lists in a gate."
        )
        raise BadInput("schema_too_large", message)
    compiled = compile_input_schema(workflow, schema)
    if compiled is not None:
        compiled.check_cost(limits)


def compile_input_schema(workflow: str, schema: Any) -> "InputSchema | None":
    """Return a stored input schema, compiled, or None if the workflow has none."""
    return None if schema is None else InputSchema(workflow, schema)


class InputSchema:
    """A compiled schema. Patterns are matched in linear time: they have no lookaround and no backreferences."""

    def __init__(self, workflow: str, schema: Any) -> None:
        self._workflow = workflow
        self._validator = _compile(workflow, schema)
        self._cost = ValidationCost(schema)

    def check_cost(self, limits: Limits) -> None:
        """Refuse a schema whose cost cannot be counted, or that would refuse every input for its cost."""
        name = f"The input schema of {self._workflow!r}"
        if self._cost.problem is not None:
            raise BadInput("invalid_workflow", f"{name} {self._cost.problem}.")
        if (self._cost.size or 0) > limits.validation_steps_max:
            message = (
                f"{name} takes {self._cost.size} steps to validate one value; at most {limits.validation_steps_max} "
                "are allowed. Refer less often to definitions that refer to others."
            )
            raise BadInput("schema_too_large", message)
        if (self._cost.patterns_size or 0) > limits.schema_patterns_size_max:
            message = (
                f"The patterns of the input schema of {self._workflow!r} have a size of {self._cost.patterns_size}; at "
                f"most {limits.schema_patterns_size_max} is allowed. Use smaller repetitions, or maxLength."
            )
            raise BadInput("schema_too_large", message)

    def is_valid(self, value: Any) -> bool:
        return bool(self._validator.is_valid(value))

    def check(self, value: Any, body_bytes: int, limits: Limits) -> None:
        """Refuse an input that does not match, with a reason."""
        if not self._is_affordable(value, body_bytes, limits):
            message = (
                f"input: validating it would take more than {limits.validation_steps_max} steps. Send fewer values, "
                "shorter texts, or a less nested input."
            )
            raise BadInput("input_too_large", message)
        if not self.is_valid(value):
            raise BadInput("invalid_input", self._explain(value, body_bytes, limits)[: limits.message_chars_max])

    def _is_affordable(self, value: Any, body_bytes: int, limits: Limits) -> bool:
        if self._cost.problem is not None:
            return False
        estimate = self._cost.fast_estimate(value, body_bytes)
        if estimate is not None and estimate <= limits.validation_steps_max:
            return True
        steps = self._cost.steps(value, limits.validation_pairs_max)
        return steps is not None and steps <= limits.validation_steps_max

    def _explain(self, value: Any, body_bytes: int, limits: Limits) -> str:
        errors = self._cost.evaluations(value, limits.validation_pairs_max)
        if errors is None or errors > _EXPLAINED_ERRORS_MAX or errors * body_bytes > _EXPLAINED_BYTES_MAX:
            return "input: it does not match the input schema of the workflow, which is too complex to say where."
        error = next(self._validator.iter_errors(value))
        where = "/".join(str(part) for part in error.instance_path) or "input"
        return f"{where}: {error.message}"


def _compile(workflow: str, schema: Any) -> Any:
    import jsonschema_rs  # noqa: PLC0415 - clients import the core, and only servers validate

    try:
        options = jsonschema_rs.RegexOptions()
        return jsonschema_rs.validator_for(schema, retriever=_refuse_reference, pattern_options=options)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        reason = str(error).partition("\n")[0]
        if 'is not a "regex"' in reason:
            reason += " without lookaround and backreferences"
        raise BadInput("invalid_workflow", f"The input schema of {workflow!r} is not valid: {reason}.") from None


def _refuse_reference(_uri: str) -> Any:
    """Fetch nothing: the library would open URLs and files that a schema refers to."""
    raise ValueError("a schema may refer only to itself")
