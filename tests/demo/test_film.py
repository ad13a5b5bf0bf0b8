"""Films: decoded frame by frame by another decoder, ready for browsers, and dropped in the middle without a trace."""

import gc
import io
import wave
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from callsheet.demo.media.picture import Picture
from callsheet.demo.media.png import encode
from callsheet.demo.media.seeded_random import Unfinished
from callsheet.demo.media.sound import Tone
from callsheet.demo.media.video import HEIGHT, RATE, SECONDS, WIDTH, Film, clip, montage
from tests.demo.media_decode import boxes, frames, unlike

WIDE, HIGH = 160, 100


def shot(film: Film) -> bytes:
    list(film.shoot())
    return film.mp4()


def small_clip(prompt: str, seconds: float) -> Film:
    return clip(prompt, seconds, WIDE, HIGH)


def small_montage(pictures: list[bytes], sound: bytes | None = None, seconds: float = 1.5) -> Film:
    return montage(pictures, sound, seconds=seconds, width=WIDE, height=HIGH)


def drawn(prompt: str) -> bytes:
    picture = Picture(prompt, WIDE, HIGH)
    list(picture.draw())
    return picture.png()


def traces() -> tuple[int, int]:
    """Count what a film could leave behind: open descriptors, and live objects of the film library."""
    gc.collect()
    library = (av.container.Container, av.stream.Stream, av.codec.CodecContext)
    return sum(1 for _ in Path("/dev/fd").iterdir()), sum(
        issubclass(type(thing), library) for thing in gc.get_objects()
    )


@pytest.fixture(scope="module")
def sea() -> bytes:
    return shot(small_clip("a lighthouse at dusk", 1.0))


@pytest.fixture(scope="module")
def tone() -> bytes:
    sound = Tone("a lighthouse at dusk", 4.0)
    list(sound.play())
    return sound.wav()


def test_a_clip_lasts_three_seconds_by_default_and_shows_its_first_moment_like_the_picture():
    film = clip("dunes at noon")
    next(film.shoot())
    assert (len(film.frames), film.frames.size) == (round(SECONDS * RATE), (WIDTH, HEIGHT))
    small = Picture("dunes at noon", WIDTH, HEIGHT)
    list(small.draw())
    assert film.preview() == small.preview()


def test_a_clip_is_h264_that_every_browser_decodes(sea: bytes):
    with av.open(io.BytesIO(sea), "r") as file:
        (video,) = file.streams
        context = video.codec_context
        assert isinstance(context, av.VideoCodecContext)
        assert (context.name, context.pix_fmt, context.width, context.height) == ("h264", "yuv420p", 160, 100)
        assert file.duration == 1_000_000


def test_every_frame_of_a_clip_is_there_has_its_size_and_differs_from_the_one_before(sea: bytes):
    shown = frames(sea)
    assert [frame.shape for frame in shown] == [(100, 160, 3)] * RATE
    assert min(frame.std() for frame in shown) > 15
    steps = [unlike(one, other) for one, other in pairwise(shown)]
    assert min(steps) > 0.05
    assert max(steps) < 20, "waves and clouds move, the camera does not jump"


def test_a_clip_keeps_the_colours_of_its_picture(sea: bytes):
    (still,) = frames(drawn("a lighthouse at dusk"))
    assert np.abs(frames(sea)[0].mean(axis=(0, 1)) - still.mean(axis=(0, 1))).max() < 4


@pytest.mark.parametrize("with_sound", [False, True])
def test_the_index_stands_before_the_frames(tone: bytes, with_sound: bool):
    film = small_montage([drawn("a fox"), drawn("a hen")], tone if with_sound else None)
    order = list(boxes(shot(film)))
    assert order.index("moov") < order.index("mdat")
    assert order.count("moov") == order.count("mdat") == 1


def test_the_same_prompt_gives_the_same_film_and_another_prompt_another(sea: bytes):
    assert shot(small_clip("a lighthouse at dusk", 1.0)) == sea
    assert unlike(frames(shot(small_clip("a lighthouse at dawn", 0.1)))[0], frames(sea)[0]) > 5


