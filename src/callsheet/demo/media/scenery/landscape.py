"""The landscape of a prompt: its layers in order, from the sky to the birds."""

from collections.abc import Iterator

import numpy as np

from callsheet.demo.media.png import Pixels
from callsheet.demo.media.scenery.boats_birds_lighthouse import Birds, Boats, Lighthouse
from callsheet.demo.media.scenery.canvas import Canvas, Layer
from callsheet.demo.media.scenery.city import city
from callsheet.demo.media.scenery.land import ridges
from callsheet.demo.media.scenery.mood import Mood, mood_of
from callsheet.demo.media.scenery.sky import Clouds, Sky, Stars, Sun
from callsheet.demo.media.scenery.water import Water
from callsheet.demo.media.seeded_random import Seed

_HORIZON = {"hills": 0.72, "mountains": 0.72, "dunes": 0.66, "sea": 0.62, "city": 0.74}


class Landscape:
    """The landscape of a prompt, in one size, at any time of the film."""

    def __init__(self, prompt: str, width: int, height: int) -> None:
        self._canvas = Canvas(width, height)
        seed = Seed(prompt)
        self._layers = list(_layers(mood_of(prompt, seed), seed, self._canvas.aspect))

    def __len__(self) -> int:
        return len(self._layers)

    def paint(self, time: float = 0.0) -> Iterator[None]:
        """Paint one layer after the other. Yields after each."""
        for layer in self._layers:
            layer.paint(self._canvas, time)
            yield

    def pixels(self) -> Pixels:
        """Return the pixels of the layers painted so far."""
        return (np.clip(self._canvas.pixels, 0, 1) * 255 + 0.5).astype(np.uint8)


def _layers(mood: Mood, seed: Seed, aspect: float) -> Iterator[Layer]:
    horizon = _HORIZON[mood.land]
    sun = Sun(mood, seed, horizon, aspect)
    yield Sky(mood, horizon)
    if mood.night:
        yield Stars(seed, horizon)
    yield sun
    yield Clouds(mood, seed, horizon, sun)
    if mood.land == "city":
        yield from city(seed, mood, horizon)
        yield Water(mood, seed, horizon, sun, rough=0.55)
    else:
        yield from ridges(seed, mood, sun.x)
    if mood.land == "sea":
        yield _landmark(mood, seed, horizon, aspect, sun)
        yield Water(mood, seed, horizon, sun, rough=1.0)
    if not mood.night:
        yield Birds(mood, seed, aspect)


def _landmark(mood: Mood, seed: Seed, horizon: float, aspect: float, sun: Sun) -> Layer:
    requested = [word for word in ("lighthouse", "boat") if word in mood.words]
    if (*requested, seed.pick("landmark", ("lighthouse", "boat", "boat")))[0] == "lighthouse":
        return Lighthouse(mood, seed, horizon, aspect, sun.x)
    return Boats(mood, seed, horizon, aspect)
