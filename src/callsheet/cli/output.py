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
_WIDE, _GAP = 100_000, 2
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


class Failure(Exception):  # noqa: N818 - an ending, not an accident
    """Something a person can act on, said in one sentence, and the exit code for scripts."""

    def __init__(self, sentence: str, exit_code: int = FAILED, *, code: str = "failed", request_id: str = "") -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
        self.code = code
        self.request_id = request_id
        self.for_programs = False
        """The command was called with --json, and so is its failure told."""

    def line(self) -> str:
        if not self.for_programs:
            return f"callsheet: {self}"
        return one_line({"code": self.code, "message": str(self), "request_id": self.request_id or None})


class Commands(TyperGroup):
    """A group of commands whose failures are one sentence, never a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Failure as error:
            sys.stderr.write(f"{error.line()}\n")
            raise typer.Exit(error.exit_code) from None
        except (StoreError, Refusal) as error:
            sys.stderr.write(f"callsheet: {error}\n")
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def group(name: str, **more: Any) -> typer.Typer:
    """Make a group of commands."""
    more.setdefault("no_args_is_help", not more.get("invoke_without_command"))
    return typer.Typer(name=name, cls=Commands, pretty_exceptions_enable=False, rich_markup_mode=None, **more)


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def as_json(value: Any) -> None:
    """Print a value for programs: one document."""
    say(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def one_line(value: Any) -> str:
    """Return a value as JSON on one line."""
    return msgspec.json.encode(value).decode()


def table(heads: Sequence[str], lines: Iterable[Sequence[Any]], *, empty: str, least: Sequence[str] = ()) -> None:
    """Print a table; without lines, a sentence.

    Elsewhere than on a terminal no line is ever broken. On one that is narrow, columns are left out, the `least`
    important first.
    """
    from rich.console import Console  # noqa: PLC0415 - `--help` and `--json` go without it
    from rich.table import Table  # noqa: PLC0415 - the same
    from rich.text import Text  # noqa: PLC0415 - the same

    shown = [[Text("" if cell is None else str(cell)) for cell in line] for line in lines]
    if not shown:
        say(empty)
        return
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    widths = [max(len(head), *(line[place].cell_len for line in shown)) for place, head in enumerate(heads)]
    kept = _fitting(heads, widths, console.width, least)
    made = Table(box=None, pad_edge=False, header_style="bold")
    for place in kept:
        made.add_column(heads[place], overflow="fold", no_wrap=place == 0)
    for line in shown:
        made.add_row(*(line[place] for place in kept))
    console.print(made)


def _fitting(heads: Sequence[str], widths: Sequence[int], width: int, least: Sequence[str]) -> list[int]:
    """Return which columns are shown."""
    kept = list(range(len(heads)))
    for head in least:
        if sum(widths[place] + _GAP for place in kept) - _GAP > width:
            kept.remove(heads.index(head))
    return kept
