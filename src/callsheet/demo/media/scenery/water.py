"""Water: a reflection of the picture above it, distorted by waves, with the glitter of the sun."""

import numpy as np

from callsheet.demo.media.scenery.canvas import Array, Canvas, Indexes, mix
from callsheet.demo.media.scenery.mood import Mood
from callsheet.demo.media.scenery.sky import Sun
from callsheet.demo.media.seeded_random import Seed

# Per wave: frequency in depth, frequency across, speed, height.
_WAVES = ((21.0, 2.1, 2.3, 1.0), (34.0, -6.5, 3.1, 0.8), (55.0, 13.0, -2.7, 0.65), (16.0, -23.0, 3.7, 0.55))


class Water:
    """Water from its level to the bottom of the picture."""

    def __init__(self, mood: Mood, seed: Seed, level: float, sun: Sun, rough: float) -> None:
        self._level, self._sun, self._rough = level, sun, rough
        self._deep = mix(mood.near, mood.zenith, 0.45)
        self._light = mix(mood.sun, mood.horizon, 0.2)
        self._phases = [seed.number(f"wave.{n}", 0, 6.28) for n in range(len(_WAVES))]

    def paint(self, canvas: Canvas, time: float) -> None:
        first = canvas.row(self._level)
        depth = ((canvas.y[first:] - self._level) / (1 - self._level)).clip(0, 1)[:, None]
        waves = self._waves(canvas, depth, time)
        broken = waves * depth**0.7 * (self._rough * canvas.height)
        up = first - 1 - np.arange(len(depth), dtype=np.float32)[:, None] * 0.62 + broken * 0.075
        aside = canvas.columns + broken * 0.012
        mirror = canvas.pixels[_clip_indexes(up, first), _clip_indexes(aside, canvas.width)]
        dark = 0.14 + 0.46 * depth + 0.16 * self._rough * waves * np.sqrt(depth)
        canvas.pixels[first:] = mirror + (self._deep - mirror) * np.clip(dark, 0, 1)[..., None]
        canvas.light(self._light, self._glitter(canvas, depth, waves), first)

    def _waves(self, canvas: Canvas, depth: Array, time: float) -> Array:
        """Return the height of the waves from -1 to 1. In perspective they are finer towards the horizon."""
        far = 1 / (depth + 0.14)
        across = (canvas.x - canvas.aspect / 2) * far
        total = np.zeros_like(across)
        for (deep, wide, fast, high), phase in zip(_WAVES, self._phases, strict=True):
            total += high * np.sin(deep * far + wide * across + (fast * time + phase))
        return total / sum(high for *_, high in _WAVES)

    def _glitter(self, canvas: Canvas, depth: Array, waves: Array) -> Array:
        away = (canvas.x - self._sun.x) / (0.05 + 0.13 * depth)
        spark = np.clip(waves * 2.6 - 0.55, 0, 1)
        away *= away
        light: Array = 0.22 / (1 + away) + spark / (1 + away * away)
        light *= 1 - 0.4 * depth
        return light


def _clip_indexes(where: Array, count: int) -> Indexes:
    return np.clip(where, 0, max(count - 1, 0)).astype(np.int32)
