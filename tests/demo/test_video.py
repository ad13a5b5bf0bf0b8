"""Videos: each frame is decoded by FFmpeg, browsers can play them, and a stopped encoder leaks nothing."""

import gc
import io
import wave
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from callsheet.demo.media.mp4_video import HEIGHT, RATE, SECONDS, WIDTH, Film, clip, montage
from callsheet.demo.media.picture import Picture
from callsheet.demo.media.png import encode
from callsheet.demo.media.seeded_random import Unfinished
from callsheet.demo.media.sound import Tone
from tests.demo.media_decode import boxes, difference, frames

WIDE, HIGH = 160, 100


def encode_film(film: Film) -> bytes:
    list(film.shoot())
    return film.mp4()


def small_clip(prompt: str, seconds: float) -> Film:
    return clip(prompt, seconds, WIDE, HIGH)


def small_montage(pictures: list[bytes], sound: bytes | None = None, seconds: float = 1.5) -> Film:
    return montage(pictures, sound, seconds=seconds, width=WIDE, height=HIGH)


def draw_picture(prompt: str) -> bytes:
    picture = Picture(prompt, WIDE, HIGH)
    list(picture.draw())
    return picture.png()


def count_resources() -> tuple[int, int]:
    """Count what a film could leak: open file descriptors, and live objects of PyAV."""
    gc.collect()
    library = (av.container.Container, av.stream.Stream, av.codec.CodecContext)
    return sum(1 for _ in Path("/dev/fd").iterdir()), sum(issubclass(type(one), library) for one in gc.get_objects())


@pytest.fixture(scope="module")
def sea() -> bytes:
    return encode_film(small_clip("a lighthouse at dusk", 1.0))


@pytest.fixture(scope="module")
def tone() -> bytes:
    sound = Tone("a lighthouse at dusk", 4.0)
    list(sound.play())
    return sound.wav()


def test_a_clip_lasts_three_seconds_by_default_and_starts_with_the_picture_of_its_prompt():
    film = clip("dunes at noon")
    next(film.shoot())
    assert (len(film.frames), film.frames.size) == (round(SECONDS * RATE), (WIDTH, HEIGHT))
    small = Picture("dunes at noon", WIDTH, HEIGHT)
    list(small.draw())
    assert film.preview() == small.preview()


def test_a_clip_is_h264_in_a_format_that_every_browser_plays(sea: bytes):
    with av.open(io.BytesIO(sea), "r") as file:
        (video,) = file.streams
        context = video.codec_context
        assert isinstance(context, av.VideoCodecContext)
        assert (context.name, context.pix_fmt, context.width, context.height) == ("h264", "yuv420p", 160, 100)
        assert file.duration == 1_000_000


def test_a_clip_has_all_its_frames_and_each_differs_from_the_one_before(sea: bytes):
    decoded = frames(sea)
    assert [frame.shape for frame in decoded] == [(100, 160, 3)] * RATE
    assert min(frame.std() for frame in decoded) > 15
    steps = [difference(one, other) for one, other in pairwise(decoded)]
    assert min(steps) > 0.05
    assert max(steps) < 20, "waves and clouds move, the camera does not jump"


def test_a_clip_keeps_the_colours_of_its_picture(sea: bytes):
    (still,) = frames(draw_picture("a lighthouse at dusk"))
    assert np.abs(frames(sea)[0].mean(axis=(0, 1)) - still.mean(axis=(0, 1))).max() < 4


@pytest.mark.parametrize("with_sound", [False, True])
def test_the_index_of_an_mp4_is_before_its_frames(tone: bytes, with_sound: bool):
    film = small_montage([draw_picture("a fox"), draw_picture("a hen")], tone if with_sound else None)
    order = list(boxes(encode_film(film)))
    assert order.index("moov") < order.index("mdat")
    assert order.count("moov") == order.count("mdat") == 1


def test_the_same_prompt_gives_the_same_film_and_another_prompt_a_different_one(sea: bytes):
    assert encode_film(small_clip("a lighthouse at dusk", 1.0)) == sea
    assert difference(frames(encode_film(small_clip("a lighthouse at dawn", 0.1)))[0], frames(sea)[0]) > 5


def test_encoding_a_full_size_film_is_deterministic():
    """With the encoder option mbtree, about one film in ten differed."""
    assert len({encode_film(clip("the sea")) for _ in range(4)}) == 1


