"""Check a table against a struct: find all unknown fields, missing fields and wrong types, not only the first."""

import datetime as dt
import difflib
import math
from collections.abc import Iterator
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct

from callsheet.catalog.toml_positions import Path

_TYPE_NAMES = {
    "int": "a whole number", "float": "a number", "str": 'a text in quotes: "…"', "bool": "true or false",
    "array": "a list: […]", "object": "a table", "null": "nothing",
}  # fmt: skip
_DATES = (dt.date, dt.time)
_UNIONS = (Union, UnionType)


class Violation(NamedTuple):
    """A problem: its path in the document, a message, and what to do."""

    key_path: Path
    message: str
    hint: str


def find_violations(table: dict[str, Any], struct: type[Struct], key_path: Path) -> Iterator[Violation]:
    """Yield the unknown fields, missing fields and wrong types of a table."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    for name, value in table.items():
        if name not in fields:
            yield Violation((*key_path, name), f"There is no field {name!r} here.", _suggest_field(name, list(fields)))
        else:
            yield from _check_value(value, fields[name].type, (*key_path, name))
    for name, field in fields.items():
        if name not in table and field.default is NODEFAULT and field.default_factory is NODEFAULT:
            yield Violation(key_path, f"The field {name!r} is missing.", f"Add {name} = …")


def _check_value(value: Any, annotation: Any, key_path: Path) -> Iterator[Violation]:
    struct_type = _struct_type_for(value, annotation)
    if struct_type is None:
        yield from _find_non_json(value, key_path) or _check_type(value, annotation, key_path)
    elif _is_struct(struct_type):
        yield from find_violations(value, struct_type, key_path)
    else:
        inner = get_args(struct_type)[-1]
        for name, item in enumerate(value) if isinstance(value, list) else value.items():
            yield from _check_value(item, inner, (*key_path, name))


def _struct_type_for(value: Any, annotation: Any) -> Any:
    """Return the struct, or the list or dict of structs, that a value is checked against; None if there is none."""
    for item in get_args(annotation) if get_origin(annotation) in _UNIONS else (annotation,):
        if _is_struct(item) and isinstance(value, dict):
            return item
        if (
            get_origin(item) in {list, dict}
            and isinstance(value, get_origin(item))
            and _holds_struct(get_args(item)[-1])
        ):
            return item
    return None


def _holds_struct(annotation: Any) -> bool:
    return any(map(_is_struct, get_args(annotation) if get_origin(annotation) in _UNIONS else (annotation,)))


def _check_type(value: Any, annotation: Any, key_path: Path) -> list[Violation]:
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError as error:
        error_text = str(error).partition(" - at ")[0]
        message = f"{_format_path(key_path)}: {error_text[:1].lower()}{error_text[1:]}."
        return [Violation(key_path, message.replace("`", ""), f"Write {_expected_value(annotation, error_text)}.")]
    return []


def _expected_value(annotation: Any, error_text: str) -> str:
    """Describe the expected value in words."""
    if error_text.startswith("Invalid enum"):
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(annotation))
    type_names = error_text.partition("`")[2].partition("`")[0].split(" | ")
    return " or ".join(
        _TYPE_NAMES.get(type_name, type_name) for type_name in type_names if type_name != "null" or len(type_names) == 1
    )


def _find_non_json(value: Any, key_path: Path) -> list[Violation]:
    """Find values that TOML supports and JSON does not: dates, inf and nan."""
    if isinstance(value, dict):
        return [violation for name, item in value.items() for violation in _find_non_json(item, (*key_path, name))]
    if isinstance(value, list):
        return [violation for no, item in enumerate(value) for violation in _find_non_json(item, (*key_path, no))]
    if isinstance(value, _DATES):
        return [
            Violation(key_path, f"{_format_path(key_path)} is a date, which JSON does not have.", "Put it in quotes.")
        ]
    if isinstance(value, float) and not math.isfinite(value):
        return [
            Violation(key_path, f"{_format_path(key_path)} is {value}, which JSON does not have.", "Write a number.")
        ]
    return []


def _suggest_field(name: str, known_fields: list[str]) -> str:
    close_matches = difflib.get_close_matches(name, known_fields, 1, 0.6)
    return f"Did you mean {close_matches[0]!r}?" if close_matches else f"The fields are {', '.join(known_fields)}."


def _is_struct(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Struct)


def _format_path(key_path: Path) -> str:
    """Format a path, such as stages[0].kind."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key_path).removeprefix(".")
