"""What does not fit a struct, in a sentence: a field that nobody knows is told which one was meant, or which there are.

Only a request that is refused comes here. Of what it brought, the sentence repeats a field's name, cut short.
"""

import difflib
import re
from typing import Any

import msgspec
from msgspec.inspect import DictType, ListType, LiteralType, StructType, Type, UnionType, type_info

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*?)`(?: - at `(?P<place>\$[^`]*)`)?", re.DOTALL)
_CHOICE = re.compile(r"Invalid enum value .*?(?: - at `(?P<place>\$[^`]*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[[^\]]*\]")
_NAME_CHARS_MAX = 80
_ALIKE = 0.6


def sentence(error: msgspec.ValidationError, shape: Any) -> str:
    """Return what is wrong with something that should have this shape."""
    if (found := _CHOICE.fullmatch(str(error))) and (known := _choices(shape, found["place"] or "")):
        return f"`{found['place']}` is one of {', '.join(f'`{one}`' for one in known)}."
    found = _UNKNOWN.fullmatch(str(error))
    if found is None:
        return f"{error}."
    name, place = found["name"], found["place"] or ""
    at = f" - at `{place}`" if place else ""
    return f"Object contains unknown field `{_short(name)}`{at}: {_meant(name, _fields(shape, place))}"


def _short(name: str) -> str:
    return name if len(name) <= _NAME_CHARS_MAX else f"{name[:_NAME_CHARS_MAX]}…"


def _meant(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name[:_NAME_CHARS_MAX], known, 1, _ALIKE)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"known are {', '.join(f'`{one}`' for one in known)}." if known else "there is none here."


def _fields(shape: Any, place: str) -> list[str]:
    """Return the fields of the struct at a place of a shape."""
    here = _struct_or_list(_at(shape, place))
    return [field.encode_name for field in here.fields] if isinstance(here, StructType) else []


def _choices(shape: Any, place: str) -> list[Any]:
    """Return the values that may stand at a place of a shape."""
    here = _at(shape, place)
    kinds = here.types if isinstance(here, UnionType) else (here,)
    return [value for kind in kinds if isinstance(kind, LiteralType) for value in kind.values]


def _at(shape: Any, place: str) -> Type | None:
    """Return what stands at a place of a shape, as `$.jobs[0]`."""
    here: Type | None = type_info(shape)
    for step in _STEP.finditer(place):
        here = _inner(_struct_or_list(here), step[1])
    return here


def _inner(here: Type | None, field: str | None) -> Type | None:
    if isinstance(here, StructType):
        return next((one.type for one in here.fields if one.encode_name == field), None)
    if isinstance(here, ListType):
        return here.item_type
    return here.value_type if isinstance(here, DictType) else None


def _struct_or_list(here: Type | None) -> Type | None:
    """Return what can have a field inside it: of a field that may be null, the other."""
    if not isinstance(here, UnionType):
        return here
    return next((one for one in here.types if isinstance(one, StructType | ListType | DictType)), None)
