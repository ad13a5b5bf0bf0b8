"""Find the line of a value in a TOML file, which the parser of the standard library does not report.

The reader expects text that the parser has accepted.
"""

import re

Path = tuple[str | int, ...]
_BLANK_OR_COMMENT = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_MULTILINE_STRING = r'"{3}(?:\\.|[^\\])*?"{3,5}(?!")' + "|" + r"'{3}.*?'{3,5}(?!')"
_SINGLE_LINE_STRING = r'"(?:\\.|[^"\\])*"' + "|" + r"'[^']*'"
_STRING = re.compile(f"{_MULTILINE_STRING}|{_SINGLE_LINE_STRING}", re.DOTALL)
_OTHER_VALUE = re.compile(r"[^,\]}#\n]*")


def map_lines(text: str) -> dict[Path, int]:
    """Return the line of every key and every array item, by its path; () is the document."""
    return _LineReader(text).read()


def find_line(lines: dict[Path, int], path: Path) -> int:
    """Return the line of a path, or of its nearest parent in the file."""
    while path not in lines:
        path = path[:-1]
    return lines[path]


class _LineReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._lines: dict[Path, int] = {(): 1}
        self._table_counts: dict[Path, int] = {}
        """The number of tables read so far, by the path of their array."""

    def read(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip_blank():
            if self._text.startswith("[", self._position):
                table = self._read_header()
            else:
                self._read_pair(table)
        return self._lines

    def _read_header(self) -> Path:
        is_array = self._text.startswith("[[", self._position)
        line = self._line_number()
        self._position += 2 if is_array else 1
        path = self._newest_table(self._read_key())
        self._position += 2 if is_array else 1
        for length in range(1, len(path)):
            self._lines.setdefault(path[:length], line)
        if is_array:
            self._lines.setdefault(path, line)
            index = self._table_counts.get(path, 0)
            self._table_counts[path] = index + 1
            path = (*path, index)
        self._lines[path] = line
        return path

    def _newest_table(self, key: Path) -> Path:
        """Return the path of a header. An array of tables within it stands for its newest table."""
        path: Path = ()
        for index, part in enumerate(key):
            path = (*path, part)
            if path in self._table_counts and index < len(key) - 1:
                path = (*path, self._table_counts[path] - 1)
        return path

    def _read_pair(self, table: Path) -> None:
        line = self._line_number()
        key = self._read_key()
        for length in range(1, len(key) + 1):
            self._lines.setdefault((*table, *key[:length]), line)
        self._position += 1  # skip the `=`
        self._skip_spaces()
        self._read_value((*table, *key))

    def _read_key(self) -> Path:
        parts: list[str | int] = []
        while True:
            self._skip_spaces()
            text = _STRING.match(self._text, self._position)
            bare = text or _BARE_KEY.match(self._text, self._position)
            if bare is None:
                return tuple(parts)
            parts.append(bare[0][1:-1] if text else bare[0])
            self._position = bare.end()
            self._skip_spaces()
            if not self._text.startswith(".", self._position):
                return tuple(parts)
            self._position += 1

    def _read_value(self, path: Path) -> None:
        if self._text.startswith("[", self._position):
            self._read_array(path)
        elif self._text.startswith("{", self._position):
            self._read_inline_table(path)
        else:
            match = _STRING.match(self._text, self._position) or _OTHER_VALUE.match(self._text, self._position)
            self._position = match.end() if match else self._position

    def _read_array(self, path: Path) -> None:
        self._position += 1
        index = 0
        while self._skip_blank() and not self._text.startswith("]", self._position):
            self._lines[(*path, index)] = self._line_number()
            self._read_value((*path, index))
            index += 1
            self._skip_comma()
        self._position += 1

    def _read_inline_table(self, path: Path) -> None:
        self._position += 1
        while self._skip_blank() and not self._text.startswith("}", self._position):
            self._read_pair(path)
            self._skip_comma()
        self._position += 1

    def _skip_comma(self) -> None:
        self._skip_blank()
        if self._text.startswith(",", self._position):
            self._position += 1

    def _skip_blank(self) -> bool:
        match = _BLANK_OR_COMMENT.match(self._text, self._position)
        self._position = match.end() if match else self._position
        return self._position < len(self._text)

    def _skip_spaces(self) -> None:
        match = _SPACE.match(self._text, self._position)
        self._position = match.end() if match else self._position

    def _line_number(self) -> int:
        return self._text.count("\n", 0, self._position) + 1
