"""What layers paint on: pixels with coordinates in heights of the picture, and the few ways to put colour there."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# Made as 32-bit floats, which are quick; what numpy makes of them in between is left to it.
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
        """Return the row in which y lies; what is outside of the picture lies at its edge."""
        return min(max(int(np.floor(y * self.height)), 0), self.height)

    def cover(self, colour: Colour, amount: Array, first: int = 0) -> None:
        """Lay a colour over the rows from `first` on, as thick as `amount` says."""
        rows = self.pixels[first : first + len(amount)]
        rows += (colour - rows) * amount[..., None]

    def light(self, colour: Colour, amount: Array, first: int = 0) -> None:
        """Add light: it brightens, and never beyond white."""
        rows = self.pixels[first : first + len(amount)]
        rows += (1 - rows) * (colour * amount[..., None])


class Layer(Protocol):
    """One thing in the picture, at any moment of the film."""

    def paint(self, canvas: Canvas, time: float) -> None: ...


def colour(code: str) -> Colour:
    return (np.frombuffer(bytes.fromhex(code), np.uint8) / 255).astype(np.float32)


def mix(one: Colour, other: Colour, part: float) -> Colour:
    return one + (other - one) * part


def smooth(value: Array) -> Array:
    """Ease from 0 to 1, flat at both ends."""
    part = np.clip(value, 0, 1)
    return part * part * (3 - 2 * part)


def cloud_noise(noise: bytes, rows: int, columns: int, octaves: int = 5) -> Array:
    """Return soft noise from 0 to 1 that continues over its left and right edge: a sum of finer and finer grids."""
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
