"""Whether a table has the shape of a struct: unknown and missing fields, wrong types; all of them, not the first."""

import datetime as dt
import difflib
import math
from collections.abc import Iterator
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct

from callsheet.catalog.lines import Path

_WORDS = {
    "int": "a whole number", "float": "a number", "str": 'a text in quotes: "…"', "bool": "true or false",
    "array": "a list: […]", "object": "a table", "null": "nothing",
}  # fmt: skip
_DATES = (dt.date, dt.time)
_UNIONS = (Union, UnionType)


class Fault(NamedTuple):
    """Something wrong: where in the document, what, and what to do."""

    place: Path
    what: str
    do: str


def faults(table: dict[str, Any], shape: type[Struct], place: Path) -> Iterator[Fault]:
    """Yield what a table has too much, too little and wrongly for a struct."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(shape)}
    for name, value in table.items():
        if name not in fields:
            yield Fault((*place, name), f"There is no field {name!r} here.", _meant(name, list(fields)))
        else:
            yield from _value_faults(value, fields[name].type, (*place, name))
    for name, field in fields.items():
        if name not in table and field.default is NODEFAULT and field.default_factory is NODEFAULT:
            yield Fault(place, f"The field {name!r} is missing.", f"Add {name} = …")


def _value_faults(value: Any, kind: Any, place: Path) -> Iterator[Fault]:
    fitting = _fitting(value, kind)
    if fitting is None:
        yield from _json_faults(value, place) or _type_faults(value, kind, place)
    elif _is_struct(fitting):
        yield from faults(value, fitting, place)
    else:
        inner = get_args(fitting)[-1]
        for name, one in enumerate(value) if isinstance(value, list) else value.items():
            yield from _value_faults(one, inner, (*place, name))


def _fitting(value: Any, kind: Any) -> Any:
    """Return the struct, or the list or table of structs, that a value is to be judged by part by part, or None."""
    for one in get_args(kind) if get_origin(kind) in _UNIONS else (kind,):
        if _is_struct(one) and isinstance(value, dict):
            return one
        if get_origin(one) in {list, dict} and isinstance(value, get_origin(one)) and _holds_struct(get_args(one)[-1]):
            return one
    return None


def _holds_struct(kind: Any) -> bool:
    return any(map(_is_struct, get_args(kind) if get_origin(kind) in _UNIONS else (kind,)))


def _type_faults(value: Any, kind: Any, place: Path) -> list[Fault]:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        said = str(error).partition(" - at ")[0]
        what = f"{_name(place)}: {said[:1].lower()}{said[1:]}."
        return [Fault(place, what.replace("`", ""), f"Write {_wanted(kind, said)}.")]
    return []


def _wanted(kind: Any, said: str) -> str:
    """Say what belongs here, in words."""
    if said.startswith("Invalid enum"):
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(kind))
    kinds = said.partition("`")[2].partition("`")[0].split(" | ")
    return " or ".join(_WORDS.get(kind, kind) for kind in kinds if kind != "null" or len(kinds) == 1)


def _json_faults(value: Any, place: Path) -> list[Fault]:
    """Find what TOML can say and JSON cannot."""
    if isinstance(value, dict):
        return [fault for name, one in value.items() for fault in _json_faults(one, (*place, name))]
    if isinstance(value, list):
        return [fault for no, one in enumerate(value) for fault in _json_faults(one, (*place, no))]
    if isinstance(value, _DATES):
        return [Fault(place, f"{_name(place)} is a date, which JSON does not have.", "Put it in quotes.")]
    if isinstance(value, float) and not math.isfinite(value):
        return [Fault(place, f"{_name(place)} is {value}, which JSON does not have.", "Write a number.")]
    return []


def _meant(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1, 0.6)
    return f"Did you mean {close[0]!r}?" if close else f"Known are {', '.join(known)}."


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _name(place: Path) -> str:
    """Write a place as TOML would: stages[0].kind."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
