"""The land: ridges from far to near, each with its own outline, lit slopes and mist at its foot."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from callsheet.demo.media.scenery.canvas import Array, Canvas, Colour, colour, mix, smooth
from callsheet.demo.media.scenery.mood import Mood
from callsheet.demo.media.seeded_random import Seed

Line = NDArray[np.float64]
_OCTAVES = 6
_LOTS = 256


@dataclass(frozen=True)
class Shape:
    """The parameters of one kind of land."""

    ridges: int
    top: float  # level of the farthest ridge
    foot: float  # level of the nearest ridge
    height_max: float
    frequency: float  # hills per picture height
    rough: float  # amplitude of each wave relative to the previous, coarser one
    sharp: float  # 0 is round, 1 is pointed
    relief: float  # contrast between lit and shaded slopes
    slant: float  # sideways slant of the line between light and shade
    ground: str
    earth: float  # share of the ground colour, relative to the colours of the hour
    trees: float = 0.0
    snow: float = 0.0

    def level(self, ridge: int) -> float:
        return self.top + (self.foot - self.top) * math.pow(ridge / (self.ridges - 1), 1.25)


SHAPES = {
    "hills": Shape(6, 0.50, 0.93, 0.080, 2.2, 0.40, 0.0, 0.12, 0.5, "2f5a3a", 0.35, trees=0.05),
    "mountains": Shape(5, 0.48, 0.95, 0.165, 2.6, 0.50, 0.9, 0.50, 0.5, "33475e", 0.30, trees=0.03, snow=0.07),
    "dunes": Shape(5, 0.55, 0.88, 0.085, 2.8, 0.22, 0.85, 0.42, 1.3, "c07a3c", 0.72),
    "sea": Shape(3, 0.600, 0.622, 0.045, 2.6, 0.42, 0.3, 0.20, 0.5, "33506a", 0.2),
}


class Ridge:
    """One line of hills. Nearer ridges move faster."""

    def __init__(self, seed: Seed, mood: Mood, shape: Shape, number: int, sun_x: float) -> None:
        self._nearness = nearness = number / (shape.ridges - 1)
        self._shape, self._mood, self._sun_x = shape, mood, sun_x
        self._level = shape.level(number)
        self._hidden = shape.level(number + 1) + shape.height_max / (1 - shape.rough)
        self._speed = 0.010 + 0.060 * nearness**1.6
        label = f"ridge.{number}"
        frequency = shape.frequency * (1 - 0.4 * nearness)
        self._waves = [
            (
                frequency * 1.9**n * seed.number(f"{label}.often.{n}", 0.8, 1.25),
                seed.number(f"{label}.phase.{n}", 0, 6.28),
            )
            for n in range(_OCTAVES)
        ]
        self._start = seed.number(f"{label}.start", 0, 40)
        self._lots = np.frombuffer(seed.noise(f"{label}.trees", _LOTS), np.uint8) / 255
        self._crest = _crest(mood, shape, nearness)
        self._mist = mix(mood.horizon, mood.far, 0.25 + 0.45 * nearness)
        self._contrast = shape.relief * (1.5 if mood.night else 1.0)

    def paint(self, canvas: Canvas, time: float) -> None:
        x = canvas.x.astype(np.float64) + self._start + self._speed * time
        rise = self._line(x)
        ground = (self._level - rise).astype(np.float32)
        top = ground - self._trees(x).astype(np.float32)
        first = max(canvas.row(float(top.min())) - 1, 0)
        rows = canvas.y[first : self._last_visible_row(canvas), None]
        solid = np.clip((rows - top) * canvas.height + 0.5, 0, 1)
        below = np.maximum(rows - ground, 0)
        bright = self._relief(canvas, x, rise, below)
        tone = self._crest * (1 + self._contrast * bright)[..., None]
        if self._shape.snow:
            self._snow(tone, bright, rise, below)
        tone += (self._haze(canvas) - tone) * self._fade(below)[..., None]
        canvas.cover(np.clip(tone, 0, 1), solid, first)

    def _last_visible_row(self, canvas: Canvas) -> int:
        """Return the row from which the next ridge hides this one."""
        return canvas.height if self._nearness == 1 else canvas.row(self._hidden) + 2

    def _line(self, x: Line) -> Line:
        """Return the height of the ridge above its level."""
        total, size, sharp = np.zeros_like(x), 1.0, self._shape.sharp
        for frequency, phase in self._waves:
            total += size * (1 - sharp) * np.sin(frequency * x + phase)
            total += size * sharp * (1 - 2 * np.abs(np.sin(frequency * x / 2 + phase)))
            size *= self._shape.rough
        return total * self._shape.height_max * (1 - 0.35 * self._nearness)

    def _trees(self, x: Line) -> Line:
        height_max = self._shape.trees * max(self._nearness - 0.35, 0)
        wood = np.zeros_like(x)
        for frequency, start in ((90, 0.0), (70, 0.37), (54, 0.71)) if height_max else ():
            place = x * frequency / (0.6 + self._nearness) + start
            lot = place.astype(int)
            height = self._lots[lot % _LOTS] * self._lots[(lot * 7 + 3) % _LOTS]
            wood = np.maximum(wood, height * (1 - np.abs(2 * (place - lot) - 1)) ** 1.2)
        return wood * height_max * 2

    def _relief(self, canvas: Canvas, x: Line, rise: Line, below: Array) -> Array:
        """Return the light on the slopes, from -1 to 1. The borders of shadows are slanted."""
        side = 1.0 if self._sun_x > canvas.aspect / 2 else -1.0
        slope = (rise - self._line(x + 0.006)) / 0.006
        slope_light = np.tanh(1.2 * side * slope).astype(np.float32)
        aside = canvas.columns + below * (side * self._shape.slant * canvas.height)
        bright: Array = slope_light[np.clip(aside, 0, canvas.width - 1).astype(np.int32)]
        bright *= np.clip(1 - below / 0.32, 0, 1)
        return bright

    def _snow(self, tone: Array, bright: Array, rise: Line, below: Array) -> None:
        deep = (
            self._shape.snow
            * (1 - self._nearness) ** 2
            * np.clip(rise / self._shape.height_max, 0, 2).astype(np.float32)
        )
        snow = smooth((deep * (1 + 0.7 * bright) - below) / 0.02) * (0.55 + 0.35 * bright)
        tone += (mix(self._mood.horizon, self._mood.sun, 0.7) - tone) * np.clip(snow, 0, 1)[..., None]

    def _haze(self, canvas: Canvas) -> Colour:
        strong = (0.15 if self._mood.night else 0.45) * (1 - 0.7 * self._nearness)
        glow = strong / (1 + ((canvas.x - self._sun_x) / 0.45) ** 2)
        return self._mist + (self._mood.sun - self._mist) * glow[:, None]

    def _fade(self, below: Array) -> Array:
        thick = 0.92 - 0.62 * self._nearness
        return smooth(below / (0.16 + 0.14 * self._nearness)) * thick


def _crest(mood: Mood, shape: Shape, nearness: float) -> Colour:
    earth = shape.earth * (0.15 if mood.night else 1.0)
    ground = colour(shape.ground)
    return mix(mix(mood.far, ground, earth * 0.6), mix(mood.near, ground, earth), nearness**0.9)


def ridges(seed: Seed, mood: Mood, sun_x: float) -> Iterator[Ridge]:
    shape = SHAPES[mood.land]
    return (Ridge(seed, mood, shape, number, sun_x) for number in range(shape.ridges))
