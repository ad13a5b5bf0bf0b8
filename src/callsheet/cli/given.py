"""Values from the words of a command line: a folder, a job's input, what a machine has."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

_PAIR = re.compile(r"([A-Za-z_][\w.-]*)(:?=)(.*)", re.DOTALL)
_HOW = "--input takes JSON, @FILE (@- is standard input), name=text or name:=JSON."
Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        help="JSON, @FILE (@- is standard input), name=text or name:=JSON; may be repeated.",
        show_default=False,
    ),
]


def folder_of(given: str) -> Path:
    """Read a folder's name; without one it would be the folder one is in, which nobody means by nothing."""
    if not str(given).strip():
        raise typer.BadParameter("A folder has a name; . is the one you are in.")
    if Path(given).is_file():
        raise typer.BadParameter(f"{given} is a file: name a folder.")
    return Path(given)


def postgresql_of(given: str) -> str:
    """Read the address of a database; without its scheme it would be the name of a file."""
    if not given.startswith(("postgresql://", "postgres://")):
        raise typer.BadParameter("--database takes a postgresql:// URL; a SQLite folder goes to --data.")
    return given


def input_of(words: list[str]) -> Any:
    """Read an input: one JSON document, or fields that make one together."""
    fields: dict[str, Any] = {}
    whole: list[Any] = []
    for word in words:
        pair = _PAIR.fullmatch(word)
        if pair:
            fields[pair[1]] = pair[3] if pair[2] == "=" else _json(pair[3])
        else:
            whole.append(_file(word[1:]) if word.startswith("@") else _json(word))
    if not whole:
        return fields or None
    if len(whole) > 1 or (fields and not isinstance(whole[0], dict)):
        raise typer.BadParameter(f"Only one document can be the input. {_HOW}")
    return {**whole[0], **fields} if fields else whole[0]


def fields_of(words: list[str], how: str) -> dict[str, Any]:
    """Read fields, each a text or JSON; of one that is given twice the last counts. `how` says it to who errs."""
    fields: dict[str, Any] = {}
    for word in words:
        pair = _PAIR.fullmatch(word)
        if not pair:
            raise typer.BadParameter(f"{word[:40]!r} is not a field. {how}")
        fields[pair[1]] = pair[3] if pair[2] == "=" else _json(pair[3], how)
    return fields


def _file(name: str) -> Any:
    said = "Standard input" if name == "-" else f"The file {name}"
    try:
        return msgspec.json.decode(sys.stdin.read() if name == "-" else Path(name).read_text())
    except (OSError, UnicodeDecodeError):
        raise typer.BadParameter(f"{said} cannot be read.") from None
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{said} is not JSON: {error}.") from None


def _json(text: str, how: str = _HOW) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{text[:40]!r} is not JSON: {error}. {how}") from None
