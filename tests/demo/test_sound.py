"""Sounds: a WAV of the requested length that is audible from start to end."""

import io
import wave
from functools import cache

import numpy as np
import pytest

from callsheet.demo.media.seeded_random import Unfinished
from callsheet.demo.media.sound import RATE, Tone
from tests.demo.media_decode import samples

PROMPTS = ("a lighthouse in the fog", "dunes at noon", "boats at dawn", "the moon")


@cache
def cached_wav(prompt: str, seconds: float | None = None) -> bytes:
    return render_wav(prompt, seconds)


def render_wav(prompt: str, seconds: float | None = None) -> bytes:
    tone = Tone(prompt, seconds)
    list(tone.play())
    return tone.wav()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_tone_is_a_wav_of_16_bits_in_mono_and_lasts_a_few_seconds(prompt: str):
    with wave.open(io.BytesIO(cached_wav(prompt))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        assert file.getnframes() == round(Tone(prompt).seconds * RATE)
        assert 2 * RATE <= file.getnframes() <= 4 * RATE


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_tone_is_audible_throughout_without_clipping_or_clicks(prompt: str):
    sound = samples(cached_wav(prompt))
    parts = np.array_split(sound[: -RATE // 4], 8)
    assert min(np.sqrt((part**2).mean()) for part in parts) > 0.03
    assert 0.7 < np.abs(sound).max() < 0.9
    assert np.abs(np.diff(sound, 2)).max() < 0.12, "a click changes the slope abruptly, a high note does not"
    assert abs(sound[0]) < 0.001
    assert abs(sound[-1]) < 0.001


def test_a_tone_is_a_melody_and_not_one_note():
    sound = samples(cached_wav("boats at dawn"))
    loudest = {int(np.argmax(np.abs(np.fft.rfft(part))[40:]) * 2) for part in np.array_split(sound, 12)}
    assert len(loudest) >= 4


def test_a_tone_has_the_requested_length():
    assert [len(samples(cached_wav("the sea", seconds))) for seconds in (0.25, 4.5)] == [RATE // 4, 4.5 * RATE]


def test_the_same_prompt_gives_the_same_sound_and_another_prompt_a_different_one():
    assert render_wav("the moon") == cached_wav("the moon")
    assert len({cached_wav(prompt, 0.5) for prompt in PROMPTS}) == len(PROMPTS)


def test_progress_rises_to_100_and_the_file_exists_only_at_the_end():
    tone = Tone("a fox")
    percents = []
    for percent in tone.play():
        percents.append(percent)
        if percent < 100:
            with pytest.raises(Unfinished):
                tone.wav()
    assert percents == sorted(set(percents))
    assert len(percents) >= 8
    assert percents[-1] == 100
