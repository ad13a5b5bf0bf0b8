"""What a command prints: a table for people, JSON for programs, one sentence when it fails."""

import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperGroup

from callsheet.core.errors import Refusal
from callsheet.store.connection import StoreError

FAILED, NO_SERVER, INTERRUPTED = 1, 3, 130
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


class Failure(Exception):  # noqa: N818 - an ending, not an accident
    """Something a person can act on, said in one sentence, and the exit code for scripts."""

    def __init__(self, sentence: str, code: int = FAILED) -> None:
        super().__init__(sentence)
        self.exit_code = code


class Commands(TyperGroup):
    """A group of commands whose failures are one sentence, never a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (Failure, StoreError, Refusal) as error:
            sys.stderr.write(f"callsheet: {error}\n")
            raise typer.Exit(getattr(error, "exit_code", FAILED)) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def group(name: str, **more: Any) -> typer.Typer:
    """Make a group of commands."""
    return typer.Typer(
        name=name, cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, **more
    )


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def as_json(value: Any) -> None:
    """Print a value for programs: one document."""
    say(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def table(heads: Sequence[str], lines: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Print a table; without lines, a sentence."""
    from rich.console import Console  # noqa: PLC0415 - `--help` and `--json` go without it
    from rich.table import Table  # noqa: PLC0415 - the same
    from rich.text import Text  # noqa: PLC0415 - the same

    shown = [[Text("" if cell is None else str(cell)) for cell in line] for line in lines]
    if not shown:
        say(empty)
        return
    made = Table(box=None, pad_edge=False, header_style="bold")
    for place, head in enumerate(heads):
        made.add_column(head, overflow="fold", no_wrap=place == 0)
    for line in shown:
        made.add_row(*line)
    Console(soft_wrap=not sys.stdout.isatty()).print(made)
