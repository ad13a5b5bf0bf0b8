"""Output of commands: tables for people, JSON for programs, one sentence for an error."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer.core import TyperGroup

from callsheet.core.model.errors import Refusal
from callsheet.core.model.plural import pluralize
from callsheet.core.model.terminal_text import escape_json, sanitize, sanitize_lines
from callsheet.store.connection import StoreError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

FAILED, USAGE_ERROR, UNAVAILABLE, INTERRUPTED = 1, 2, 3, 130
"""Exit codes. A check that could not run is UNAVAILABLE; one that found a problem is FAILED."""
_UNLIMITED_WIDTH, _GAP, _TEXT_WIDTH_MIN = 100_000, 2, 12
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_METAVARS = {"str": "TEXT", "int": "NUMBER", "float": "NUMBER"}
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


class Failure(Exception):  # noqa: N818 - an expected outcome of a command
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
            return f"callsheet: {sanitize_lines(str(self))}"
        return json_line({"code": self.code, "message": str(self), "request_id": self.request_id or None})


@contextmanager
def failures_as_json(*, json: bool) -> Iterator[None]:
    """Print a failure of this block as JSON, if the command was called with --json."""
    try:
        yield
    except Failure as failure:
        failure.json_output = json
        raise


class CommandGroup(TyperGroup):
    """A group of commands that prints a failure as one sentence without a traceback, and uniform help."""

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
            sys.stderr.write(f"{Failure(str(error)).line()}\n")
            raise typer.Exit(UNAVAILABLE if isinstance(error, StoreError) else FAILED) from None
        except typer.BadParameter as error:
            error.message = sanitize_lines(error.message)
            raise
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _set_metavar(parameter: Any) -> None:
    """Show placeholders in help as JOB and PATH, not {job} and <path>."""
    if parameter.param_type_name == "argument":
        parameter.metavar = parameter.metavar or parameter.name.upper()
        parameter.display_type_rich = lambda ctx: None  # noqa: ARG005 - Typer passes the context
    elif parameter.metavar is None and not parameter.is_flag and not parameter.type_descriptor.is_choice:
        kind = parameter.bare_type().removeprefix("list[").removesuffix("]")
        parameter.metavar = _METAVARS.get(kind, kind.upper())


def create_group(name: str, **kwargs: Any) -> typer.Typer:
    """Create a group of commands."""
    kwargs.setdefault("no_args_is_help", not kwargs.get("invoke_without_command"))
    return typer.Typer(name=name, cls=CommandGroup, pretty_exceptions_enable=False, rich_markup_mode=None, **kwargs)


def print_line(line: str) -> None:
    """Print a line, or several, without terminal control characters."""
    _write_line(sanitize_lines(line))


def _write_line(line: str) -> None:
    """Write a line and flush it: the reader of a pipe may be waiting for it."""
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe: not a failure
        raise
    except OSError as error:
        raise write_failure(error) from None


def write_failure(error: OSError) -> Failure:
    """Return a failure for unwritable output. Discards the buffer, because flushing it at exit would raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Failure(f"Cannot write all of the output: {error.strerror}.")


def shell_command(words: str) -> str:
    """Return a `callsheet` command that the user can copy: with the path of this program if it is not on PATH."""
    program, installed = Path(sys.argv[0]), shutil.which("callsheet")
    if program.name != "callsheet" or (installed and program.exists() and program.samefile(installed)):
        return f"callsheet {words}"
    return f"{shlex.quote(str(program))} {words}"


def as_json(value: Any) -> None:
    """Print a value as one JSON document."""
    print_line(escape_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def print_result(value: Any, sentence: str, *, json: bool) -> None:
    """Print the result of a command: the value as JSON for programs, or a sentence for people."""
    if json:
        as_json(value)
    else:
        print_line(sentence)


def json_line(value: Any) -> str:
    """Return a value as JSON on one line."""
    return escape_json(msgspec.json.encode(value).decode())


def format_time(at: datetime | None) -> str:
    """Format a time for people: in local time with its zone, in a form that --since accepts."""
    return at.astimezone().isoformat(timespec="seconds") if at else ""


def format_duration(seconds: float) -> str:
    """Format a duration for people: 40 seconds, 12 minutes, 3 hours."""
    for unit, noun in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if seconds >= 1.5 * unit:
            return pluralize(round(seconds / unit), noun)
    return pluralize(round(seconds), "second")


def format_count(count: int, *, is_capped: bool) -> str:
    """Return a count; `10000+` if the server has counted 10000 and there are more."""
    return f"{count}+" if is_capped else str(count)


def table(
    headers: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str, droppable: Sequence[str] = (),
    wrappable: Sequence[str] = (),
) -> None:  # fmt: skip
    """Print a table; without rows, print the sentence `empty`.

    If the output is not a terminal, no line is wrapped. On a narrow terminal, columns in `wrappable` are wrapped, and
    columns in `droppable` are left out one by one until the table fits. If it still does not fit, each row is printed
    as a record with one field per line. Ids, times and numbers are never truncated.
    """
    from rich.console import Console  # noqa: PLC0415 - not needed for --help and --json
    from rich.text import Text  # noqa: PLC0415 - not needed for --help and --json

    cells = [[Text("" if value is None else sanitize(str(value))) for value in row] for row in rows]
    if not cells:
        print_line(empty)
        return
    console = Console() if sys.stdout.isatty() else Console(width=_UNLIMITED_WIDTH)
    widths = [max(len(header), *(row[index].cell_len for row in cells)) for index, header in enumerate(headers)]
    minimum_widths = [
        max(len(header), min(width, _TEXT_WIDTH_MIN)) if header in wrappable else width
        for header, width in zip(headers, widths, strict=True)
    ]
    columns = _select_columns(headers, minimum_widths, console.width, droppable)
    with console.capture() as captured:
        if columns:
            _print_columns(console, headers, cells, columns, wrappable)
        else:
            _print_records(console, headers, cells)
    _write_line(captured.get().removesuffix("\n"))


def _print_columns(
    console: "Console", headers: Sequence[str], rows: Sequence[Sequence["Text"]], columns: Sequence[int],
    wrappable: Sequence[str],
) -> None:  # fmt: skip
    from rich.table import Table  # noqa: PLC0415 - not needed for --help and --json

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for index in columns:
        grid.add_column(headers[index], overflow="fold", no_wrap=headers[index] not in wrappable)
    for row in rows:
        grid.add_row(*(row[index] for index in columns))
    console.print(grid)


def _print_records(console: "Console", headers: Sequence[str], rows: Sequence[Sequence["Text"]]) -> None:
    """Print each row as a record, one field per line, without empty fields."""
    from rich.text import Text  # noqa: PLC0415 - not needed for --help and --json

    name_width = max(map(len, headers))
    for number, row in enumerate(rows):
        if number:
            console.print()
        for header, cell in zip(headers, row, strict=True):
            if cell:
                console.print(Text.assemble((f"{header:<{name_width}}", "bold"), " " * _GAP, cell))


def _select_columns(headers: Sequence[str], widths: Sequence[int], width: int, droppable: Sequence[str]) -> list[int]:
    """Return the columns to show; none if those that must not be left out do not fit."""
    columns, drop_order = list(range(len(headers))), [headers.index(header) for header in droppable]
    while sum(widths[index] + _GAP for index in columns) - _GAP > width:
        if not drop_order:
            return []
        columns.remove(drop_order.pop(0))
    return columns
