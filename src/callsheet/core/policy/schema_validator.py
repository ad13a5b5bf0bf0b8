"""Input schemas: a workflow's JSON Schema, compiled, with a limit on what validation may cost.

Whether an input is valid is decided by the library's yes/no check. It evaluates each pair of subschema and value at
most once, so the product of their sizes limits its work. An explanation is different: the library collects the errors
of every alternative, which grows exponentially when a schema refers to itself within `anyOf` or `oneOf`. The work of an
explanation is therefore counted first, and an input whose explanation would cost too much gets a short message.
"""

from collections.abc import Iterator
from typing import Any

from callsheet.core.model.errors import BadInput
from callsheet.core.policy.engine_limits import Limits

_COUNTED_PAIRS_MAX = 20_000
"""The most pairs of subschema and value that the count of an explanation looks at."""
_EXPLAINED_BYTES_MAX = 32 * 1024 * 1024
"""The most bytes that errors of one explanation may hold. Each error holds a copy of the input."""
_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_VALUE = ("not", "if", "then", "else")
_SAME_VALUE_MAPS = ("dependentSchemas", "dependencies")
_EACH_ITEM = ("items", "additionalItems", "contains", "unevaluatedItems")
_EACH_FIELD = ("additionalProperties", "unevaluatedProperties")
_UNFOLLOWED_REFERENCES = ("$dynamicRef", "$recursiveRef")


def check_input_schema(workflow: str, schema: Any, limits: Limits) -> None:
    """Refuse an input schema that is not valid or too large. None is no schema."""
    size = _count_values(schema)
    if size > limits.schema_values_max:
        message = (
            f"The input schema of {workflow!r} has {size} values; at most {limits.schema_values_max} are allowed. "
            "Shorten it, or check long lists in a gate."
        )
        raise BadInput("schema_too_large", message)
    compile_input_schema(workflow, schema)


def compile_input_schema(workflow: str, schema: Any) -> "InputSchema | None":
    """Return a stored input schema, compiled, or None if the workflow has none."""
    return None if schema is None else InputSchema(workflow, schema)


class InputSchema:
    """A compiled schema. Patterns are matched in linear time: they have no lookaround and no backreferences."""

    def __init__(self, workflow: str, schema: Any) -> None:
        self._schema = schema
        self._size = _count_values(schema)
        self._validator = _compile(workflow, schema)

    def is_valid(self, value: Any) -> bool:
        return bool(self._validator.is_valid(value))

    def check(self, value: Any, body_bytes: int, limits: Limits) -> None:
        """Refuse an input that does not match, with a reason."""
        steps = self._size * _count_values(value)
        if steps > limits.validation_steps_max:
            message = (
                f"input: validating it would take {steps} steps; at most {limits.validation_steps_max} are "
                "allowed. Send fewer values."
            )
            raise BadInput("input_too_large", message)
        if not self.is_valid(value):
            raise BadInput("invalid_input", self._explain(value, body_bytes)[: limits.message_chars_max])

    def _explain(self, value: Any, body_bytes: int) -> str:
        work = count_explanation_work(self._schema, value)
        if work is None or work * body_bytes > _EXPLAINED_BYTES_MAX:
            return "input: it does not match the input schema of the workflow, which is too complex to say where."
        error = next(self._validator.iter_errors(value))
        where = "/".join(str(part) for part in error.instance_path) or "input"
        return f"{where}: {error.message}"


def count_explanation_work(schema: Any, value: Any) -> int | None:
    """Return an upper bound of the evaluations that an explanation makes, or None if it is unknown or too large."""
    return _WorkCount(schema).count(schema, value)


class _WorkCount:
    """Counts evaluations without memory of earlier ones, as the library explains. The count itself has one."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._counts: dict[tuple[int, int], int | None] = {}

    def count(self, schema: Any, value: Any) -> int | None:
        if not isinstance(schema, dict):
            return 1
        pair = id(schema), id(value)
        if pair not in self._counts:
            if len(self._counts) >= _COUNTED_PAIRS_MAX:
                return None
            self._counts[pair] = None  # a schema that refers to itself for the same value never ends
            self._counts[pair] = self._count_parts(schema, value)
        return self._counts[pair]

    def _count_parts(self, schema: dict[str, Any], value: Any) -> int | None:
        if any(keyword in schema for keyword in _UNFOLLOWED_REFERENCES):
            return None
        total = 1
        for subschema, part in self._parts(schema, value):
            work = None if subschema is None else self.count(subschema, part)
            if work is None:
                return None
            total += work
        # Unevaluated items and fields are found by evaluating the subschemas of the same value once more.
        return total * 2 if "unevaluatedProperties" in schema or "unevaluatedItems" in schema else total

    def _parts(self, schema: dict[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
        """Yield each subschema with the value that it applies to; None for a reference that is not found."""
        if "$ref" in schema:
            yield self._resolve(schema["$ref"]), value
        for keyword in _SAME_VALUE_LISTS:
            yield from ((subschema, value) for subschema in schema.get(keyword, ()))
        for keyword in _SAME_VALUE:
            if keyword in schema:
                yield schema[keyword], value
        for keyword in _SAME_VALUE_MAPS:
            yield from ((subschema, value) for subschema in schema.get(keyword, {}).values())
        if isinstance(value, dict):
            yield from _field_parts(schema, value)
        elif isinstance(value, list | tuple):
            yield from _item_parts(schema, value)

    def _resolve(self, reference: Any) -> Any:
        """Follow a reference into the same schema; None for any other."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        target = self._root
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            elif isinstance(target, dict) and name in target:
                target = target[name]
            else:
                return None
        return None if reference != "#" and not reference.startswith("#/") else target


def _field_parts(schema: dict[str, Any], value: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    for name, subschema in schema.get("properties", {}).items():
        if name in value:
            yield subschema, value[name]
    for subschema in schema.get("patternProperties", {}).values():
        yield from ((subschema, field) for field in value.values())
    for keyword in _EACH_FIELD:
        if keyword in schema:
            yield from ((schema[keyword], field) for field in value.values())
    if "propertyNames" in schema:
        yield from ((schema["propertyNames"], name) for name in value)


def _item_parts(schema: dict[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
    for keyword in _EACH_ITEM:
        subschema = schema.get(keyword)
        if isinstance(subschema, list):  # drafts before 2020-12: one subschema per item
            yield from zip(subschema, value, strict=False)
        elif subschema is not None:
            yield from ((subschema, item) for item in value)
    yield from zip(schema.get("prefixItems", ()), value, strict=False)


def _count_values(value: Any) -> int:
    """Return the number of values in a JSON value, itself and field names included."""
    count, todo = 0, [value]
    while todo:
        item = todo.pop()
        count += 1
        if isinstance(item, dict):
            count += len(item)
            todo.extend(item.values())
        elif isinstance(item, list | tuple):
            todo.extend(item)
    return count


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
