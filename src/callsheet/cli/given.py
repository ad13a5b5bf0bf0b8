"""A job's input from the words of a command line."""

import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import typer

_PAIR = re.compile(r"([A-Za-z_][\w.-]*)(:?=)(.*)", re.DOTALL)
_HOW = "--input takes JSON, @FILE (@- is standard input), name=text or name:=JSON."


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


def _file(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError):
        raise typer.BadParameter(f"The file {name} cannot be read.") from None


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{text[:40]!r} is not JSON: {error}. {_HOW}") from None
