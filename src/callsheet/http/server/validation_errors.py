"""Turns a struct that does not decode into one sentence. An unknown field gets the closest name, or the known names.

Only refused requests come here. The sentence repeats at most the shortened name of a field, never a value.
"""

import difflib
import re
from typing import Any

import msgspec
from msgspec.inspect import DictType, ListType, LiteralType, Metadata, StructType, Type, UnionType, type_info

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>.*?)`(?: - at `(?P<place>\$[^`]*)`)?", re.DOTALL)
_INVALID_ENUM = re.compile(r"Invalid enum value .*?(?: - at `(?P<place>\$[^`]*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[[^\]]*\]")
_NAME_CHARS_MAX = 80
_SIMILARITY_MIN = 0.6


def describe_validation_error(error: msgspec.ValidationError, shape: Any) -> str:
    """Return what is wrong with something that should have this shape."""
    if (found := _INVALID_ENUM.fullmatch(str(error))) and (known := _literal_values(shape, found["place"] or "")):
        return f"`{found['place']}` is one of {', '.join(f'`{one}`' for one in known)}."
    found = _UNKNOWN_FIELD.fullmatch(str(error))
    if found is None:
        return f"{error}."
    name, path = found["name"], found["place"] or ""
    at = f" - at `{path}`" if path else ""
    return f"Object contains unknown field `{_shorten(name)}`{at}: {_suggest(name, _field_names(shape, path))}"


def _shorten(name: str) -> str:
    return name if len(name) <= _NAME_CHARS_MAX else f"{name[:_NAME_CHARS_MAX]}…"


def _suggest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name[:_NAME_CHARS_MAX], known, 1, _SIMILARITY_MIN)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"known are {', '.join(f'`{one}`' for one in known)}." if known else "there is none here."


def _field_names(shape: Any, path: str) -> list[str]:
    """Return the fields of the struct at a place of a shape."""
    node = _container_type(_type_at(shape, path))
    return [field.encode_name for field in node.fields] if isinstance(node, StructType) else []


def _literal_values(shape: Any, path: str) -> list[Any]:
    """Return the values that may stand at a place of a shape."""
    node = _type_at(shape, path)
    kinds = node.types if isinstance(node, UnionType) else (node,)
    return [value for kind in kinds if isinstance(kind, LiteralType) for value in kind.values]


def _type_at(shape: Any, path: str) -> Type | None:
    """Return what stands at a place of a shape, as `$.jobs[0]`."""
    node: Type | None = type_info(shape)
    for step in _STEP.finditer(path):
        node = _without_metadata(_step_into(_container_type(node), step[1]))
    return node


def _without_metadata(node: Type | None) -> Type | None:
    """Unwrap a field with a description."""
    while isinstance(node, Metadata):
        node = node.type
    return node


def _step_into(node: Type | None, field: str | None) -> Type | None:
    if isinstance(node, StructType):
        return next((one.type for one in node.fields if one.encode_name == field), None)
    if isinstance(node, ListType):
        return node.item_type
    return node.value_type if isinstance(node, DictType) else None


def _container_type(node: Type | None) -> Type | None:
    """Return what can have a field inside it: of a field that may be null, the other."""
    if not isinstance(node, UnionType):
        return node
    inner = (_without_metadata(one) for one in node.types)
    return next((one for one in inner if isinstance(one, StructType | ListType | DictType)), None)
