"""Encode a film, frame by frame, as an MP4 that browsers play: an animated landscape, or a slideshow.

The file has H.264 and AAC, and its index precedes its frames. The same prompt always gives the same film.
"""

import io
import wave
from collections.abc import Generator, Sequence
from typing import Protocol

import av
import numpy as np
from av.container import OutputContainer

from callsheet.demo.media import png
from callsheet.demo.media.png import Pixels
from callsheet.demo.media.scenery.landscape import Landscape
from callsheet.demo.media.seeded_random import Unfinished
from callsheet.demo.media.slideshow_frames import SlideshowFrames

WIDTH, HEIGHT, RATE, SECONDS = 480, 300, 24, 3.0
_PERCENT_MAX = 100
_FADE_SECONDS = 0.4
_SOUND_RATE_MAX = 96_000
_LAYOUTS = {(2, 1): "mono", (2, 2): "stereo"}  # by bytes per sample and channels
# Bytes reserved for the index at the start of the file: a fixed part, and a part per frame and audio block.
_INDEX_BASE, _INDEX_EACH, _AUDIO_BLOCK = 4096, 40, 1024
# One thread and no mbtree, which is not deterministic, so that the same frames give the same file. The colour
# parameters declare the conversion that is used.
_H264 = {
    "preset": "veryfast",
    "crf": "19",
    "threads": "1",
    "x264-params": "colorprim=bt709:transfer=bt709:colormatrix=smpte170m:mbtree=0",
}


class FrameSource(Protocol):
    """The frames of a film."""

    size: tuple[int, int]

    def __len__(self) -> int: ...

    def frame(self, number: int) -> Pixels: ...


class Film:
    """A film that is encoded step by step. Iterate over `shoot` to the end, then call `mp4`."""

    def __init__(self, frames: FrameSource, rate: int = RATE, sound: bytes | None = None) -> None:
        if not len(frames) or any(side % 2 for side in frames.size):
            raise ValueError(
                "The film is empty or has an odd size. It needs at least one frame, and an even width and height."
            )
        self.frames = frames
        self._rate, self._sound = rate, sound
        self._pixels: Pixels | None = None
        self._mp4: bytes | None = None

    def shoot(self) -> Generator[int, None, None]:
        """Encode frame by frame. Yields the progress in percent. If it is abandoned, no file remains."""
        buffer, count = io.BytesIO(), len(self.frames)
        with av.open(buffer, "w", format="mp4", options={"moov_size": str(self._index_size())}) as file:
            video = file.add_stream("libx264", rate=self._rate, options=_H264)
            video.width, video.height = self.frames.size
            video.pix_fmt = "yuv420p"
            if self._sound is not None:
                _add_sound(file, self._sound, count / self._rate)
            for number in range(count):
                self._pixels = self.frames.frame(number)
                file.mux(video.encode(av.VideoFrame.from_ndarray(self._pixels, format="rgb24")))
                yield (_PERCENT_MAX - 1) * (number + 1) // count
            file.mux(video.encode(None))
        self._mp4 = buffer.getvalue()
        yield _PERCENT_MAX

    def preview(self) -> bytes:
        """Return a small PNG of the newest frame."""
        if self._pixels is None:
            raise Unfinished
        return png.preview(self._pixels)

    def mp4(self) -> bytes:
        """Return the MP4 file. Raises `Unfinished` before the film is complete."""
        if self._mp4 is None:
            raise Unfinished
        return self._mp4

    def _index_size(self) -> int:
        frames = len(self.frames)
        blocks = frames / self._rate * _SOUND_RATE_MAX / _AUDIO_BLOCK if self._sound is not None else 0
        return _INDEX_BASE + _INDEX_EACH * (frames + int(blocks))


class LandscapeFrames:
    """The frames of an animated landscape."""

    def __init__(self, prompt: str, size: tuple[int, int], rate: int, seconds: float) -> None:
        self.size = size
        self._landscape = Landscape(prompt, *size)
        self._rate, self._count = rate, round(seconds * rate)

    def __len__(self) -> int:
        return self._count

    def frame(self, number: int) -> Pixels:
        for _ in self._landscape.paint(number / self._rate):
            pass
        return self._landscape.pixels()


def clip(prompt: str, seconds: float = SECONDS, width: int = WIDTH, height: int = HEIGHT) -> Film:
    """Return a film of the landscape of a prompt."""
    return Film(LandscapeFrames(prompt, (width, height), RATE, seconds))


def montage(
    pictures: Sequence[bytes],
    sound: bytes | None = None,
    *,
    seconds: float = 1.5,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> Film:
    """Return a slideshow of pictures, `seconds` each. `sound` is a WAV file, cut to the length of the film."""
    return Film(SlideshowFrames(pictures, (width, height), RATE, seconds), sound=sound)


def _add_sound(file: OutputContainer, wav: bytes, seconds: float) -> None:
    with wave.open(io.BytesIO(wav)) as sound:
        rate, layout = sound.getframerate(), _LAYOUTS.get((sound.getsampwidth(), sound.getnchannels()))
        if layout is None:
            raise ValueError("The sound has an unsupported format. Use a WAV with 16 bits, mono or stereo.")
        samples = np.frombuffer(sound.readframes(round(seconds * rate)), "<i2").astype(np.float32)
    fade = min(len(samples), round(_FADE_SECONDS * rate))
    samples[len(samples) - fade :] *= np.linspace(1, 0, fade, dtype=np.float32)
    track = file.add_stream("aac", rate=rate, layout=layout)
    block = av.AudioFrame.from_ndarray(samples.astype(np.int16)[None], format="s16", layout=layout)
    block.sample_rate = rate
    file.mux(track.encode(block))
    file.mux(track.encode(None))
