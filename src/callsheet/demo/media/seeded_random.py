"""Shared by the media generators: random numbers that depend only on the prompt, and `Unfinished`."""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

Option = TypeVar("Option")
_NUMBER_BYTES = 4


class Unfinished(Exception):  # noqa: N818 - a state, not a failure
    """The file was requested before it was complete."""


class Seed:
    """Pseudo-random numbers derived from a prompt. Each has a label, so that adding one does not change the others."""

    def __init__(self, prompt: str) -> None:
        self._root = hashlib.sha256(prompt.encode(errors="surrogatepass")).digest()

    def noise(self, label: str, count: int) -> bytes:
        return hashlib.shake_256(self._root + label.encode()).digest(count)

    def number(self, label: str, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * int.from_bytes(self.noise(label, _NUMBER_BYTES)) / (1 << 8 * _NUMBER_BYTES)

    def pick(self, label: str, options: Sequence[Option]) -> Option:
        return options[int(self.number(label, 0, len(options)))]
