"""The size of a regular expression: an upper bound of the states that a linear-time engine tracks per character."""

import re

_UNICODE_CLASS_SIZE = 100
"""A class such as `\\p{L}` compiles to a large automaton."""
_COUNT = re.compile(r"\{(\d+)(,?)(\d*)\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_UNICODE_CLASS = re.compile(r"\\[pP](?:\{[^}]*\}|.)", re.DOTALL)


def pattern_size(pattern: str) -> int:
    """Return the number of characters and classes of a pattern, each times its repetitions."""
    if any("[" in found.group()[1:] for found in _CLASS.finditer(pattern)):
        return _largest_size(pattern)  # classes within classes: engines disagree about their end
    totals, last_sizes = [0], [0]  # one entry per open group: its size so far, and the size of its last part
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if counted := _COUNT.match(pattern, position):
            totals[-1] += last_sizes[-1] * (_repetitions(counted) - 1)
            last_sizes[-1] *= _repetitions(counted)
            position = counted.end()
            continue
        length, size = _atom(pattern, position)
        position += length
        if character == "(":
            totals.append(1)
            last_sizes.append(0)
            continue
        if character == ")" and len(totals) > 1:
            last_sizes.pop()
            size = totals.pop()
        totals[-1] += size
        last_sizes[-1] = size
    return sum(totals)


def _atom(pattern: str, position: int) -> tuple[int, int]:
    """Return the length and the size of the character, escape or class at a position."""
    if unicode_class := _UNICODE_CLASS.match(pattern, position):
        return len(unicode_class.group()), _UNICODE_CLASS_SIZE
    if pattern[position] == "\\":
        return 2, 1
    if character_class := _CLASS.match(pattern, position):
        text = character_class.group()
        return len(text), 1 + _UNICODE_CLASS_SIZE * len(_UNICODE_CLASS.findall(text))
    return 1, 1


def _repetitions(counted: re.Match[str]) -> int:
    least, comma, most = counted.groups()
    return max(int(most) if most else int(least) + bool(comma), 1)


def _largest_size(pattern: str) -> int:
    """Return an upper bound for patterns whose structure is unclear: every repetition applies to everything."""
    size = len(pattern) + _UNICODE_CLASS_SIZE * len(_UNICODE_CLASS.findall(pattern))
    for counted in _COUNT.finditer(pattern):
        size *= _repetitions(counted)
    return size
