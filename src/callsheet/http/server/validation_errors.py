"""Error messages for JSON, forms and queries that do not match their struct.

For an unknown field, the message suggests the closest field name, or lists the known fields. It contains at most the
shortened name of a field, never a value.
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
    """Return a sentence that says why a value does not match a type."""
    if (found := _INVALID_ENUM.fullmatch(str(error))) and (known := _literal_values(shape, found["place"] or "")):
        return f"`{found['place']}` must be one of {', '.join(f'`{value}`' for value in known)}."
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
    return f"known fields are {', '.join(f'`{field}`' for field in known)}." if known else "it has no fields."


def _field_names(shape: Any, path: str) -> list[str]:
    """Return the fields of the struct at a path such as `$.jobs[0]`."""
    node = _container_type(_type_at(shape, path))
    return [field.encode_name for field in node.fields] if isinstance(node, StructType) else []


def _literal_values(shape: Any, path: str) -> list[Any]:
    """Return the allowed values at a path."""
    node = _type_at(shape, path)
    kinds = node.types if isinstance(node, UnionType) else (node,)
    return [value for kind in kinds if isinstance(kind, LiteralType) for value in kind.values]


def _type_at(shape: Any, path: str) -> Type | None:
    """Return the type at a path such as `$.jobs[0]`."""
    node: Type | None = type_info(shape)
    for step in _STEP.finditer(path):
        node = _without_metadata(_step_into(_container_type(node), step[1]))
    return node


def _without_metadata(node: Type | None) -> Type | None:
    """Return the type of a field without its description."""
    while isinstance(node, Metadata):
        node = node.type
    return node


def _step_into(node: Type | None, field: str | None) -> Type | None:
    if isinstance(node, StructType):
        return next((member.type for member in node.fields if member.encode_name == field), None)
    if isinstance(node, ListType):
        return node.item_type
    return node.value_type if isinstance(node, DictType) else None


def _container_type(node: Type | None) -> Type | None:
    """Return the struct, list or dictionary type of a field that may also be null."""
    if not isinstance(node, UnionType):
        return node
    members = (_without_metadata(member) for member in node.types)
    return next((member for member in members if isinstance(member, StructType | ListType | DictType)), None)
