"""Input schemas: validation and its explanation have a bounded cost, whatever schema and input are stored."""

from collections.abc import Callable
from typing import Any

import pytest

from callsheet.core.model.errors import BadInput
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.input_schema.pattern_size import pattern_size
from callsheet.core.policy.input_schema.validation_cost import ValidationCost
from callsheet.core.policy.input_schema.validator import InputSchema, check_input_schema

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
def test_a_deep_input_of_a_recursive_schema_is_refused_before_it_is_validated(schema: Any) -> None:
    """Each level has at least two paths to the next one, so 60 levels would take 2^60 steps."""
    refused = refusal(schema, nested(60))
    assert refused.code == "input_too_large"
    assert "more than 10000000 steps" in str(refused)


def test_an_invalid_input_is_refused_without_an_expensive_explanation() -> None:
    refused = refusal(RECURSIVE["oneOf"], nested(16))
    assert refused.code == "invalid_input"
    assert "too complex to say where" in str(refused)


@pytest.mark.parametrize("schema", RECURSIVE.values(), ids=list(RECURSIVE))
def test_a_shallow_input_of_a_recursive_schema_is_explained(schema: Any) -> None:
    assert "too complex" not in str(refusal(schema, nested(2)))


def test_the_explanation_names_the_field() -> None:
    schema = {"properties": {"size": {"type": "object", "properties": {"width": {"type": "integer"}}}}}
    assert str(refusal(schema, {"size": {"width": "x"}})) == 'size/width: "x" is not of type "integer"'


def test_the_evaluations_of_a_recursive_schema_grow_with_every_level() -> None:
    cost = ValidationCost(RECURSIVE["anyOf"])
    counts = [cost.evaluations(nested(depth), pairs_max=20_000) or 0 for depth in (1, 2, 3, 40)]
    assert counts[0] < counts[1] < counts[2]
    assert counts[3] > 2**40
    assert cost.evaluations(nested(40), pairs_max=10) is None


@pytest.mark.parametrize(("schema", "problem"), [
    ({"$ref": "#/$defs/missing"}, "is not valid"),
    ({"$ref": "other.json"}, "is not valid"),
    ({"$anchor": "size", "not": {"$ref": "#size"}}, "refers to '#size'. Refer to a part of the same schema"),
    ({"$dynamicAnchor": "node", "not": {"$dynamicRef": "#node"}}, "uses $dynamicRef, which is not supported. Use $ref"),
    ({"not": {"$id": "urn:x", "$ref": "#/$defs/a", "$defs": {"a": True}}, "$defs": {"a": True}}, "has $id in a sub"),
])  # fmt: skip
def test_a_schema_whose_cost_cannot_be_counted_is_refused(schema: Any, problem: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_input_schema("sketch", schema, LIMITS)
    assert refused.value.code == "invalid_workflow"
    assert problem in str(refused.value)


def test_a_draft_4_schema_with_its_own_ids_is_refused() -> None:
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "not": {"id": "urn:x"}}
    with pytest.raises(BadInput, match="has id in a subschema"):
        check_input_schema("sketch", schema, LIMITS)


def test_a_schema_that_refers_to_itself_for_the_same_value_refuses_every_input() -> None:
    assert refusal(recursive({"anyOf": [NODE, {"type": "string"}]}), {"a": 1}).code == "input_too_large"


def chain(length: int, link: Callable[[dict[str, str]], dict[str, Any]]) -> dict[str, Any]:
    definitions: dict[str, Any] = {f"n{no}": link({"$ref": f"#/$defs/n{no + 1}"}) for no in range(length)}
    return {"$defs": {**definitions, f"n{length}": {"type": "integer"}}, "$ref": "#/$defs/n0"}


CHAINS: dict[str, Callable[[dict[str, str]], dict[str, Any]]] = {
    "oneOf": lambda next_one: {"oneOf": [next_one, {"allOf": [next_one]}]},
    "not": lambda next_one: {"anyOf": [next_one, {"not": {"not": next_one}}]},
    "fields": lambda next_one: {"properties": {"a": next_one}, "patternProperties": {"^a$": next_one}},
}


