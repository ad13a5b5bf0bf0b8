"""Frames of a slideshow: each picture is shown with a slow camera move and fades into the next."""

import io
from collections.abc import Sequence
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from callsheet.demo.media.png import Pixels
from callsheet.demo.media.scenery.canvas import Array

# Camera position and zoom at the start and at the end of a picture; 0 is left or top, 1 is right or bottom.
_CAMERA_MOVES = (
    ((0.5, 0.5, 1.00), (0.5, 0.4, 1.14)),
    ((0.0, 0.5, 1.12), (1.0, 0.5, 1.12)),
    ((0.5, 0.3, 1.16), (0.5, 0.6, 1.02)),
    ((1.0, 0.6, 1.12), (0.0, 0.4, 1.12)),
)
# Duration of a crossfade, as a share of the time of a picture.
_CROSSFADE = 0.35


class SlideshowFrames:
    """Frames that show pictures one after the other."""

    def __init__(self, pictures: Sequence[bytes], size: tuple[int, int], rate: int, seconds: float) -> None:
        self._pictures = [_decode(picture) for picture in pictures]
        self.size = size
        self._rate, self._seconds = rate, seconds

    def __len__(self) -> int:
        return round(len(self._pictures) * self._seconds * self._rate)

    def frame(self, number: int) -> Pixels:
        at = number / self._rate / self._seconds
        index = min(int(at), len(self._pictures) - 1)
        image = self._camera_view(index, at - index)
        crossfade = 1 - (at - index) / _CROSSFADE
        if index and crossfade > 0:
            before = self._camera_view(index - 1, at - index + 1)
            image += (before - image) * (crossfade * crossfade * (3 - 2 * crossfade))
        return (image + 0.5).astype(np.uint8)

    def _camera_view(self, index: int, part: float) -> Array:
        """Return one picture as the camera sees it. A part above 1 is the time of the crossfade into the next."""
        start, end = (np.array(place) for place in _CAMERA_MOVES[index % len(_CAMERA_MOVES)])
        across, down, zoom = start + (end - start) * part / (1 + _CROSSFADE)
        picture = self._pictures[index]
        height, width = picture.shape[:2]
        scale = min(width / self.size[0], height / self.size[1]) / zoom
        columns = _sample_positions(self.size[0], scale, width, across)
        rows = _sample_positions(self.size[1], scale, height, down)
        return _interpolate(_interpolate(picture, rows, 0), columns, 1)


def _sample_positions(count: int, scale: float, length: int, offset: float) -> NDArray[np.float64]:
    """Return the positions of the film's pixels along one side of a picture."""
    spare = length - count * scale
    return np.clip(spare * offset + (np.arange(count) + 0.5) * scale - 0.5, 0, length - 1)


def _interpolate(picture: NDArray[Any], positions: NDArray[np.float64], axis: int) -> Array:
    """Return rows or columns at fractional positions, by linear interpolation."""
    low = positions.astype(int)
    high = np.minimum(low + 1, picture.shape[axis] - 1)
    part = (positions - low).astype(np.float32).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
    result: Array = np.take(picture, low, axis).astype(np.float32)
    result += (np.take(picture, high, axis) - result) * part
    return result


def _decode(picture: bytes) -> Pixels:
    with av.open(io.BytesIO(picture), "r") as file:
        frame = next(file.decode(video=0))
        return np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
