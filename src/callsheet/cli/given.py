"""Values from the words of a command line: a folder, a job's input, what a machine has."""

import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import typer

_PAIR = re.compile(r"([A-Za-z_][\w.-]*)(:?=)(.*)", re.DOTALL)
_HOW = "--input takes JSON, @FILE (@- is standard input), name=text or name:=JSON."


def folder_of(given: str) -> Path:
    """Read a folder's name; without one it would be the folder one is in, which nobody means by nothing."""
    if not str(given).strip():
        raise typer.BadParameter("A folder has a name; . is the one you are in.")
    return Path(given)


def input_of(words: list[str]) -> Any:
    """Read an input: one JSON document, or fields that make one together."""
    fields: dict[str, Any] = {}
    whole: list[Any] = []
    for word in words:
        pair = _PAIR.fullmatch(word)
        if pair:
            fields[pair[1]] = pair[3] if pair[2] == "=" else _json(pair[3])
        else:
            whole.append(_json(_file(word[1:]) if word.startswith("@") else word))
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


def _file(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError):
        raise typer.BadParameter(f"The file {name} cannot be read.") from None


def _json(text: str, how: str = _HOW) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{text[:40]!r} is not JSON: {error}. {how}") from None
