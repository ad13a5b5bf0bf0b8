"""Output of commands: tables for people, JSON for programs, one sentence for a failure."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer.core import TyperGroup

from callsheet.core.model.errors import Refusal
from callsheet.core.model.plural import pluralize
from callsheet.store.connection import StoreError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

FAILED, USAGE_ERROR, NO_SERVER, INTERRUPTED = 1, 2, 3, 130
_UNLIMITED_WIDTH, _GAP, _TEXT_WIDTH_MIN = 100_000, 2, 12
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_METAVARS = {"str": "TEXT", "int": "NUMBER", "float": "NUMBER"}
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


class Failure(Exception):  # noqa: N818 - an expected end of a command
    """A failure that the user can act on: one sentence, and the exit code for scripts."""

    def __init__(self, message: str, exit_code: int = FAILED, *, code: str = "failed", request_id: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.code = code
        self.request_id = request_id
        self.json_output = False
        """Whether the command was called with --json, so that the failure is printed as JSON."""

    def line(self) -> str:
        if not self.json_output:
            return f"callsheet: {self}"
        return json_line({"code": self.code, "message": str(self), "request_id": self.request_id or None})


class CommandGroup(TyperGroup):
    """A group of commands that prints failures as one sentence, never a traceback, and uniform help."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for command in self.commands.values():
            for parameter in command.params:
                _set_metavar(parameter)

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


def _set_metavar(parameter: Any) -> None:
    """Show placeholders in help as JOB and PATH, not {job} and <path>."""
    if parameter.param_type_name == "argument":
        parameter.metavar = parameter.metavar or parameter.name.upper()
        parameter.display_type_rich = lambda ctx: None  # noqa: ARG005 - its name says it
    elif parameter.metavar is None and not parameter.is_flag and not parameter.type_descriptor.is_choice:
        kind = parameter.bare_type().removeprefix("list[").removesuffix("]")
        parameter.metavar = _METAVARS.get(kind, kind.upper())


def create_group(name: str, **kwargs: Any) -> typer.Typer:
    """Make a group of commands."""
    kwargs.setdefault("no_args_is_help", not kwargs.get("invoke_without_command"))
    return typer.Typer(name=name, cls=CommandGroup, pretty_exceptions_enable=False, rich_markup_mode=None, **kwargs)


def print_line(line: str) -> None:
    """Print a line and flush it: the reader of a pipe may be waiting for it."""
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, which is no failure
        raise
    except OSError as error:
        raise write_failure(error) from None


def write_failure(error: OSError) -> Failure:
    """Return a failure for unwritable output, and discard the buffered rest: flushing it at exit would raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Failure(f"Cannot write all of the output: {error.strerror}.")


def shell_command(words: str) -> str:
    """Return a `callsheet` command as the user can type it: with this program's path if it is not on PATH."""
    program, found = Path(sys.argv[0]), shutil.which("callsheet")
    if program.name != "callsheet" or (found and program.exists() and program.samefile(found)):
        return f"callsheet {words}"
    return f"{shlex.quote(str(program))} {words}"


def as_json(value: Any) -> None:
    """Print a value as one JSON document."""
    print_line(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_result(value: Any, sentence: str, *, json: bool) -> None:
    """Print the result of a command: the value as JSON for programs, or a sentence for people."""
    if json:
        as_json(value)
    else:
        print_line(sentence)


def json_line(value: Any) -> str:
    """Return a value as JSON on one line."""
    return msgspec.json.encode(value).decode()


def format_time(at: datetime | None) -> str:
    """Format a time for people: in local time with its zone, in a form that --since accepts."""
    return at.astimezone().isoformat(timespec="seconds") if at else ""


def format_duration(seconds: float) -> str:
    """Format a duration for people: 40 seconds, 12 minutes, 3 hours."""
    for unit, noun in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if seconds >= 1.5 * unit:
            return pluralize(round(seconds / unit), noun)
    return pluralize(round(seconds), "second")


def sanitize(text: str) -> str:
    """Return an untrusted text on one line, without terminal control characters."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def table(
    headers: Sequence[str], lines: Iterable[Sequence[Any]], *, empty: str, least: Sequence[str] = (),
    text: Sequence[str] = (),
) -> None:  # fmt: skip
    """Print a table; without lines, a sentence.

    Elsewhere than on a terminal no line is ever broken. On one that is narrow, columns are left out, the `least`
    important first, and columns of `text` go over several lines; where even that is too wide, each line becomes a
    record, one field below the other. An id, a time or a number is whole or not there.
    """
    from rich.console import Console  # noqa: PLC0415 - `--help` and `--json` go without it
    from rich.text import Text  # noqa: PLC0415 - the same

    rows = [[Text("" if cell is None else sanitize(str(cell))) for cell in line] for line in lines]
    if not rows:
        print_line(empty)
        return
    console = Console() if sys.stdout.isatty() else Console(width=_UNLIMITED_WIDTH)
    widths = [max(len(header), *(line[index].cell_len for line in rows)) for index, header in enumerate(headers)]
    needed = [
        max(len(header), min(width, _TEXT_WIDTH_MIN)) if header in text else width
        for header, width in zip(headers, widths, strict=True)
    ]
    columns = _select_columns(headers, needed, console.width, least)
    with console.capture() as captured:
        if columns:
            _print_columns(console, headers, rows, columns, text)
        else:
            _print_records(console, headers, rows)
    print_line(captured.get().removesuffix("\n"))


def _print_columns(
    console: "Console", headers: Sequence[str], lines: Sequence[Sequence["Text"]], columns: Sequence[int],
    text: Sequence[str],
) -> None:  # fmt: skip
    from rich.table import Table  # noqa: PLC0415 - `--help` and `--json` go without it

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for index in columns:
        grid.add_column(headers[index], overflow="fold", no_wrap=headers[index] not in text)
    for line in lines:
        grid.add_row(*(line[index] for index in columns))
    console.print(grid)


def _print_records(console: "Console", headers: Sequence[str], lines: Sequence[Sequence["Text"]]) -> None:
    """Print each row as a record, one field per line, without empty fields."""
    from rich.text import Text  # noqa: PLC0415 - `--help` and `--json` go without it

    name_width = max(map(len, headers))
    for number, line in enumerate(lines):
        if number:
            console.print()
        for header, cell in zip(headers, line, strict=True):
            if cell:
                console.print(Text.assemble((f"{header:<{name_width}}", "bold"), " " * _GAP, cell))


def _select_columns(headers: Sequence[str], widths: Sequence[int], width: int, least: Sequence[str]) -> list[int]:
    """Return the columns to show; none, if even the most important ones do not fit."""
    columns, droppable = list(range(len(headers))), [headers.index(header) for header in least]
    while sum(widths[index] + _GAP for index in columns) - _GAP > width:
        if not droppable:
            return []
        columns.remove(droppable.pop(0))
    return columns
