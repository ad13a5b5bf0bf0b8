"""Checks that both databases can store the texts and numbers of a command, before anything is looked up."""

from functools import lru_cache
from typing import Any, get_args, get_type_hints

from msgspec import UNSET

from callsheet.core.model.commands import Command, Lease
from callsheet.core.model.errors import BadInput
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition

_NUMBER_MAX = 2**63 - 1


def check_storable(command: Command) -> None:
    """Refuse a command with a NUL character, a lone surrogate or a number over 64 bits in its fields."""
    for name in _text_fields(type(command)):
        value = getattr(command, name)
        if value is None:
            continue
        text = value if type(value) is str else _join_texts(value)
        if "\0" in text or not (text.isascii() or _is_encodable(text)):
            message = f"`{name}` contains a NUL character or a lone surrogate, which cannot be stored: remove it."
            raise BadInput("invalid_text", message)
    for name in _number_fields(type(command)):
        number = getattr(command, name)
        number = number.attempt if isinstance(number, Lease) else number
        if number is not None and number is not UNSET and not -_NUMBER_MAX <= number <= _NUMBER_MAX:
            raise BadInput("out_of_range", f"`{name}` does not fit into 64 bits: send a smaller number.")


def _join_texts(value: Any) -> str:
    if isinstance(value, Lease):
        return f"{value.job_id}{value.task_id}{value.token}"
    if isinstance(value, StageSpec):
        return f"{value.name}{value.kind}{value.provider}"
    if isinstance(value, WorkflowDefinition):
        return value.name + _join_texts(value.stages)
    return "".join([one if isinstance(one, str) else _join_texts(one) for one in value])


@lru_cache
def _text_fields(command: type[Command]) -> tuple[str, ...]:
    return tuple(
        name
        for name, hint in get_type_hints(command).items()
        if _contains_type(hint, str, Lease, WorkflowDefinition, StageSpec)
    )


@lru_cache
def _number_fields(command: type[Command]) -> tuple[str, ...]:
    return tuple(name for name, hint in get_type_hints(command).items() if _contains_type(hint, int, Lease))


def _contains_type(hint: Any, *wanted: type) -> bool:
    """Return whether a field's type contains one of these types, also as an option or in a list."""
    if hint in wanted:
        return True
    origin = getattr(hint, "__origin__", None)
    return origin is not dict and any(_contains_type(part, *wanted) for part in get_args(hint))


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
