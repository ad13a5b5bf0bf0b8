"""The cost of validating an input: an upper bound of the steps, found without validating it.

A validator evaluates a subschema once for every path that leads to it. Paths multiply: a chain of twenty definitions
that each refer twice to the next one has a million. The count follows the same paths, but visits each pair of subschema
and value only once.
"""

from collections.abc import Callable, Iterator
from typing import Any

from callsheet.core.policy.input_schema.pattern_size import pattern_size

_DEPTH_MAX = 200
"""The longest path of subschemas, with references followed. Longer ones have no count."""
_PATTERN_STEPS = 8
"""How many characters times states of a pattern cost as much as another step."""
_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_VALUE = ("not", "if", "then", "else")
_SAME_VALUE_MAPS = ("dependentSchemas", "dependencies")
_EACH_ITEM = ("items", "additionalItems", "contains", "unevaluatedItems")
_EACH_FIELD = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_FIELD_MAPS = ("properties", "patternProperties")
_LISTS = (*_SAME_VALUE_LISTS, "prefixItems")
_MAPS = (*_SAME_VALUE_MAPS, *_FIELD_MAPS)
_SINGLE = (*_SAME_VALUE, *_EACH_ITEM, *_EACH_FIELD)
_NOT_EVALUATED = {"$defs", "definitions"}
_UNSUPPORTED = ("$dynamicRef", "$recursiveRef")

StepCost = Callable[[dict[str, Any], Any], int]


