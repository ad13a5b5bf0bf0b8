"""Pictures: drawn in steps, deterministic per prompt, and decoded by FFmpeg."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from callsheet.demo.media.picture import HEIGHT, WIDTH, Picture
from callsheet.demo.media.png import encode
from callsheet.demo.media.scenery.mood import HOURS, LANDS
from callsheet.demo.media.seeded_random import Unfinished
from tests.demo.media_decode import difference, frames

PROMPTS = ("a lighthouse in the fog", "dunes at noon", "the sea from the train", "a city after rain")
PRINT = """
import hashlib, sys
from callsheet.demo.media.picture import Picture
picture = Picture("a city after rain", 160, 100)
list(picture.draw())
print(hashlib.sha256(picture.png()).hexdigest(), "av" in sys.modules)
"""


def draw_picture(prompt: str, width: int = 160, height: int = 100) -> bytes:
    picture = Picture(prompt, width, height)
    list(picture.draw())
    return picture.png()


def test_a_picture_is_a_png_of_its_size_with_contrast():
    (pixels,) = frames(draw_picture("a lighthouse in the fog", WIDTH, HEIGHT))
    assert pixels.shape == (HEIGHT, WIDTH, 3)
    assert pixels.std() > 15


def test_encoded_pixels_are_decoded_unchanged():
    pixels = np.random.default_rng(1).integers(0, 256, (31, 47, 3), np.uint8)
    assert np.array_equal(frames(encode(pixels))[0], pixels)


def test_progress_rises_in_steps_to_100():
    percents = list(Picture("dunes at noon", 160, 100).draw())
    assert percents == sorted(set(percents))
    assert len(percents) >= 8
    assert percents[-1] == 100


def test_the_same_prompt_gives_the_same_bytes_in_another_process_without_the_video_library():
    done = subprocess.run([sys.executable, "-c", PRINT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [hashlib.sha256(draw_picture("a city after rain")).hexdigest(), "False"]


@pytest.mark.parametrize("prompts", [PROMPTS, ("a fox", "a fax", "A fox", "a fox ")])
def test_different_prompts_look_different(prompts: tuple[str, ...]):
    pictures = [frames(draw_picture(prompt))[0] for prompt in prompts]
    for number, one in enumerate(pictures):
        for other in pictures[number + 1 :]:
            assert difference(one, other) > 5


@pytest.mark.parametrize("land", LANDS)
@pytest.mark.parametrize("hour", HOURS)
def test_every_landscape_can_be_drawn_at_every_hour(land: str, hour: str):
    (pixels,) = frames(draw_picture(f"{land} {hour}"))
    assert pixels.std() > 10
    assert (pixels.reshape(-1, 3).max(axis=1) > 0).mean() > 0.99


def test_the_hour_in_a_prompt_sets_the_brightness():
    noon, night = (frames(draw_picture(f"hills at {hour}"))[0].mean() for hour in ("noon", "night"))
    assert noon > night + 50


@pytest.mark.parametrize("prompt", ["", "   ", "ключ под ковриком", "🦊" * 2000, "a\x00b\nc", "\ud800"])
def test_any_text_is_accepted_as_a_prompt(prompt: str):
    assert frames(draw_picture(prompt))[0].std() > 10


@pytest.mark.parametrize(("width", "height"), [(1, 1), (2, 300), (301, 7), (90, 160)])
def test_any_size_can_be_drawn(width: int, height: int):
    assert frames(draw_picture("a boat at dawn", width, height))[0].shape == (height, width, 3)


def test_a_preview_shows_the_picture_so_far_and_the_file_exists_only_at_the_end():
    picture = Picture("mountains at dusk")
    steps = picture.draw()
    next(steps)
    early = frames(picture.preview())[0]
    with pytest.raises(Unfinished):
        picture.png()
    list(steps)
    late = frames(picture.preview())[0]
    assert early.shape == late.shape == (100, 160, 3)
    assert difference(early, late) > 10
    whole = frames(picture.png())[0]
    assert difference(late, whole.reshape(100, 4, 160, 4, 3).mean(axis=(1, 3)).astype(np.uint8)) < 1
