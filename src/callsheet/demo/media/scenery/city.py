"""A city: rows of buildings from far to near with lit windows, and a quay in front of them."""
# ruff: noqa: PLR2004 - the numbers are proportions of the drawing

from collections.abc import Iterator

import numpy as np

from callsheet.demo.media.scenery.canvas import Array, Canvas, Indexes, Layer, colour, mix, smooth
from callsheet.demo.media.scenery.mood import Mood
from callsheet.demo.media.seeded_random import Seed

_ROWS = 4
_LOTS = 256
_PANES = 64
_LAMPS = {"noon": 0.06, "dawn": 0.22, "fog": 0.28, "dusk": 0.42, "night": 0.5}


class BuildingRow:
    """One row of buildings, seen from the front."""

    def __init__(self, seed: Seed, mood: Mood, number: int, ground: float) -> None:
        self._nearness = nearness = number / (_ROWS - 1)
        self._ground, self._mood = ground, mood
        self._building_width = 0.05 + 0.075 * nearness
        self._building_height = 0.40 - 0.10 * nearness
        self._lots = np.frombuffer(seed.noise(f"buildings.{number}", 2 * _LOTS), np.uint8).reshape(2, _LOTS) / 255
        self._window_noise = (
            np.frombuffer(seed.noise(f"lamps.{number}", _PANES**2), np.uint8).reshape(_PANES, _PANES) / 255
        )
        self._wall = mix(mood.far, mood.near, nearness**0.8 * 0.95)
        self._mist = mix(mood.horizon, mood.far, 0.3 + 0.5 * nearness)
        self._lamp = mix(colour("ffcf7a"), mood.sun, 0.25)

    def paint(self, canvas: Canvas, time: float) -> None:
        place = canvas.x / self._building_width
        place = place + 0.3 * np.sin(place * 1.7 + 6 * self._lots[0, 0])
        lot = place.astype(int) % _LOTS
        inside = (place % 1).astype(np.float32)
        roof = (self._ground - self._building_height * (0.12 + self._lots[0, lot] ** 2)).astype(np.float32)
        top = roof - self._crown(lot, inside)
        first, last = max(canvas.row(float(top.min())) - 1, 0), canvas.row(self._ground)
        rows = canvas.y[first:last, None]
        side = (1 + 0.10 * (inside < 0.42) - 0.06 * (inside > 0.9)).astype(np.float32)
        tone = np.repeat((self._wall * side[:, None])[None], len(rows), axis=0)
        fade = smooth((rows - self._ground + 0.28) / 0.3) * (0.75 - 0.6 * self._nearness)
        tone += (self._mist - tone) * fade[..., None]
        canvas.cover(tone, np.clip((rows - top) * canvas.height + 0.5, 0, 1), first)
        canvas.light(self._lamp, self._windows(rows - roof, inside, lot, time), first)

    def _crown(self, lot: Indexes, inside: Array) -> Array:
        """Return the height of the structures on the roofs: a smaller storey on some, a mast on a few."""
        kind, aside = self._lots[1, lot], np.abs(inside - 0.5)
        crown: Array = 0.025 * ((kind > 0.55) & (aside < 0.28)) + 0.07 * ((kind > 0.8) & (aside < 0.03))
        return crown.astype(np.float32)

    def _windows(self, below: Array, inside: Array, lot: Indexes, time: float) -> Array:
        """Return the light of each pixel: windows in a grid of floors and columns, some of them lit."""
        floor, pane = below / (0.020 + 0.006 * self._nearness), inside * (5 + 2 * self._nearness)
        row, column = np.floor(floor), np.floor(pane)
        glass = (abs(floor - row - 0.54) < 0.24) & (abs(pane - column - 0.52) < 0.27) & (abs(inside - 0.5) < 0.42)
        window_noise = self._window_noise[row.astype(int) % _PANES, (column.astype(int) + 5 * lot) % _PANES]
        lit = glass & (floor > 0.7) & (window_noise < _LAMPS[self._mood.hour] * (0.35 + 0.65 * self._nearness))
        bright = (0.45 + 0.5 * self._nearness) * (0.75 + 0.25 * np.sin(900 * window_noise + 1.5 * time))
        light: Array = lit * bright
        return light.astype(np.float32)


class Quay:
    """The dark strip between the buildings and the water."""

    def __init__(self, mood: Mood, ground: float) -> None:
        self._stone, self._ground = mix(mood.near, mood.far, 0.06), ground

    def paint(self, canvas: Canvas, time: float) -> None:
        del time
        first, last = canvas.row(self._ground - 0.012), canvas.row(self._ground)
        canvas.pixels[first:last] = self._stone


def city(seed: Seed, mood: Mood, ground: float) -> Iterator[Layer]:
    yield from (BuildingRow(seed, mood, number, ground) for number in range(_ROWS))
    yield Quay(mood, ground)
