"""A whole landscape for a prompt: its layers in order, from the sky to the birds."""

from collections.abc import Iterator

import numpy as np

from callsheet.demo.making import Seed
from callsheet.demo.png import Pixels
from callsheet.demo.scenery.canvas import Canvas, Layer
from callsheet.demo.scenery.city import city
from callsheet.demo.scenery.figures import Birds, Boats, Lighthouse
from callsheet.demo.scenery.land import ridges
from callsheet.demo.scenery.mood import mood_of
from callsheet.demo.scenery.sky import Clouds, Sky, Stars, Sun
from callsheet.demo.scenery.water import Water

_HORIZON = {"hills": 0.72, "mountains": 0.72, "dunes": 0.66, "sea": 0.62, "city": 0.72}


class Landscape:
    """What a prompt shows, at any size and at any moment."""

    def __init__(self, prompt: str, width: int, height: int) -> None:
        seed = Seed(prompt)
        self._canvas = Canvas(width, height)
        mood = mood_of(prompt, seed)
        horizon = _HORIZON[mood.land]
        sun = Sun(mood, seed, horizon, self._canvas.aspect)
        self._layers: list[Layer] = [Sky(mood, horizon)]
        if mood.night:
            self._layers.append(Stars(seed, horizon))
        self._layers += [sun, Clouds(mood, seed, horizon, sun)]
        if mood.land == "city":
            self._layers += [*city(seed, mood, 0.74), Water(mood, seed, 0.74, sun, 0.55)]
        elif mood.land == "sea":
            self._layers += ridges(seed, mood, sun.x)
            figure = Lighthouse(mood, seed, horizon, self._canvas.aspect, sun.x) if "lighthouse" in mood.words or seed.number("fig")<.3 else Boats(mood, seed, horizon, self._canvas.aspect)
            self._layers += [figure, Water(mood, seed, horizon, sun, 1.0)]
        else:
            self._layers += ridges(seed, mood, sun.x)
        if not mood.night:
            self._layers.append(Birds(mood, seed, self._canvas.aspect))

    def __len__(self) -> int:
        return len(self._layers)

    def paint(self, time: float = 0.0) -> Iterator[None]:
        """Paint one layer after the other; yields after each."""
        for layer in self._layers:
            layer.paint(self._canvas, time)
            yield

    def pixels(self) -> Pixels:
        """Return what is painted so far."""
        return (np.clip(self._canvas.pixels, 0, 1) * 255 + 0.5).astype(np.uint8)
