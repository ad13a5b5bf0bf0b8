"""Placeholders in the texts of a graph. Every search is linear in the size of the graph."""

from bisect import bisect_right
from collections.abc import Collection, Iterator
from itertools import accumulate
from typing import Any

from callsheet.comfyui.node_info import is_link

_SEPARATOR = "\0"
"""Between texts that are searched together. Stored texts never contain it."""


def iter_texts(value: Any) -> Iterator[str]:
    """Yield the texts in the value of a field."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict) and not is_link(value):
        for item in value.values() if isinstance(value, dict) else value:
            yield from iter_texts(item)


def count_placeholders(texts: Collection[str], placeholders: Collection[str]) -> int:
    """Return how often placeholders occur in texts."""
    joined = _SEPARATOR.join(texts)
    return sum(joined.count(placeholder) for placeholder in placeholders)


def texts_with_placeholders(texts: list[str], placeholders: Collection[str]) -> set[str]:
    """Return the texts that contain a placeholder."""
    joined = _SEPARATOR.join(texts)
    starts = list(accumulate((len(text) + 1 for text in texts), initial=0))
    found: set[str] = set()
    for placeholder in placeholders:
        position = joined.find(placeholder)
        while position >= 0:
            no = bisect_right(starts, position) - 1
            found.add(texts[no])
            position = joined.find(placeholder, starts[no + 1])
    return found


def split_at_placeholders(text: str, placeholders: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the text before each placeholder, with the placeholder; last, the rest of the text with an empty one."""
    positions = {placeholder: text.find(placeholder) for placeholder in placeholders}
    start = 0
    while positions := {placeholder: position for placeholder, position in positions.items() if position >= 0}:
        first = min(positions, key=lambda placeholder: positions[placeholder])
        yield text[start : positions[first]], first
        start = positions[first] + len(first)
        for placeholder, position in positions.items():
            if position < start:
                positions[placeholder] = text.find(placeholder, start)
    yield text[start:], ""
