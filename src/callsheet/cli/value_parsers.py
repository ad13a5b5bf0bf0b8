"""Parse command-line values: folders, database URLs, a job's input, name=value fields."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from callsheet.core.model.strict_json import decode_json

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
    """Parse a folder. An empty value is rejected: it would silently mean the current folder."""
    if not str(value).strip():
        raise typer.BadParameter("The folder name is empty. Write . for the current folder.")
    if Path(value).is_file():
        raise typer.BadParameter(f"{value} is a file. Pass a folder.")
    return Path(value)


def parse_postgresql_url(value: str) -> str:
    """Parse a PostgreSQL URL. SQLite has no URL: its database is in the data folder."""
    if not value.startswith(("postgresql://", "postgres://")):
        raise typer.BadParameter("--database takes a postgresql:// URL. For SQLite, pass --data-dir.")
    return value


def parse_input(arguments: list[str]) -> Any:
    """Parse an input: one JSON document, name=value fields that form one, or both."""
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
        raise typer.BadParameter(f"--input has more than one JSON document. {_INPUT_USAGE}")
    return {**documents[0], **fields} if fields else documents[0]


def parse_fields(arguments: list[str], usage: str) -> dict[str, Any]:
    """Parse name=text and name:=JSON fields; the last value of a repeated one wins. `usage` ends an error message."""
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
        return decode_json(sys.stdin.read() if name == "-" else Path(name).read_text(), Any)
    except (OSError, UnicodeDecodeError):
        raise typer.BadParameter(f"{source} cannot be read. Pass a UTF-8 file that you may read.") from None
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{source} is not JSON: {error}.") from None


def _parse_json(text: str, usage: str = _INPUT_USAGE) -> Any:
    try:
        return decode_json(text, Any)
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{text[:40]!r} is not JSON: {error}. {usage}") from None
