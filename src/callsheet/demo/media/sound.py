"""Generate a short melody over a chord from a prompt, note by note, as a WAV: 16 bits, mono, 44.1 kHz."""

import io
import wave
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from callsheet.demo.media.scenery.mood import mood_of
from callsheet.demo.media.seeded_random import Seed, Unfinished

RATE = 44_100
Samples = NDArray[np.float64]
_PERCENT_MAX = 100
_PEAK_MAX = 0.8
_TAIL_SECONDS = 0.9
_RING_MULTIPLE = 3.5  # a note is rendered for this many times its `ring`
# By hour, in semitones above the root: the scale of the melody, and the chord.
_SCALES = {
    "dawn": (0, 2, 4, 7, 9),
    "noon": (0, 2, 4, 7, 11),
    "dusk": (0, 3, 5, 7, 10),
    "night": (0, 2, 3, 7, 8),
    "fog": (0, 2, 5, 7, 10),
}
_CHORDS = {
    "dawn": (0, 7, 16),
    "noon": (0, 7, 11, 16),
    "dusk": (0, 7, 10, 15),
    "night": (0, 7, 14, 15),
    "fog": (0, 7, 14, 17),
}
Voice = tuple[tuple[float, float, float], ...]
# Partials of an instrument: multiple of the pitch, loudness, and decay rate relative to the first.
_PAD: Voice = ((1, 1.0, 1.0), (3, 0.30, 1.8), (2, 0.15, 1.3), (6, 0.06, 3.0))
_VOICES: tuple[Voice, ...] = (
    ((1, 1.0, 1.0), (2, 0.45, 1.6), (3, 0.25, 2.3), (4, 0.12, 3.2), (5, 0.08, 4.0)),
    ((1, 1.0, 1.0), (2.76, 0.22, 2.6), (5.4, 0.12, 4.2), (2, 0.2, 1.4)),
    _PAD,
)


@dataclass(frozen=True)
class Note:
    """A note: start in seconds, MIDI pitch, decay time, loudness and instrument."""

    start: float
    pitch: float
    ring: float
    loudness: float
    voice: Voice
    attack: float = 0.006


class Tone:
    """A sound that is rendered step by step. Iterate over `play` to the end, then call `wav`."""

    def __init__(self, prompt: str, seconds: float | None = None) -> None:
        seed = Seed(prompt)
        self.seconds = seconds or round(seed.number("seconds", 2.6, 3.8), 2)
        hour, root = mood_of(prompt, seed).hour, seed.pick("root", (45, 47, 48, 50, 52, 53))
        chord = (
            Note(0.03 * n, root + step, 0.6 * self.seconds, 0.34, _PAD, attack=0.18)
            for n, step in enumerate(_CHORDS[hour])
        )
        self._notes = [*chord, *_melody(seed, _SCALES[hour], root + 12, self.seconds)]
        self._sound: Samples = np.zeros(round(self.seconds * RATE))
        self._wav: bytes | None = None

    def play(self) -> Generator[int, None, None]:
        """Render note by note. Yields the progress in percent."""
        for number, note in enumerate(self._notes, start=1):
            first = round(note.start * RATE)
            sound = _render_note(note, len(self._sound) - first)
            self._sound[first : first + len(sound)] += sound
            yield (_PERCENT_MAX - 1) * number // len(self._notes)
        self._wav = _encode_wav(_apply_mastering(self._sound))
        yield _PERCENT_MAX

    def wav(self) -> bytes:
        """Return the WAV file. Raises `Unfinished` before the sound is complete."""
        if self._wav is None:
            raise Unfinished
        return self._wav


def _melody(seed: Seed, scale: tuple[int, ...], root: int, seconds: float) -> Iterator[Note]:
    """Yield notes that move up and down a scale, some of them longer, and end on the root."""
    voice, note_seconds = seed.pick("voice", _VOICES), seed.pick("beat", (0.18, 0.21, 0.24))
    start, place, number = 0.12, seed.pick("place", (2, 4, 5)), 0
    while start < seconds - _TAIL_SECONDS:
        yield Note(start, root + _step(scale, place), 0.55, seed.number(f"loud.{number}", 0.55, 0.8), voice)
        start += note_seconds * seed.pick(f"held.{number}", (1, 1, 1, 2))
        place = min(max(place + seed.pick(f"move.{number}", (-2, -1, -1, 1, 1, 2, 3)), 0), 10)
        number += 1
    yield Note(start, root + 12, 0.9, 0.8, voice)


def _step(scale: tuple[int, ...], place: int) -> int:
    octave, step = divmod(place, len(scale))
    return 12 * octave + scale[step]


def _render_note(note: Note, count_max: int) -> Samples:
    """Return the samples of a note, until it has faded out."""
    count = min(count_max, round(_RING_MULTIPLE * note.ring * RATE))
    time = np.arange(count) / RATE
    hertz = 440 * 2 ** ((note.pitch - 69) / 12)
    sound = np.zeros(count)
    for multiple, loudness, decay in note.voice:
        sound += loudness * np.exp(-time * decay / note.ring * 2.2) * np.sin(2 * np.pi * hertz * multiple * time)
    return sound * note.loudness * np.minimum(time / note.attack, 1)


def _apply_mastering(sound: Samples) -> Samples:
    """Add an echo, normalize the loudness, and fade out."""
    wet = sound.copy()
    for delay, loudness in ((0.19, 0.28), (0.31, 0.18), (0.47, 0.12)):
        delay_samples = round(delay * RATE)
        wet[delay_samples:] += loudness * sound[:-delay_samples]
    fade = min(round(0.5 * RATE), len(wet))
    wet[len(wet) - fade :] *= np.linspace(1, 0, fade) ** 1.5
    return wet * (_PEAK_MAX / max(float(np.abs(wet).max()), 1e-9))


def _encode_wav(sound: Samples) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((sound * 32767).round().astype("<i2").tobytes())
    return buffer.getvalue()
