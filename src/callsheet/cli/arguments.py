"""Values from the words of a command line: a folder, a job's input, what a machine has."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

_PAIR = re.compile(r"([A-Za-z_][\w.-]*)(:?=)(.*)", re.DOTALL)
_INPUT_USAGE = "--input takes JSON, @FILE (@- is standard input), name=text or name:=JSON."
Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        help="JSON, @FILE (@- is standard input), name=text or name:=JSON; may be repeated.",
        show_default=False,
    ),
]


def parse_directory(value: str) -> Path:
    """Read a folder's name; without one it would be the folder one is in, which nobody means by nothing."""
    if not str(value).strip():
        raise typer.BadParameter("A folder has a name; . is the one you are in.")
    if Path(value).is_file():
        raise typer.BadParameter(f"{value} is a file: name a folder.")
    return Path(value)


def parse_postgresql_url(value: str) -> str:
    """Read the address of a database; without its scheme it would be the name of a file."""
    if not value.startswith(("postgresql://", "postgres://")):
        raise typer.BadParameter("--database takes a postgresql:// URL; a SQLite folder goes to --data-dir.")
    return value


def parse_input(arguments: list[str]) -> Any:
    """Read an input: one JSON document, or fields that make one together."""
    fields: dict[str, Any] = {}
    documents: list[Any] = []
    for argument in arguments:
        pair = _PAIR.fullmatch(argument)
        if pair:
            fields[pair[1]] = pair[3] if pair[2] == "=" else _parse_json(pair[3])
        else:
            documents.append(_read_json(argument[1:]) if argument.startswith("@") else _parse_json(argument))
    if not documents:
        return fields or None
    if len(documents) > 1 or (fields and not isinstance(documents[0], dict)):
        raise typer.BadParameter(f"Only one document can be the input. {_INPUT_USAGE}")
    return {**documents[0], **fields} if fields else documents[0]


def parse_fields(arguments: list[str], usage: str) -> dict[str, Any]:
    """Read fields, each a text or JSON; of one that is given twice the last counts. `how` says it to who errs."""
    fields: dict[str, Any] = {}
    for argument in arguments:
        pair = _PAIR.fullmatch(argument)
        if not pair:
            raise typer.BadParameter(f"{argument[:40]!r} is not a field. {usage}")
        fields[pair[1]] = pair[3] if pair[2] == "=" else _parse_json(pair[3], usage)
    return fields


def _read_json(name: str) -> Any:
    source = "Standard input" if name == "-" else f"The file {name}"
    try:
        return msgspec.json.decode(sys.stdin.read() if name == "-" else Path(name).read_text())
    except (OSError, UnicodeDecodeError):
        raise typer.BadParameter(f"{source} cannot be read.") from None
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{source} is not JSON: {error}.") from None


def _parse_json(text: str, usage: str = _INPUT_USAGE) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{text[:40]!r} is not JSON: {error}. {usage}") from None
