"""Small objects in a landscape: a lighthouse, sailing boats, birds."""

import math
from dataclasses import dataclass

import numpy as np

from callsheet.demo.media.scenery.canvas import Canvas, Colour, colour, mix
from callsheet.demo.media.scenery.mood import Mood
from callsheet.demo.media.seeded_random import Seed


@dataclass(frozen=True)
class Span:
    """A quadrilateral with horizontal top and bottom. `left` and `right` are its x at the top and at the bottom."""

    top: float
    bottom: float
    left: tuple[float, float]
    right: tuple[float, float]
    tint: Colour

    def paint(self, canvas: Canvas, x: float, y: float, size: float) -> None:
        high, low = y + size * self.top, y + size * self.bottom
        first, last = max(canvas.row(high) - 1, 0), canvas.row(low) + 2
        rows = canvas.y[first:last, None]
        down = np.clip((rows - high) / max(low - high, 1e-6), 0, 1)
        left = x + size * (self.left[0] + (self.left[1] - self.left[0]) * down)
        right = x + size * (self.right[0] + (self.right[1] - self.right[0]) * down)
        inside = np.minimum(np.minimum(canvas.x - left, right - canvas.x), np.minimum(rows - high, low - rows))
        canvas.cover(self.tint, np.clip(inside * canvas.height + 0.5, 0, 1), first)


class Lighthouse:
    """A tower on a rock. Its light rotates, except at noon."""

    def __init__(self, mood: Mood, seed: Seed, level: float, aspect: float, sun_x: float) -> None:
        side = 0.24 if sun_x > aspect / 2 else 0.74
        self._x, self._level = aspect * (side + seed.number("lighthouse", -0.06, 0.06)), level
        self._phase = seed.number("beam", 0.5, 2.2)
        self._beam = {"noon": 0.0, "dawn": 0.35, "fog": 0.6}.get(mood.hour, 0.75)
        self._lamp = mix(colour("fff2c4"), mood.sun, 0.3)
        rock, shade = mix(mood.near, mood.far, 0.12), 0.35 if mood.night else 0.12
        white, red = mix(colour("f6f1e7"), mood.near, shade + 0.12), mix(colour("b5403a"), mood.near, shade + 0.1)
        self._spans = [
            Span(-0.14, 0.02, (-0.30, -0.75), (0.22, 0.95), rock),
            Span(-0.20, -0.10, (-0.16, -0.34), (0.12, 0.30), rock),
            *(_ring(n, red if n % 2 else white) for n in range(5)),
            Span(-1.04, -1.00, (-0.12, -0.12), (0.12, 0.12), rock),
            Span(-1.15, -1.03, (-0.06, -0.06), (0.06, 0.06), self._lamp),
            Span(-1.25, -1.14, (-0.01, -0.09), (0.01, 0.09), red),
        ]

    def paint(self, canvas: Canvas, time: float) -> None:
        size = 0.30
        self._shine(canvas, time, self._level - 1.09 * size)
        for span in self._spans:
            span.paint(canvas, self._x, self._level, size)

    def _shine(self, canvas: Canvas, time: float, y: float) -> None:
        turn = math.cos(self._phase + 1.6 * time)
        right, down = canvas.x - self._x, canvas.y[: canvas.row(self._level), None] - y
        along = right * math.copysign(1, turn)
        wedge = np.clip(1 - np.abs(down) / (0.008 + 0.13 * np.abs(along)), 0, 1) * (along > 0)
        glow = 0.7 / (1 + (right**2 + down**2) / 0.0012)
        beam = wedge * abs(turn) / (1 + 2.0 * np.abs(along))
        canvas.light(self._lamp, self._beam * np.clip(beam + glow, 0, 1))


class Boats:
    """One to three sailing boats near the horizon, drifting and rocking."""

    def __init__(self, mood: Mood, seed: Seed, level: float, aspect: float) -> None:
        self._level = level
        self._fleet = [
            (aspect * seed.number(f"boat.{n}", 0.12, 0.88), seed.number(f"boat.size.{n}", 0.05, 0.11))
            for n in range(seed.pick("boats", (1, 2, 3)))
        ]
        sail = mix(mix(mood.horizon, mood.sun, 0.7), mood.far, 0.5 if mood.night else 0.1)
        self._spans = [
            Span(-1.30, -0.14, (0.02, 0.04), (0.03, 0.56), sail),
            Span(-1.12, -0.14, (-0.04, -0.42), (-0.03, -0.04), mix(sail, mood.far, 0.35)),
            Span(-0.12, 0.05, (-0.52, -0.34), (0.60, 0.42), mood.near),
        ]

    def paint(self, canvas: Canvas, time: float) -> None:
        for number, (x, size) in enumerate(self._fleet):
            sway = 0.02 * size * math.sin(2.2 * time + number)
            for span in self._spans:
                span.paint(canvas, x + 0.012 * time * (size / 0.05), self._level + sway, size)


class Birds:
    """A few distant birds that flap their wings."""

    def __init__(self, mood: Mood, seed: Seed, aspect: float) -> None:
        self._ink = mix(mood.near, mood.middle, 0.2)
        at = aspect * seed.number("birds.x", 0.15, 0.7), seed.number("birds.y", 0.16, 0.3)
        self._flock = [
            (at[0] + seed.number(f"bird.x.{n}", -0.16, 0.16), at[1] + seed.number(f"bird.y.{n}", -0.07, 0.07), n * 1.3)
            for n in range(seed.pick("birds", (3, 4, 5, 6)))
        ]

    def paint(self, canvas: Canvas, time: float) -> None:
        for x, y, phase in self._flock:
            size = 0.013 + 0.004 * math.sin(phase * 5)
            right = (canvas.x - x - 0.035 * time) / size
            flap = 0.55 + 0.45 * math.sin(9 * time + phase)
            first, last = canvas.row(y - 0.03), canvas.row(y + 0.03)
            wing = y - size * flap * (np.abs(right) * 1.5 - right * right)
            thin = np.clip(1 - np.abs(right), 0, 1) * size * 0.16
            far = np.abs(canvas.y[first:last, None] - wing) - thin
            mark = np.clip(0.5 - far * canvas.height, 0, 1) * (np.abs(right) < 1)
            canvas.cover(self._ink, mark, first)


def _ring(number: int, tint: Colour) -> Span:
    top, bottom = -0.18 - 0.164 * (number + 1), -0.18 - 0.164 * number
    wide = [0.085 + 0.055 * (1 + y) for y in (top, bottom)]
    return Span(top, bottom, (-wide[0], -wide[1]), (wide[0], wide[1]), tint)
