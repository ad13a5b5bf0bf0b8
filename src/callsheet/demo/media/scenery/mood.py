"""The mood of a prompt: its land, its hour and the colours of that hour. If the prompt names none, the seed decides."""

import colorsys
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from callsheet.demo.media.scenery.canvas import Colour, colour
from callsheet.demo.media.seeded_random import Seed

LANDS: Mapping[str, str] = {
    "hills": "hill valley forest wood tree field meadow country garden farm road path village green",
    "mountains": "mountain peak summit snow alp glacier rock cliff canyon winter ice",
    "dunes": "dune desert sand camel sahara oasis heat mars",
    "sea": "sea ocean lighthouse boat ship sail beach coast harbour harbor island wave lake water river shore",
    "city": "city town street skyline tower building office market neon downtown robot",
}
HOURS: Mapping[str, str] = {
    "dawn": "dawn morning sunrise early first spring rose",
    "noon": "noon day midday summer bright blue sky high",
    "dusk": "dusk evening sunset late gold golden autumn last fire",
    "night": "night moon star starry midnight dark dream neon space",
    "fog": "fog foggy mist rain storm cloud grey gray smoke ghost quiet",
}
# Zenith, middle of the sky, horizon, sun or moon, the farthest ridge, the nearest.
PALETTES: Mapping[str, tuple[str, ...]] = {
    "dawn": (
        "5b6ea8 c58fb0 ffd2a8 fff3d6 a98bb5 2b2440",
        "6f9cc4 f0bdb0 ffe6c0 fff8e4 b99aac 35304f",
        "3f5f8f d98f8f ffd9a0 fff2cc 8f86ab 1f2a44",
    ),
    "noon": (
        "2f76b8 7fb6dd e2f1ee fffdf0 8fb3c4 16383f",
        "3f8fb5 a4d3d2 f4f4dc fffdf0 93bda8 123c2f",
        "2a6fa3 8cc5d6 fdebd0 fffaf0 9fb4b8 2a3a3f",
    ),
    "dusk": (
        "2c2a5a c0506b ffb15c ffe9a8 8e4a6e 1c1230",
        "3b1d4a d9564a ffc76b fff0b8 a1485a 240d24",
        "1f2a63 7a58a6 f5a5a8 ffe0c4 6a5596 15133a",
        "17375e d07a5c ffd28a fff0c0 7a6078 101a2e",
    ),
    "night": (
        "050b24 12295a 3f6a99 f4f4e6 2a4a78 040a1a",
        "041a24 0d3d4c 4f9a94 f8f8e2 215f66 031116",
        "0d0828 2c1d5c 7a5aa0 f8efe6 44357c 080416",
    ),
    "fog": (
        "8fa0aa b9c4c6 e4e4dc fdf8ea aab7bc 37464e",
        "7f9a98 b4c7bd e9ead6 fefae6 a0b7ad 2f463f",
        "8c8ea6 bdb7c4 ecdfdb fff6ea aca8b8 3c3a50",
    ),
}
_HUE_SHIFT_MAX = 0.025


@dataclass(frozen=True)
class Mood:
    """The land, the hour and its colours."""

    words: frozenset[str]
    land: str
    hour: str
    zenith: Colour
    middle: Colour
    horizon: Colour
    sun: Colour
    far: Colour
    near: Colour

    @property
    def night(self) -> bool:
        return self.hour == "night"


def mood_of(prompt: str, seed: Seed) -> Mood:
    land = land_of(prompt) or seed.pick("land", list(LANDS))
    hour = hour_of(prompt) or seed.pick("hour", list(HOURS))
    hue_shift = seed.number("hue", -_HUE_SHIFT_MAX, _HUE_SHIFT_MAX)
    colours = [_shift_hue(code, hue_shift) for code in seed.pick("palette", PALETTES[hour]).split()]
    return Mood(frozenset(words_of(prompt)), land, hour, *colours)


def words_of(prompt: str) -> list[str]:
    """Return the words of a prompt, each unchanged and without its ending."""
    words = re.findall(r"[a-z]+", prompt.lower())
    return [form for word in words for form in (word, re.sub(r"(ing|s|y)$", "", word))]


def land_of(prompt: str) -> str | None:
    """Return the land that a prompt mentions, or None."""
    return _first_match(words_of(prompt), LANDS)


def hour_of(prompt: str) -> str | None:
    """Return the hour that a prompt mentions, or None."""
    return _first_match(words_of(prompt), HOURS)


def _first_match(words: list[str], choices: Mapping[str, str]) -> str | None:
    choice_by_keyword = {word: choice for choice, keywords in choices.items() for word in keywords.split()}
    return next((choice_by_keyword[word] for word in words if word in choice_by_keyword), None)


def _shift_hue(code: str, hue_shift: float) -> Colour:
    hue, lightness, saturation = colorsys.rgb_to_hls(*map(float, colour(code)))
    return np.array(colorsys.hls_to_rgb((hue + hue_shift) % 1, lightness, saturation), np.float32)
