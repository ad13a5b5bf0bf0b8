"""The sky: its colours from the zenith to the horizon, stars, a sun or a moon, and clouds that drift."""

import numpy as np

from callsheet.demo.making import Seed
from callsheet.demo.scenery.canvas import Array, Canvas, Colour, cloudy, mix, smooth
from callsheet.demo.scenery.mood import Mood

_STARS = 180


class Sky:
    """Three colours, one above the other."""

    def __init__(self, mood: Mood, horizon: float) -> None:
        self._mood, self._horizon = mood, horizon

    def paint(self, canvas: Canvas, time: float) -> None:
        del time
        mood = self._mood
        depth = (canvas.y / self._horizon)[:, None]
        upper, lower = smooth(depth / 0.62), smooth((depth - 0.45) / 0.55)
        column = mood.zenith + (mood.middle - mood.zenith) * upper
        column += (mood.horizon - column) * lower
        canvas.pixels[:] = column[:, None, :]


class Stars:
    """Small lights that twinkle, fewer towards the horizon."""

    def __init__(self, seed: Seed, horizon: float) -> None:
        spots = np.frombuffer(seed.noise("stars", 4 * _STARS), np.uint8).reshape(_STARS, 4) / 255
        self._across, self._down = spots[:, 0] * 0.999, spots[:, 1] ** 1.4 * horizon * 0.85
        self._size, self._phase = spots[:, 2] ** 4, spots[:, 3] * np.pi * 2

    def paint(self, canvas: Canvas, time: float) -> None:
        columns = (self._across * canvas.width).astype(int)
        rows = (self._down * canvas.height).astype(int)
        bright = (0.25 + 0.75 * self._size) * (0.8 + 0.2 * np.sin(self._phase + 5 * time))
        for row, column, light, size in zip(rows, columns, bright, self._size, strict=True):
            canvas.pixels[row, column] += np.float32(light)
            if size > 0.5:  # noqa: PLR2004 - the few large ones have rays
                canvas.pixels[row, max(column - 1, 0) : column + 2] += np.float32(light * 0.35)
                canvas.pixels[max(row - 1, 0) : row + 2, column] += np.float32(light * 0.35)
        np.clip(canvas.pixels, 0, 1, out=canvas.pixels)


class Sun:
    """A disc and its glow. It rises a little during a film."""

    def __init__(self, mood: Mood, seed: Seed, horizon: float, aspect: float) -> None:
        low = {"dawn": 0.72, "dusk": 0.78, "noon": 0.32, "night": 0.36, "fog": 0.5}[mood.hour]
        self.x = aspect * (seed.number("sun.x", 0.18, 0.42) + seed.pick("sun.side", (0.0, 0.4)))
        self._y = horizon * (low + seed.number("sun.y", -0.12, 0.12))
        self._radius = {"noon": 0.045, "night": 0.055, "fog": 0.06}.get(mood.hour, 0.07)
        self._glow = {"night": 0.35, "fog": 0.5}.get(mood.hour, 0.75)
        self._mood = mood

    def y(self, time: float) -> float:
        return self._y - 0.008 * time

    def paint(self, canvas: Canvas, time: float) -> None:
        right, down = canvas.x[None, :] - self.x, canvas.y[:, None] - self.y(time)
        square = right * right + down * down
        halo = self._glow * (0.55 / (1 + square / 0.02) + 0.45 / (1 + square / 0.16) ** 2)
        canvas.light(self._mood.sun, halo)
        distance = np.sqrt(square)
        canvas.cover(self._disc(right, down), np.clip((self._radius - distance) * canvas.height + 0.5, 0, 1))

    def _disc(self, right: Array, down: Array) -> Colour:
        if not self._mood.night:
            return self._mood.sun
        seas = [(-0.3, -0.2, 0.35), (0.25, 0.15, 0.3), (-0.1, 0.4, 0.22), (0.3, -0.4, 0.18)]
        dark: Array = np.zeros((down.size, right.size), np.float32)
        for x, y, size in seas:
            far = ((right / self._radius - x) ** 2 + (down / self._radius - y) ** 2) / size**2
            dark += 0.16 * smooth(1.3 - far)
        return (self._mood.sun * (1 - dark[..., None])).astype(np.float32)


class Clouds:
    """Bands of cloud, lit from the sun's side, drifting with the wind."""

    def __init__(self, mood: Mood, seed: Seed, horizon: float, sun: Sun) -> None:
        self._mood, self._horizon, self._sun = mood, horizon, sun
        self._noise = seed.noise("clouds", 64 * 64)
        self._cover = {"fog": 0.36, "night": 0.52, "noon": 0.46}.get(mood.hour, 0.44) + seed.number("cover", -0.04, 0.06)
        self._wind = seed.number("wind", 0.02, 0.05)
        self._cloth: Array | None = None

    def paint(self, canvas: Canvas, time: float) -> None:
        rows = canvas.row(self._horizon)
        if self._cloth is None:
            self._cloth = cloudy(self._noise, rows, 2 * canvas.width)
        shift = self._wind * time * canvas.height
        cloth = _slid(self._cloth, shift)[:, : canvas.width]
        height = (canvas.y[:rows] / self._horizon)[:, None]
        thick = smooth((cloth - self._cover) / 0.26) * smooth(height * 3) * smooth((1.04 - height) * 2.2)
        above = np.roll(cloth, 3, axis=0)
        lit = np.clip(0.5 + 6 * (cloth - above), 0, 1)
        near = 1 / (1 + ((canvas.x[None, :] - self._sun.x) ** 2 + (canvas.y[:rows, None] - self._sun.y(time)) ** 2) / 0.15)
        bright = np.clip(0.35 * lit + 0.65 * near, 0, 1)[..., None]
        shade = mix(self._mood.middle, self._mood.far, 0.45)
        light = mix(self._mood.horizon, self._mood.sun, 0.6)
        if self._mood.night:
            light = mix(self._mood.horizon, self._mood.middle, 0.4)
        canvas.cover(shade + (light - shade) * bright, thick * (0.85 - 0.7 * near * near))


def _slid(cloth: Array, shift: float) -> Array:
    """Move a cloth to the left by a part of a pixel."""
    whole = int(shift)
    part = np.float32(shift - whole)
    return np.roll(cloth, -whole, axis=1) * (1 - part) + np.roll(cloth, -whole - 1, axis=1) * part
