"""Decodes media files with FFmpeg and the standard library."""

import io
import struct
import wave
from collections.abc import Iterator

import av
import numpy as np
from numpy.typing import NDArray


def frames(file: bytes) -> list[NDArray[np.uint8]]:
    """Decode a picture or a video: every frame as rows of pixels."""
    with av.open(io.BytesIO(file), "r") as container:
        return [np.asarray(frame.to_ndarray(format="rgb24"), np.uint8) for frame in container.decode(video=0)]


def samples(wav: bytes) -> NDArray[np.float64]:
    with wave.open(io.BytesIO(wav)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768


def boxes(mp4: bytes) -> Iterator[str]:
    """Yield the names of the top-level boxes of an MP4, in order."""
    offset = 0
    while offset < len(mp4):
        size, kind = struct.unpack_from(">I4s", mp4, offset)
        yield kind.decode()
        offset += size
    assert offset == len(mp4)


def difference(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Return the mean difference between the pixels of two pictures of the same size, of 255."""
    return float(np.abs(one.astype(int) - other.astype(int)).mean())
