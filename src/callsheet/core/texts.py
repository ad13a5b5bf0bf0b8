"""Texts that a database can keep: refused here, before anything is looked up with them."""

from callsheet.core.commands import Command, Lease
from callsheet.core.errors import BadInput


def check_texts(command: Command) -> None:
    """Refuse a command one of whose own texts has a NUL or a half character."""
    for name in command.__struct_fields__:
        value = getattr(command, name)
        if type(value) is str:
            _check(name, value)
        elif type(value) is Lease:
            _check("lease", f"{value.job_id}{value.task_id}{value.token}")


def _check(name: str, text: str) -> None:
    if "\0" in text or not (text.isascii() or _whole(text)):
        raise BadInput("invalid_text", f"The {name} has a character that no database keeps.")


def _whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
