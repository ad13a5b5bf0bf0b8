"""On which line of a TOML file a value stands.

The parser of the standard library does not say. This reader only follows texts that the parser has accepted.
"""

import re

Path = tuple[str | int, ...]
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LONG = r'"{3}(?:\\.|[^\\])*?"{3,5}(?!")' + "|" + r"'{3}.*?'{3,5}(?!')"
_SHORT = r'"(?:\\.|[^"\\])*"' + "|" + r"'[^']*'"
_TEXT = re.compile(f"{_LONG}|{_SHORT}", re.DOTALL)
_PLAIN = re.compile(r"[^,\]}#\n]*")


def lines_of(text: str) -> dict[Path, int]:
    """Return the line of every key and every item of a list, by its path; () is the document."""
    return _Reader(text).read()


def line_of(lines: dict[Path, int], place: Path) -> int:
    """Return the line of a place, or of what it would be in."""
    while place not in lines:
        place = place[:-1]
    return lines[place]


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._found: dict[Path, int] = {(): 1}
        self._lists: dict[Path, int] = {}
        """How many tables a list of tables has so far."""

    def read(self) -> dict[Path, int]:
        table: Path = ()
        while self._next():
            if self._text.startswith("[", self._at):
                table = self._header()
            else:
                self._pair(table)
        return self._found

    def _header(self) -> Path:
        many = self._text.startswith("[[", self._at)
        line = self._line()
        self._at += 2 if many else 1
        path = self._newest(self._key())
        self._at += 2 if many else 1
        for length in range(1, len(path)):
            self._found.setdefault(path[:length], line)
        if many:
            self._found.setdefault(path, line)
            place = self._lists.get(path, 0)
            self._lists[path] = place + 1
            path = (*path, place)
        self._found[path] = line
        return path

    def _newest(self, key: Path) -> Path:
        """Return a header's path; a list of tables on the way means its newest table."""
        path: Path = ()
        for place, part in enumerate(key):
            path = (*path, part)
            if path in self._lists and place < len(key) - 1:
                path = (*path, self._lists[path] - 1)
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        key = self._key()
        for length in range(1, len(key) + 1):
            self._found.setdefault((*table, *key[:length]), line)
        self._at += 1  # the sign =
        self._space()
        self._value((*table, *key))

    def _key(self) -> Path:
        parts: list[str | int] = []
        while True:
            self._space()
            text = _TEXT.match(self._text, self._at)
            bare = text or _BARE.match(self._text, self._at)
            if bare is None:
                return tuple(parts)
            parts.append(bare[0][1:-1] if text else bare[0])
            self._at = bare.end()
            self._space()
            if not self._text.startswith(".", self._at):
                return tuple(parts)
            self._at += 1

    def _value(self, path: Path) -> None:
        if self._text.startswith("[", self._at):
            self._items(path)
        elif self._text.startswith("{", self._at):
            self._members(path)
        else:
            found = _TEXT.match(self._text, self._at) or _PLAIN.match(self._text, self._at)
            self._at = found.end() if found else self._at

    def _items(self, path: Path) -> None:
        self._at += 1
        place = 0
        while self._next() and not self._text.startswith("]", self._at):
            self._found[(*path, place)] = self._line()
            self._value((*path, place))
            place += 1
            self._comma()
        self._at += 1

    def _members(self, path: Path) -> None:
        self._at += 1
        while self._next() and not self._text.startswith("}", self._at):
            self._pair(path)
            self._comma()
        self._at += 1

    def _comma(self) -> None:
        self._next()
        if self._text.startswith(",", self._at):
            self._at += 1

    def _next(self) -> bool:
        found = _BLANK.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self._at < len(self._text)

    def _space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1
