"""Untrusted texts for a terminal, without characters that it would act on or that change what is read.

These are control characters (C0, C1), bidirectional controls, zero-width and other invisible characters.
"""

import re

_REPLACEMENT = "\ufffd"
_NOT_PRINTABLE_ASCII = re.compile(r"[^ -~\n]+")


def sanitize(text: str) -> str:
    """Return a text on one line: whitespace becomes a space, every other unsafe character U+FFFD."""
    return text if text.isprintable() else "".join(map(_replace, text))


def sanitize_lines(text: str) -> str:
    """Sanitize a text of several lines. Its line breaks are kept."""
    return text if text.isprintable() else "\n".join(map(sanitize, text.split("\n")))


def escape_json(document: str) -> str:
    """Return the same JSON with unsafe characters as escapes. Characters that are not ASCII are only in its texts."""
    return _NOT_PRINTABLE_ASCII.sub(_escape_run, document)


def _replace(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else _REPLACEMENT


def _escape_run(run: re.Match[str]) -> str:
    return "".join(character if character.isprintable() else _escape(character) for character in run[0])


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
