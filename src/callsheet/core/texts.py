"""Texts and numbers that a database can keep: others are refused here, before anything is looked up with them."""

from functools import lru_cache
from typing import Any, get_args, get_type_hints

from callsheet.core.commands import Command, Lease
from callsheet.core.errors import BadInput
from callsheet.core.recipe import Recipe, StageSpec

_NUMBER_MAX = 2**63 - 1


def check_texts(command: Command) -> None:
    """Refuse a command that has a NUL, half a character or a number of more than 64 bits in its own fields."""
    for name in _texts(type(command)):
        value = getattr(command, name)
        if value is None:
            continue
        text = value if type(value) is str else _joined(value)
        if "\0" in text or not (text.isascii() or _whole(text)):
            raise BadInput("invalid_text", f"The {name} has a character that no database keeps.")
    for name in _numbers(type(command)):
        number = getattr(command, name)
        number = number.attempt if isinstance(number, Lease) else number
        if number is not None and not -_NUMBER_MAX <= number <= _NUMBER_MAX:
            raise BadInput("out_of_range", f"The {name} is a number that no database keeps.")


def _joined(value: Any) -> str:
    if isinstance(value, Lease):
        return f"{value.job_id}{value.task_id}{value.token}"
    if isinstance(value, StageSpec):
        return f"{value.name}{value.kind}{value.provider}"
    if isinstance(value, Recipe):
        return value.name + _joined(value.stages)
    return "".join([one if isinstance(one, str) else _joined(one) for one in value])


@lru_cache
def _texts(command: type[Command]) -> tuple[str, ...]:
    return tuple(name for name, hint in get_type_hints(command).items() if _holds(hint, str, Lease, Recipe, StageSpec))


@lru_cache
def _numbers(command: type[Command]) -> tuple[str, ...]:
    return tuple(name for name, hint in get_type_hints(command).items() if _holds(hint, int, Lease))


def _holds(hint: Any, *wanted: type) -> bool:
    """Say whether a field is, may be, or lists one of these; what is in objects with free names is JSON."""
    if hint in wanted:
        return True
    origin = getattr(hint, "__origin__", None)
    return origin is not dict and any(_holds(part, *wanted) for part in get_args(hint))


def _whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
