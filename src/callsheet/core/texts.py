"""Texts that a database can keep: refused here, before anything is looked up with them."""

from functools import lru_cache
from typing import get_args, get_type_hints

from callsheet.core.commands import Command, Lease
from callsheet.core.errors import BadInput


def check_texts(command: Command) -> None:
    """Refuse a command one of whose own texts has a NUL or a half character."""
    for name in _texts(type(command)):
        value = getattr(command, name)
        if value is None:
            continue
        text = value if type(value) is str else _joined(value)
        if "\0" in text or not (text.isascii() or _whole(text)):
            raise BadInput("invalid_text", f"The {name} has a character that no database keeps.")


def _joined(value: Lease | tuple[str, ...]) -> str:
    return f"{value.job_id}{value.task_id}{value.token}" if isinstance(value, Lease) else "".join(value)


@lru_cache
def _texts(command: type[Command]) -> tuple[str, ...]:
    hints = get_type_hints(command)
    return tuple(name for name, hint in hints.items() if hint in {str, Lease} or str in get_args(hint))


def _whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