def test_progress_rises_to_100_and_the_file_exists_only_at_the_end():
    film = small_clip("a fox", 0.5)
    with pytest.raises(Unfinished):
        film.preview()
    seen = set()
    percents = []
    for percent in film.shoot():
        percents.append(percent)
        seen.add(film.preview())
        if percent < 100:
            with pytest.raises(Unfinished):
                film.mp4()
    assert percents == sorted(set(percents))
    assert (len(percents), percents[-1]) == (13, 100)
    assert len(seen) == 12, "each frame has its own preview"


def test_a_montage_shows_its_pictures_in_turn_with_cross_fades():
    tints = [(200, 30, 30), (20, 180, 40), (30, 40, 210)]
    pictures = [encode(np.full((120, 200, 3), tint, np.uint8)) for tint in tints]
    decoded = frames(encode_film(small_montage(pictures, seconds=1.0)))
    assert len(decoded) == 3 * RATE
    for number, tint in enumerate(tints):
        middle = decoded[number * RATE + RATE // 2].mean(axis=(0, 1))
        assert np.abs(middle - tint).max() < 8
    cross_fade = decoded[RATE + RATE // 6].mean(axis=(0, 1))
    assert cross_fade[0] > 40
    assert cross_fade[1] > 70


def test_a_montage_resembles_its_pictures_and_the_camera_moves():
    pictures = [draw_picture("the sea at dawn"), draw_picture("a city at night")]
    decoded = frames(encode_film(small_montage(pictures, seconds=0.75)))
    for number, picture in enumerate(pictures):
        first, last = decoded[number * 18 + 9], decoded[number * 18 + 17]
        assert np.abs(first.mean(axis=(0, 1)) - frames(picture)[0].mean(axis=(0, 1))).max() < 20
        assert difference(first, last) > 0.5


@pytest.mark.parametrize("size", [(60, 300), (640, 80), (1, 1)])
def test_pictures_of_another_aspect_ratio_fill_the_frame(size: tuple[int, int]):
    picture = encode(np.full((size[1], size[0], 3), (90, 160, 60), np.uint8))
    (frame, *_) = frames(encode_film(small_montage([picture], seconds=0.1)))
    assert frame.shape == (100, 160, 3)
    assert np.abs(frame.reshape(-1, 3) - np.array((90.0, 160.0, 60.0))).max() < 8


def test_a_film_with_sound_has_audible_aac_as_long_as_its_pictures(tone: bytes):
    film = encode_film(small_montage([draw_picture("a fox"), draw_picture("a hen")], tone, seconds=1.0))
    with av.open(io.BytesIO(film), "r") as file:
        assert [stream.codec_context.name for stream in file.streams] == ["h264", "aac"]
        sound = np.concatenate([block.to_ndarray() for block in file.decode(audio=0)], axis=1)
    assert abs(sound.shape[1] / 44_100 - 2.0) < 0.06
    assert np.sqrt((sound**2).mean()) > 0.05
    assert np.abs(sound[0, -1024:]).max() < 0.1, "it fades out where it is cut"
    assert len(frames(film)) == 2 * RATE


def test_invalid_sizes_pictures_and_sounds_are_rejected():
    with pytest.raises(ValueError, match="even"):
        clip("a fox", 1.0, width=161, height=100)
    with pytest.raises(ValueError, match="at least one frame"):
        montage([])
    coarse = io.BytesIO()
    with wave.open(coarse, "wb") as file:
        file.setparams((1, 1, 8000, 0, "NONE", ""))
        file.writeframes(b"\x80" * 800)
    with pytest.raises(ValueError, match="16 bits"):
        encode_film(small_montage([draw_picture("a fox")], coarse.getvalue()))
    with pytest.raises(av.FFmpegError):
        montage([b"not a picture"])


@pytest.mark.parametrize(("steps", "with_sound"), [(1, False), (1, True), (30, True)])
def test_a_film_that_is_stopped_early_leaks_nothing(tone: bytes, steps: int, with_sound: bool):
    encode_film(small_clip("a fox", 0.1))
    before = count_resources()
    film = small_montage([draw_picture("a fox")], tone if with_sound else None)
    shooting = film.shoot()
    for _ in range(steps):
        next(shooting)
    assert count_resources() > before, "an encoder in progress is counted"
    shooting.close()
    assert count_resources() == before
    with pytest.raises(Unfinished):
        film.mp4()
