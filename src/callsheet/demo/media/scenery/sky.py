"""The sky: a colour gradient, stars, a sun or a moon, and drifting clouds."""

import numpy as np

from callsheet.demo.media.scenery.canvas import Array, Canvas, Colour, cloud_noise, mix, smooth
from callsheet.demo.media.scenery.mood import Mood
from callsheet.demo.media.seeded_random import Seed

_STARS = 180
_BELOW_HORIZON = 0.05  # the sky continues this far behind the land
_MOON_SPOTS = ((-0.3, -0.2, 0.35), (0.25, 0.15, 0.3), (-0.1, 0.4, 0.22), (0.3, -0.4, 0.18))


class Sky:
    """A gradient of three colours from the zenith to the horizon."""

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
    """Twinkling stars, fewer towards the horizon."""

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
    """The sun or the moon, with its glow. It rises a little during a film."""

    def __init__(self, mood: Mood, seed: Seed, horizon: float, aspect: float) -> None:
        low = {"dawn": 0.72, "dusk": 0.78, "noon": 0.32, "night": 0.36, "fog": 0.5}[mood.hour]
        self.x = aspect * (seed.number("sun.x", 0.18, 0.42) + seed.pick("sun.side", (0.0, 0.4)))
        self._y = horizon * (low + seed.number("sun.y", -0.12, 0.12))
        self._radius = {"noon": 0.045, "night": 0.055, "fog": 0.06}.get(mood.hour, 0.07)
        self._glow = {"night": 0.35, "fog": 0.5}.get(mood.hour, 0.75)
        self._mood, self._horizon = mood, horizon + _BELOW_HORIZON

    def y(self, time: float) -> float:
        return self._y - 0.008 * time

    def paint(self, canvas: Canvas, time: float) -> None:
        right, down = canvas.x - self.x, canvas.y[: canvas.row(self._horizon), None] - self.y(time)
        square = right * right + down * down
        halo = self._glow * (0.55 / (1 + square / 0.02) + 0.45 / (1 + square / 0.16) ** 2)
        canvas.light(self._mood.sun, halo)
        top, bottom = (canvas.row(self.y(time) + reach * self._radius) for reach in (-1.1, 1.1))
        disc = np.clip((self._radius - np.sqrt(square[top:bottom])) * canvas.height + 0.5, 0, 1)
        canvas.cover(self._face(right, down[top:bottom]), disc, top)

    def _face(self, right: Array, down: Array) -> Colour:
        """Return the colours of the disc: plain for the sun, with dark spots for the moon."""
        if not self._mood.night:
            return self._mood.sun
        dark: Array = np.zeros((down.size, right.size), np.float32)
        for x, y, size in _MOON_SPOTS:
            far = ((right / self._radius - x) ** 2 + (down / self._radius - y) ** 2) / size**2
            dark += 0.16 * smooth(1.3 - far)
        return self._mood.sun * (1 - dark[..., None])


class Clouds:
    """Drifting clouds, brighter near the sun."""

    def __init__(self, mood: Mood, seed: Seed, horizon: float, sun: Sun) -> None:
        self._horizon, self._sun = horizon, sun
        self._noise = seed.noise("clouds", 64 * 64)
        clear = {"fog": 0.36, "night": 0.52, "noon": 0.46}.get(mood.hour, 0.44)
        self._clear = clear + seed.number("clear", -0.04, 0.06)
        self._shade = mix(mood.middle, mood.far, 0.45)
        self._light = mix(mood.horizon, mood.middle, 0.4) if mood.night else mix(mood.horizon, mood.sun, 0.6)
        self._wind = seed.number("wind", 0.02, 0.05)
        self._cloud_map: Array | None = None

    def paint(self, canvas: Canvas, time: float) -> None:
        rows = canvas.row(self._horizon)
        if self._cloud_map is None:
            self._cloud_map = cloud_noise(self._noise, rows, 2 * canvas.width)
        cloud_map = _shift_left(self._cloud_map, self._wind * time * canvas.height)[:, : canvas.width]
        height = (canvas.y[:rows] / self._horizon)[:, None]
        thick = smooth((cloud_map - self._clear) / 0.26) * smooth(height * 3) * smooth((1.04 - height) * 2.2)
        right, down = canvas.x - self._sun.x, canvas.y[:rows, None] - self._sun.y(time)
        near = 1 / (1 + (right * right + down * down) / 0.15)
        lit = np.clip(0.5 + 6 * (cloud_map - np.roll(cloud_map, 3, axis=0)), 0, 1)
        bright = np.clip(0.35 * lit + 0.65 * near, 0, 1)[..., None]
        canvas.cover(self._shade + (self._light - self._shade) * bright, thick * (0.85 - 0.7 * near * near))


def _shift_left(cloud_map: Array, shift: float) -> Array:
    """Shift the cloud map to the left, by fractions of a pixel."""
    whole = int(shift)
    part = np.float32(shift - whole)
    return np.roll(cloud_map, -whole, axis=1) * (1 - part) + np.roll(cloud_map, -whole - 1, axis=1) * part
