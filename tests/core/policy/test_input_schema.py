"""Input schemas: validation and its explanation have a bounded cost, whatever schema and input are stored."""

from typing import Any

import pytest

from callsheet.core.model.errors import BadInput
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.schema_validator import InputSchema, check_input_schema, count_explanation_work

LIMITS = Limits()
NODE = {"$ref": "#/$defs/node"}
CHILD = {"properties": {"a": NODE}}


def recursive(node: dict[str, Any]) -> dict[str, Any]:
    return {"$defs": {"node": node}, **NODE}


def nested(depth: int, leaf: Any = 1) -> Any:
    for _ in range(depth):
        leaf = {"a": leaf}
    return leaf


def refusal(schema: Any, value: Any, body_bytes: int = 600, limits: Limits = LIMITS) -> BadInput:
    with pytest.raises(BadInput) as refused:
        InputSchema("sketch", schema).check(value, body_bytes, limits)
    return refused.value


RECURSIVE = {
    "oneOf": recursive({"oneOf": [{**CHILD, "required": ["a"]}, {**CHILD, "required": ["b"]}, {"type": "string"}]}),
    "anyOf": recursive({"anyOf": [{**CHILD, "required": ["b"]}, {**CHILD, "required": ["c"]}, {"type": "string"}]}),
    "allOf": recursive({"type": "object", "allOf": [CHILD, CHILD, CHILD]}),
    "not": recursive({"not": {"not": {**CHILD, "type": "object"}}, "anyOf": [CHILD, CHILD]}),
    "if": recursive({"type": "object", "if": CHILD, "then": CHILD, "else": CHILD}),
    "unevaluated": recursive({"type": "object", "anyOf": [CHILD, CHILD], "unevaluatedProperties": False}),
    "dependent": recursive({"type": "object", "dependentSchemas": {"a": CHILD}, **CHILD}),
    "patterns": recursive({"type": "object", "patternProperties": {"a": NODE, ".": NODE, "^a": NODE}}),
    "additional": recursive({"type": "object", "anyOf": [{"additionalProperties": NODE}, {**CHILD}]}),
}


@pytest.mark.parametrize("schema", RECURSIVE.values(), ids=list(RECURSIVE))
def test_a_deep_input_of_a_recursive_schema_is_refused_without_an_expensive_explanation(schema: Any) -> None:
    """Collecting the errors of 60 levels would take 2^60 steps."""
    refused = refusal(schema, nested(60))
    assert refused.code == "invalid_input"
    assert "too complex to say where" in str(refused)


@pytest.mark.parametrize("schema", RECURSIVE.values(), ids=list(RECURSIVE))
def test_a_shallow_input_of_a_recursive_schema_is_explained(schema: Any) -> None:
    assert "too complex" not in str(refusal(schema, nested(2)))


def test_the_explanation_names_the_field() -> None:
    schema = {"properties": {"size": {"type": "object", "properties": {"width": {"type": "integer"}}}}}
    assert str(refusal(schema, {"size": {"width": "x"}})) == 'size/width: "x" is not of type "integer"'


def test_the_work_of_an_explanation_grows_with_every_level_and_is_counted_up_to_a_limit() -> None:
    schema = RECURSIVE["anyOf"]
    works = [count_explanation_work(schema, nested(depth)) for depth in (1, 2, 3, 40)]
    assert works[0] is not None
    assert works[0] < (works[1] or 0) < (works[2] or 0)
    assert works[3] is not None
    assert works[3] > 2**40


@pytest.mark.parametrize("schema", [
    recursive({"$ref": "#/$defs/node"}), {"$ref": "#/$defs/missing"}, {"$ref": "other.json"}, {"$ref": "#anchor"},
    {"$dynamicRef": "#node"}, {"$recursiveRef": "#"}, recursive({"anyOf": [NODE, {"type": "string"}]}),
])  # fmt: skip
def test_work_that_cannot_be_counted_has_no_number(schema: Any) -> None:
    assert count_explanation_work(schema, {"a": 1}) is None


def test_a_large_input_is_not_copied_into_many_errors() -> None:
    """Each error holds a copy of the input."""
    schema = {"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
    values = list(range(200))
    assert "too complex" not in str(refusal(schema, values, body_bytes=1_000))
    assert "too complex" in str(refusal(schema, values, body_bytes=256 * 1024))


def test_validation_has_a_limit_of_steps() -> None:
    schema = {"items": {"allOf": [{"type": "integer"}] * 50}}
    limits = Limits(validation_steps_max=10_000)
    InputSchema("sketch", schema).check([1] * 20, 100, limits)
    refused = refusal(schema, [1] * 2_000, limits=limits)
    assert refused.code == "input_too_large"
    assert "at most 10000 are allowed" in str(refused)


def test_a_schema_has_a_limit_of_values() -> None:
    check_input_schema("sketch", {"enum": list(range(9_000))}, LIMITS)
    with pytest.raises(BadInput, match="at most 10000 are allowed") as refused:
        check_input_schema("sketch", {"enum": list(range(10_000))}, LIMITS)
    assert refused.value.code == "schema_too_large"


@pytest.mark.parametrize("pattern", ["^(?=a)b$", r"(a)\1", "(((((a{50}){50}){50}){50}){50})"])
def test_a_pattern_that_cannot_be_matched_in_linear_time_and_bounded_memory_is_refused(pattern: str) -> None:
    with pytest.raises(BadInput, match="without lookaround and backreferences") as refused:
        check_input_schema("sketch", {"pattern": pattern}, LIMITS)
    assert refused.value.code == "invalid_workflow"


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: Any = {"type": "integer"}
    for _ in range(2_000):
        schema = {"not": schema}
    with pytest.raises(BadInput) as refused:
        check_input_schema("sketch", schema, LIMITS)
    assert refused.value.code == "invalid_workflow"
