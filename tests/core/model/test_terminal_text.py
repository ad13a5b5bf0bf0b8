"""Untrusted texts for a terminal: no control, bidirectional or invisible character, and JSON that stays the same."""

import json
import sys
import unicodedata

import pytest

from callsheet.core.model.terminal_text import escape_json, sanitize, sanitize_lines

CATEGORIES = {"Cc", "Cf", "Zl", "Zp"}
UNSAFE = [one for one in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(one) in CATEGORIES]


@pytest.mark.parametrize(("text", "expected"), [
    ("", ""), ("Ein Bär 🎬 漢字", "Ein Bär 🎬 漢字"), ("a\nb\tc\u2028d\xa0e", "a b c d e"),
    ("\x1b[2J\x9bm", "\ufffd[2J\ufffdm"), ("user\u202egnp.exe", "user\ufffdgnp.exe"),
    ("a\u200bb\u2066", "a\ufffdb\ufffd"),
    ("\ud800", "\ufffd"),
])  # fmt: skip
def test_a_text_is_on_one_line_without_unsafe_characters(text: str, expected: str) -> None:
    assert sanitize(text) == expected


def test_no_control_or_format_character_remains() -> None:
    assert len(UNSAFE) > 200
    text = "".join(UNSAFE)
    assert sanitize(text).isprintable()
    assert set(sanitize_lines(text)) == {"\ufffd", " ", "\n"}
    document = json.dumps(text, ensure_ascii=False)
    assert escape_json(document).isprintable()
    assert json.loads(escape_json(document)) == text


def test_line_breaks_of_several_lines_are_kept() -> None:
    assert sanitize_lines("a\x1b\nb\r\n\u202ec\n") == "a\ufffd\nb \n\ufffdc\n"


def test_json_keeps_printable_characters_and_indentation() -> None:
    document = '{\n  "name": "Bär 🎬 漢字"\n}'
    assert escape_json(document) == document
