"""What a command prints: a table for people, JSON for programs, one sentence when it fails."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer.core import TyperGroup

from callsheet.core.counting import counted
from callsheet.core.errors import Refusal
from callsheet.store.connection import StoreError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

FAILED, WRONG_CALL, NO_SERVER, INTERRUPTED = 1, 2, 3, 130
_WIDE, _GAP, _TEXT = 100_000, 2, 12
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_PLACES = {"str": "TEXT", "int": "NUMBER", "float": "NUMBER"}
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
    """A group of commands whose failures are one sentence, never a traceback, and whose help speaks in one way."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        for command in self.commands.values():
            for parameter in command.params:
                _in_capitals(parameter)

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


def _in_capitals(parameter: Any) -> None:
    """Name what goes in an argument's or an option's place as people write it: JOB and PATH, not {job} and <path>."""
    if parameter.param_type_name == "argument":
        parameter.metavar = parameter.metavar or parameter.name.upper()
        parameter.display_type_rich = lambda ctx: None  # noqa: ARG005 - its name says it
    elif parameter.metavar is None and not parameter.is_flag and not parameter.type_descriptor.is_choice:
        kind = parameter.bare_type().removeprefix("list[").removesuffix("]")
        parameter.metavar = _PLACES.get(kind, kind.upper())


def group(name: str, **more: Any) -> typer.Typer:
    """Make a group of commands."""
    more.setdefault("no_args_is_help", not more.get("invoke_without_command"))
    return typer.Typer(name=name, cls=Commands, pretty_exceptions_enable=False, rich_markup_mode=None, **more)


def say(line: str) -> None:
    """Print a line, at once: whoever reads it through a pipe may be waiting for it."""
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has gone, which is no failure
        raise
    except OSError as error:
        raise unwritable(error) from None


def unwritable(error: OSError) -> Failure:
    """Say that nothing can be printed, and let what is left of it go nowhere: the end would stumble over it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Failure(f"Not everything could be written: {error.strerror}.")


def typed(words: str) -> str:
    """Return a command of ours as it works when typed here: by the path of this program, if the shell finds no such."""
    mine, found = Path(sys.argv[0]), shutil.which("callsheet")
    if mine.name != "callsheet" or (found and mine.exists() and mine.samefile(found)):
        return f"callsheet {words}"
    return f"{shlex.quote(str(mine))} {words}"


def as_json(value: Any) -> None:
    """Print a value for programs: one document."""
    say(msgspec.json.format(_encoded(value), indent=2).decode())


def one_line(value: Any) -> str:
    """Return a value as JSON on one line."""
    return _encoded(value).decode()


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(_as_http_says(msgspec.to_builtins(value, builtin_types=(datetime,))))


def _as_http_says(value: Any) -> Any:
    """Return a value with its times as the API writes them: in UTC, to the millisecond."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, dict):
        return {name: _as_http_says(one) for name, one in value.items()}
    return [_as_http_says(one) for one in value] if isinstance(value, list | tuple) else value


def moment(at: datetime | None) -> str:
    """Write a time for people: by this machine's clock, with its zone, in one word that --since takes."""
    return at.astimezone().isoformat(timespec="seconds") if at else ""


def lasting(seconds: float) -> str:
    """Write how long something takes as one says it: 40 seconds, 12 minutes, 3 hours."""
    for unit, noun in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if seconds >= 1.5 * unit:
            return counted(round(seconds / unit), noun)
    return counted(round(seconds), "second")


def plain(text: str) -> str:
    """Return a text of somebody else's without what would command a terminal, on one line."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def table(
    heads: Sequence[str], lines: Iterable[Sequence[Any]], *, empty: str, least: Sequence[str] = (),
    text: Sequence[str] = (),
) -> None:  # fmt: skip
    """Print a table; without lines, a sentence.

    Elsewhere than on a terminal no line is ever broken. On one that is narrow, columns are left out, the `least`
    important first, and columns of `text` go over several lines; where even that is too wide, each line becomes a
    record, one field below the other. An id, a time or a number is whole or not there.
    """
    from rich.console import Console  # noqa: PLC0415 - `--help` and `--json` go without it
    from rich.text import Text  # noqa: PLC0415 - the same

    shown = [[Text("" if cell is None else plain(str(cell))) for cell in line] for line in lines]
    if not shown:
        say(empty)
        return
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    widths = [max(len(head), *(line[place].cell_len for line in shown)) for place, head in enumerate(heads)]
    needed = [
        max(len(head), min(width, _TEXT)) if head in text else width for head, width in zip(heads, widths, strict=True)
    ]
    kept = _fitting(heads, needed, console.width, least)
    with console.capture() as printed:
        if kept:
            _print_columns(console, heads, shown, kept, text)
        else:
            _print_records(console, heads, shown)
    say(printed.get().removesuffix("\n"))


def _print_columns(
    console: "Console", heads: Sequence[str], lines: Sequence[Sequence["Text"]], kept: Sequence[int],
    text: Sequence[str],
) -> None:  # fmt: skip
    from rich.table import Table  # noqa: PLC0415 - `--help` and `--json` go without it

    made = Table(box=None, pad_edge=False, header_style="bold")
    for place in kept:
        made.add_column(heads[place], overflow="fold", no_wrap=heads[place] not in text)
    for line in lines:
        made.add_row(*(line[place] for place in kept))
    console.print(made)


def _print_records(console: "Console", heads: Sequence[str], lines: Sequence[Sequence["Text"]]) -> None:
    """Print each line as a record, without its empty fields; what does not fit beside its name stands below it."""
    from rich.text import Text  # noqa: PLC0415 - `--help` and `--json` go without it

    wide = max(map(len, heads))
    for no, line in enumerate(lines):
        if no:
            console.print()
        for head, cell in zip(heads, line, strict=True):
            if cell:
                console.print(Text.assemble((f"{head:<{wide}}", "bold"), " " * _GAP, cell))


def _fitting(heads: Sequence[str], widths: Sequence[int], width: int, least: Sequence[str]) -> list[int]:
    """Return which columns are shown; none, if even the most important ones do not fit."""
    kept, spare = list(range(len(heads))), [heads.index(head) for head in least]
    while sum(widths[place] + _GAP for place in kept) - _GAP > width:
        if not spare:
            return []
        kept.remove(spare.pop(0))
    return kept
