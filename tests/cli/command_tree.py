"""Lists every command of the command line."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from callsheet.cli.main import app


def commands(group: Any = None, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words of every command, and the command."""
    parent: Any = group or get_command(app)
    for name, one in parent.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, (*prefix, name))
        else:
            yield (*prefix, name), one