def test_a_film_of_full_size_comes_out_the_same_every_time():
    """The encoder's tree of macroblocks did not: about one film in ten was another."""
    assert len({shot(clip("the sea")) for _ in range(4)}) == 1


def test_progress_rises_to_100_and_the_file_waits_for_the_end():
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


def test_a_film_out_of_pictures_shows_each_of_them_in_turn_and_melts_between():
    tints = [(200, 30, 30), (20, 180, 40), (30, 40, 210)]
    pictures = [encode(np.full((120, 200, 3), tint, np.uint8)) for tint in tints]
    shown = frames(shot(small_montage(pictures, seconds=1.0)))
    assert len(shown) == 3 * RATE
    for number, tint in enumerate(tints):
        middle = shown[number * RATE + RATE // 2].mean(axis=(0, 1))
        assert np.abs(middle - tint).max() < 8
    melting = shown[RATE + RATE // 6].mean(axis=(0, 1))
    assert melting[0] > 40
    assert melting[1] > 70


def test_a_film_out_of_drawn_pictures_looks_like_them_and_the_camera_moves():
    pictures = [drawn("the sea at dawn"), drawn("a city at night")]
    shown = frames(shot(small_montage(pictures, seconds=0.75)))
    for number, picture in enumerate(pictures):
        first, last = shown[number * 18 + 9], shown[number * 18 + 17]
        assert np.abs(first.mean(axis=(0, 1)) - frames(picture)[0].mean(axis=(0, 1))).max() < 20
        assert unlike(first, last) > 0.5


@pytest.mark.parametrize("size", [(60, 300), (640, 80), (1, 1)])
def test_pictures_of_another_shape_fill_the_frame(size: tuple[int, int]):
    picture = encode(np.full((size[1], size[0], 3), (90, 160, 60), np.uint8))
    (frame, *_) = frames(shot(small_montage([picture], seconds=0.1)))
    assert frame.shape == (100, 160, 3)
    assert np.abs(frame.reshape(-1, 3) - np.array((90.0, 160.0, 60.0))).max() < 8


def test_a_film_with_sound_has_aac_as_long_as_its_pictures_and_it_is_heard(tone: bytes):
    film = shot(small_montage([drawn("a fox"), drawn("a hen")], tone, seconds=1.0))
    with av.open(io.BytesIO(film), "r") as file:
        assert [stream.codec_context.name for stream in file.streams] == ["h264", "aac"]
        sound = np.concatenate([block.to_ndarray() for block in file.decode(audio=0)], axis=1)
    assert abs(sound.shape[1] / 44_100 - 2.0) < 0.06
    assert np.sqrt((sound**2).mean()) > 0.05
    assert np.abs(sound[0, -1024:]).max() < 0.1, "it fades out where it is cut"
    assert len(frames(film)) == 2 * RATE


def test_what_cannot_be_filmed_is_refused():
    with pytest.raises(ValueError, match="even"):
        clip("a fox", 1.0, width=161, height=100)
    with pytest.raises(ValueError, match="at least one frame"):
        montage([])
    coarse = io.BytesIO()
    with wave.open(coarse, "wb") as file:
        file.setparams((1, 1, 8000, 0, "NONE", ""))
        file.writeframes(b"\x80" * 800)
    with pytest.raises(ValueError, match="16 bits"):
        shot(small_montage([drawn("a fox")], coarse.getvalue()))
    with pytest.raises(av.FFmpegError):
        montage([b"not a picture"])


@pytest.mark.parametrize(("steps", "with_sound"), [(1, False), (1, True), (30, True)])
def test_a_film_stopped_in_the_middle_leaves_nothing_behind(tone: bytes, steps: int, with_sound: bool):
    shot(small_clip("a fox", 0.1))
    before = traces()
    film = small_montage([drawn("a fox")], tone if with_sound else None)
    shooting = film.shoot()
    for _ in range(steps):
        next(shooting)
    assert traces() > before, "a film in the making is seen"
    shooting.close()
    assert traces() == before
    with pytest.raises(Unfinished):
        film.mp4()
