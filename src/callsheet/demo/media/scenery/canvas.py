"""The canvas that layers paint on, with functions for colours and noise. Its unit is the height of the picture."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# Arrays are created as 32-bit floats for speed. Intermediate results may have other float types.
Array = NDArray[np.floating[Any]]
Colour = NDArray[np.floating[Any]]
Indexes = NDArray[np.integer[Any]]


class Canvas:
    """Pixels from 0 to 1. x runs from 0 to the aspect ratio, y from 0 at the top to 1 at the bottom."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.aspect = width / height
        self.pixels: Array = np.zeros((height, width, 3), np.float32)
        self.columns: Array = np.arange(width, dtype=np.float32)
        self.x: Array = (self.columns + 0.5) / height
        self.y: Array = (np.arange(height, dtype=np.float32) + 0.5) / height

    def row(self, y: float) -> int:
        """Return the row of y, limited to the picture."""
        return min(max(int(np.floor(y * self.height)), 0), self.height)

    def cover(self, colour: Colour, amount: Array, first: int = 0) -> None:
        """Blend a colour over the rows from `first`, with `amount` as its opacity."""
        rows = self.pixels[first : first + len(amount)]
        rows += (colour - rows) * amount[..., None]

    def light(self, colour: Colour, amount: Array, first: int = 0) -> None:
        """Blend light over the rows from `first`, at most to white."""
        rows = self.pixels[first : first + len(amount)]
        rows += (1 - rows) * (colour * amount[..., None])


class Layer(Protocol):
    """One layer of the picture. `time` is in seconds from the start of the film."""

    def paint(self, canvas: Canvas, time: float) -> None: ...


def colour(code: str) -> Colour:
    return (np.frombuffer(bytes.fromhex(code), np.uint8) / 255).astype(np.float32)


def mix(start: Colour, end: Colour, part: float) -> Colour:
    return start + (end - start) * part


def smooth(value: Array) -> Array:
    """Interpolate smoothly from 0 to 1, with slope 0 at both ends."""
    part = np.clip(value, 0, 1)
    return part * part * (3 - 2 * part)


def cloud_noise(noise: bytes, rows: int, columns: int, octaves: int = 5) -> Array:
    """Return smooth noise from 0 to 1, as a sum of finer and finer grids. Its left and right edges match."""
    cells = np.frombuffer(noise, np.uint8).reshape(64, 64).astype(np.float32) / 255
    total: Array = np.zeros((rows, columns), np.float32)
    for octave in range(octaves):
        down, across = 3 << octave, 4 << octave
        total += _stretch(cells[: down + 1, :across], rows, columns) / (2 << octave)
    return total


def _stretch(cells: Array, rows: int, columns: int) -> Array:
    down = np.linspace(0, len(cells) - 1, rows, endpoint=False, dtype=np.float32)
    across = np.linspace(0, cells.shape[1], columns, endpoint=False, dtype=np.float32)
    top, left = down.astype(int), across.astype(int)
    lower, right = smooth(down - top)[:, None], smooth(across - left)[None, :]
    wide: Array = cells[:, left] * (1 - right) + cells[:, (left + 1) % cells.shape[1]] * right
    both: Array = wide[top] * (1 - lower) + wide[top + 1] * lower
    return both.astype(np.float32)