class ValidationCost:
    """Counts the steps that a schema costs."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._own_sizes: dict[int, int] = {}
        self.problem: str | None = None
        """A reference that cannot be followed, as the end of a sentence about the schema."""
        self.size: int | None = 0
        """The number of values in the schema with all references replaced; None if it refers to itself."""
        self.patterns_size: int | None = 0
        """The size of all patterns, counted in the same way."""
        self.size = self._expand(root, self._own_size)
        self.patterns_size = self._expand(root, _patterns_size)

    def fast_estimate(self, value: Any, body_bytes: int) -> int | None:
        """Return the steps if every subschema met every value; None if the schema refers to itself."""
        if self.size is None or self.patterns_size is None:
            return None
        return self.size * count_values(value) + self.patterns_size * body_bytes // _PATTERN_STEPS

    def steps(self, value: Any, pairs_max: int) -> int | None:
        """Return an upper bound of the steps to validate a value; None if there are too many pairs to count."""
        return self._count(value, pairs_max, self._step_cost)

    def evaluations(self, value: Any, pairs_max: int) -> int | None:
        """Return an upper bound of the subschemas that are evaluated, and so of the errors in an explanation."""
        return self._count(value, pairs_max, lambda _schema, _value: 1)

    def _count(self, value: Any, pairs_max: int, step_cost: StepCost) -> int | None:
        counts: dict[tuple[int, int], int | None] = {}

        def count(schema: Any, value: Any, depth: int) -> int | None:
            if not isinstance(schema, dict):
                return 1
            pair = id(schema), id(value)
            if pair not in counts:
                if len(counts) >= pairs_max or depth > _DEPTH_MAX:
                    return None
                counts[pair] = None  # a schema that refers to itself for the same value never ends
                counts[pair] = total(schema, value, depth + 1)
            return counts[pair]

        def total(schema: dict[str, Any], value: Any, depth: int) -> int | None:
            works = [count(subschema, part, depth) for subschema, part in self._parts(schema, value)]
            if None in works:
                return None
            return _again_if_unevaluated(schema, step_cost(schema, value) + sum(work or 0 for work in works))

        return count(self._root, value, 0)

    def _expand(self, root: Any, size_of: Callable[[dict[str, Any]], int]) -> int | None:
        sizes: dict[int, int | None] = {}

        def expand(schema: Any, depth: int) -> int | None:
            if not isinstance(schema, dict):
                return 0
            if id(schema) not in sizes:
                if depth > _DEPTH_MAX:
                    self.problem = f"has more than {_DEPTH_MAX} subschemas within each other. Make it flatter"
                    return None
                sizes[id(schema)] = None
                self._check_references(schema)
                parts = [expand(subschema, depth + 1) for subschema in self._subschemas(schema)]
                if None not in parts:
                    own = size_of(schema) + sum(part or 0 for part in parts)
                    sizes[id(schema)] = _again_if_unevaluated(schema, own)
            return sizes[id(schema)]

        return expand(root, 0)

    def _check_references(self, schema: dict[str, Any]) -> None:
        id_keyword = "id" if "draft-04" in str(_get(self._root, "$schema")) else "$id"
        if schema is not self._root and isinstance(schema.get(id_keyword), str):
            self.problem = f"has {id_keyword} in a subschema. Remove it"
        for keyword in _UNSUPPORTED:
            if keyword in schema:
                self.problem = f"uses {keyword}, which is not supported. Use $ref"
        if "$ref" in schema and self._resolve(schema["$ref"]) is None:
            self.problem = (
                f"refers to {str(schema['$ref'])[:80]!r}. Refer to a part of the same schema by its path, such as "
                "'#/$defs/size'"
            )

    def _own_size(self, schema: dict[str, Any]) -> int:
        """Return the number of values in a schema, without its subschemas."""
        if id(schema) not in self._own_sizes:
            size = 1
            for keyword, value in schema.items():
                if keyword in _MAPS:
                    size += 1 + len(_map(schema, keyword))
                elif keyword not in _NOT_EVALUATED and keyword not in _LISTS and keyword not in _SINGLE:
                    size += 1 + count_values(value)
            self._own_sizes[id(schema)] = size
        return self._own_sizes[id(schema)]

    def _step_cost(self, schema: dict[str, Any], value: Any) -> int:
        cost = self._own_size(schema)
        if isinstance(value, str) and "pattern" in schema:
            cost += pattern_size(schema["pattern"]) * len(value) // _PATTERN_STEPS
        if isinstance(value, dict) and "patternProperties" in schema:
            names = sum(len(name) + 1 for name in value)
            cost += sum(pattern_size(pattern) for pattern in schema["patternProperties"]) * names // _PATTERN_STEPS
        return cost

    def _subschemas(self, schema: dict[str, Any]) -> Iterator[Any]:
        if "$ref" in schema:
            yield self._resolve(schema["$ref"])
        for keyword in _LISTS:
            yield from _list(schema, keyword)
        for keyword in _MAPS:
            yield from _map(schema, keyword).values()
        for keyword in _SINGLE:
            subschema = schema.get(keyword)
            yield from subschema if isinstance(subschema, list) else (subschema,)

    def _parts(self, schema: dict[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
        """Yield each subschema with the value that it applies to."""
        if "$ref" in schema:
            yield self._resolve(schema["$ref"]), value
        for keyword in _SAME_VALUE_LISTS:
            yield from ((subschema, value) for subschema in _list(schema, keyword))
        for keyword in _SAME_VALUE:
            if keyword in schema:
                yield schema[keyword], value
        for keyword in _SAME_VALUE_MAPS:
            yield from ((subschema, value) for subschema in _map(schema, keyword).values())
        if isinstance(value, dict):
            yield from _field_parts(schema, value)
        elif isinstance(value, list | tuple):
            yield from _item_parts(schema, value)

    def _resolve(self, reference: Any) -> Any:
        """Follow a reference into the same schema; None for any other."""
        if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
            return None
        target = self._root
        for part in reference.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                target = _get(target, name)
        return target


def count_values(value: Any) -> int:
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


def _patterns_size(schema: dict[str, Any]) -> int:
    patterns = [schema["pattern"]] if "pattern" in schema else []
    return sum(pattern_size(pattern) for pattern in (*patterns, *schema.get("patternProperties", ())))


def _again_if_unevaluated(schema: dict[str, Any], work: int) -> int:
    """Double the work if what is unevaluated must be found, by evaluating the subschemas of the value once more."""
    return work * 2 if "unevaluatedProperties" in schema or "unevaluatedItems" in schema else work


def _field_parts(schema: dict[str, Any], value: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    for name, subschema in _map(schema, "properties").items():
        if name in value:
            yield subschema, value[name]
    for subschema in _map(schema, "patternProperties").values():
        yield from ((subschema, field) for field in value.values())
    for keyword in ("additionalProperties", "unevaluatedProperties"):
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
    yield from zip(_list(schema, "prefixItems"), value, strict=False)


def _list(schema: dict[str, Any], keyword: str) -> list[Any]:
    """Return the value of a keyword. Keywords that a draft does not know may have a value of another type."""
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _map(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def _get(target: Any, name: str) -> Any:
    return target.get(name) if isinstance(target, dict) else None