@pytest.mark.parametrize("link", CHAINS.values(), ids=list(CHAINS))
def test_a_chain_of_definitions_that_doubles_with_each_link_is_refused(link: Any) -> None:
    check_input_schema("sketch", chain(10, link), LIMITS)
    with pytest.raises(BadInput, match="steps to validate one value") as refused:
        check_input_schema("sketch", chain(60, link), LIMITS)
    assert refused.value.code == "schema_too_large"


def test_a_chain_that_also_refers_to_its_start_is_refused_with_the_input() -> None:
    schema = chain(
        60, lambda next_one: {"properties": {"z": {"$ref": "#/$defs/n0"}}, "oneOf": [next_one, {**next_one}]}
    )
    check_input_schema("sketch", schema, LIMITS)
    assert refusal(schema, "x").code == "input_too_large"


def test_a_long_chain_of_definitions_is_refused() -> None:
    with pytest.raises(BadInput, match="more than 200 subschemas within each other"):
        check_input_schema("sketch", chain(1_000, lambda next_one: next_one), LIMITS)


def test_keywords_that_a_draft_does_not_know_may_have_any_value() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#", "dependentSchemas": 5, "prefixItems": "x",
        "unevaluatedProperties": [1], "properties": {"a": {"type": "integer"}},
    }  # fmt: skip
    check_input_schema("sketch", schema, LIMITS)
    assert str(refusal(schema, {"a": "x"})).startswith("a: ")


@pytest.mark.parametrize(("pattern", "size"), [
    ("", 0), ("abc", 3), ("a{5}", 5), ("a{2,}", 3), ("ab{0,4}", 5), ("[a-z0-9]{1,64}", 64), (r"\d{4}-\d{2}", 7),
    ("(ab){10}", 30), ("((a{50}){50}){50}", 127_550), (r"\p{L}{3}", 300), (r"[\p{L}\p{M} ]", 201), (r"\{5\}", 3),
    (r"[]{9}]{2}", 2), ("a|b{3}", 5), ("(a", 2), ("a)", 2), ("[[a]{9}]{2}", 198), (r"[^\]]{7}", 7),
])  # fmt: skip
def test_the_size_of_a_pattern_grows_with_its_repetitions(pattern: str, size: int) -> None:
    assert pattern_size(pattern) == size


def test_a_large_pattern_on_a_long_text_is_refused() -> None:
    """Matching it takes a second: the engine tracks a thousand states for each character."""
    schema = {"properties": {"bits": {"pattern": "[01]*1[01]{1000}[2-9]"}, "text": {"type": "string"}}}
    check_input_schema("sketch", schema, LIMITS)
    refused = refusal(schema, {"bits": "0110" * 50_000}, body_bytes=200_000)
    assert refused.code == "input_too_large"
    InputSchema("sketch", schema).check({"text": "0110" * 50_000}, 200_000, LIMITS)
    assert refusal(schema, {"bits": "0110"}, body_bytes=20).code == "invalid_input"


def test_patterns_of_field_names_are_counted() -> None:
    schema = {"patternProperties": {f"[01]*1[01]{{{size}}}[2-9]": {"type": "string"} for size in range(900, 950)}}
    refused = refusal(schema, {f"{no:0200b}": "x" for no in range(100)}, body_bytes=25_000)
    assert refused.code == "input_too_large"


def test_the_patterns_of_a_schema_have_a_limit_of_size() -> None:
    check_input_schema("sketch", {"pattern": "a{50000}"}, LIMITS)
    with pytest.raises(BadInput, match="at most 100000 is allowed") as refused:
        check_input_schema("sketch", {"allOf": [{"pattern": r"\p{L}{150}"}] * 7}, LIMITS)
    assert refused.value.code == "schema_too_large"


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
    assert "more than 10000 steps" in str(refused)


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
