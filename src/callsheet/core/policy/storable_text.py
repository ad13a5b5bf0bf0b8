"""Checks that both databases can store the texts and numbers of a command, before anything is looked up."""

import re
from functools import lru_cache
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import UNSET

from callsheet.core.model.commands import Command, Lease
from callsheet.core.model.errors import BadInput

_NUMBER_MAX = 2**63 - 1
_NUL = b"\\u0000"
_NUL_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""A NUL character in JSON: the escape, but not an escaped backslash before `u0000`."""
_encode = msgspec.json.Encoder().encode


def check_storable(command: Command) -> None:
    """Refuse a command with a NUL character, a lone surrogate or a number over 64 bits.

    Texts are checked everywhere in the command: in its fields, in JSON such as an input, and in names of JSON fields.
    """
    try:
        may_be_unstorable = contains_nul(_encode(command))
    except (TypeError, ValueError, RecursionError):
        may_be_unstorable = True
    if may_be_unstorable:
        for name in command.__struct_fields__:
            if not _is_storable(getattr(command, name)):
                raise unstorable_text(name)
    for name in _number_fields(type(command)):
        number = getattr(command, name)
        number = number.attempt if isinstance(number, Lease) else number
        if number is not None and number is not UNSET and not -_NUMBER_MAX <= number <= _NUMBER_MAX:
            raise BadInput("out_of_range", f"`{name}` does not fit into 64 bits: send a smaller number.")


def unstorable_text(name: str) -> BadInput:
    """Return the error for a text with a NUL character or a lone surrogate."""
    message = f"`{name}` contains a NUL character or a lone surrogate, which cannot be stored: remove it."
    return BadInput("invalid_text", message)


def contains_nul(json: bytes) -> bool:
    """Return whether a text in encoded JSON contains a NUL character."""
    return _NUL in json and _NUL_ESCAPE.search(json) is not None


def _is_storable(value: Any) -> bool:
    try:
        return not contains_nul(_encode(value))
    except UnicodeEncodeError:
        return False
    except (TypeError, ValueError, RecursionError):  # not JSON, or too deep: the decision refuses it with its own error
        return True


@lru_cache
def _number_fields(command: type[Command]) -> tuple[str, ...]:
    return tuple(name for name, hint in get_type_hints(command).items() if _contains_type(hint, int, Lease))


def _contains_type(hint: Any, *wanted: type) -> bool:
    """Return whether a field's type contains one of these types, also as an option or in a list."""
    if hint in wanted:
        return True
    origin = getattr(hint, "__origin__", None)
    return origin is not dict and any(_contains_type(part, *wanted) for part in get_args(hint))
