"""Write a short script from a prompt: scenes with a title and a sentence. The same prompt gives the same script.

The sentence of a scene is the prompt of its picture. All scenes have the same place, and their hours go from dawn to
night, unless the prompt mentions a place or an hour.
"""

from collections.abc import Generator

from msgspec import Struct

from callsheet.demo.media.scenery.mood import hour_of, land_of
from callsheet.demo.media.seeded_random import Seed, Unfinished

SCENES_MAX = 24
_PERCENT_MAX = 100
_SUBJECT_MAX = 160
_HOURS = (
    ("at dawn", "in the early morning", "at sunrise"),
    ("at noon", "on a bright day", "in the midday light"),
    ("at sunset", "in the golden evening", "at dusk"),
    ("at night", "under the moon", "at midnight"),
)
_PLACES = ("in the hills", "in the mountains", "in the desert", "by the sea", "in the city")
_SHOTS = ("Wide shot", "Slow push in", "Tracking shot", "From above", "Long take", "Low angle", "Still frame", "Close")
_DETAILS = (
    "and nothing moves but the light",
    "and the wind turns the page",
    "while somewhere a door opens",
    "as the first sound comes in",
    "and someone decides to stay",
    "while birds cross the frame",
    "and the silence has a colour",
    "as if it had always been there",
    "and for a moment time stands",
    "while the shadows change sides",
)
_FIRST = ("The", "A Last", "One More", "Almost", "Towards the", "After the", "Beyond the", "Beneath the")
_SECOND = ("Arrival", "Promise", "Horizon", "Signal", "Crossing", "Echo", "Return", "Stillness", "Letter", "Threshold")


class Scene(Struct, frozen=True):
    """One scene: its title and its description."""

    title: str
    text: str


class Script:
    """A script that is written step by step. Iterate over `write` to the end, then call `scenes` or `text`."""

    def __init__(self, prompt: str, count: int) -> None:
        if not 1 <= count <= SCENES_MAX:
            raise ValueError(f"{count} scenes are not possible: a script has 1 to {SCENES_MAX}.")
        self._subject = " ".join(prompt.split()).rstrip(".!?")[:_SUBJECT_MAX] or "an empty place"
        self._seed, self._count = Seed(prompt), count
        self._place = "" if land_of(prompt) else f" {self._seed.pick('place', _PLACES)}"
        self._time_passes = hour_of(prompt) is None
        self._scenes: list[Scene] = []

    def write(self) -> Generator[int, None, None]:
        """Write scene by scene. Yields the progress in percent."""
        for number in range(self._count):
            self._scenes.append(Scene(self._title(number), self._text(number)))
            yield _PERCENT_MAX * (number + 1) // self._count

    def scenes(self) -> list[Scene]:
        """Return the scenes, in order. Raises `Unfinished` before the script is complete."""
        if len(self._scenes) < self._count:
            raise Unfinished
        return self._scenes

    def text(self) -> bytes:
        """Return the script as a text file."""
        return "\n\n".join(f"{n}. {scene.title}\n{scene.text}" for n, scene in enumerate(self.scenes(), 1)).encode(
            errors="replace"
        )

    def _title(self, number: int) -> str:
        """Combine two words. Stepping through both lists at the same time avoids repeated pairs."""
        first, second = self._pick_index("first", len(_FIRST), number), self._pick_index("second", len(_SECOND), number)
        return f"{_FIRST[first]} {_SECOND[second]}"

    def _text(self, number: int) -> str:
        shot = _SHOTS[self._pick_index("shot", len(_SHOTS), number)]
        detail = _DETAILS[self._pick_index("detail", len(_DETAILS), number)]
        return f"{shot}: {self._subject}{self._place}{self._time_phrase(number)}, {detail}."

    def _time_phrase(self, number: int) -> str:
        if not self._time_passes:
            return ""
        hours = _HOURS[len(_HOURS) * number // self._count]
        return " " + hours[self._pick_index("hour", len(hours), number)]

    def _pick_index(self, label: str, length: int, number: int) -> int:
        return (int(self._seed.number(label, 0, length)) + number) % length
