"""Every command of the command line, by its words."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from callsheet.cli.main import app


def commands(of: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words of every command, and the command."""
    here: Any = of or get_command(app)
    for name, one in here.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, (*words, name))
        else:
            yield (*words, name), one
