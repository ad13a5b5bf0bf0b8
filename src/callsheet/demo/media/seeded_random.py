"""What all makers share: numbers that follow from a prompt alone, and the error of asking too early."""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

Option = TypeVar("Option")
_NUMBER_BYTES = 4


class Unfinished(Exception):  # noqa: N818 - it says what the thing is
    """The file was asked for before it was made to the end."""


class Seed:
    """Numbers drawn from a prompt. Each has a label, so that a new one changes none of the others."""

    def __init__(self, prompt: str) -> None:
        self._root = hashlib.sha256(prompt.encode(errors="surrogatepass")).digest()

    def noise(self, label: str, count: int) -> bytes:
        return hashlib.shake_256(self._root + label.encode()).digest(count)

    def number(self, label: str, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * int.from_bytes(self.noise(label, _NUMBER_BYTES)) / (1 << 8 * _NUMBER_BYTES)

    def pick(self, label: str, options: Sequence[Option]) -> Option:
        return options[int(self.number(label, 0, len(options)))]
