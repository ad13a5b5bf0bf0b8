"""Draw pictures and sounds in a terminal. Each character shows two pixels, one above the other."""

import io
import wave
from collections.abc import Iterator

import av
import numpy as np
from rich.style import Style
from rich.text import Text

from callsheet.demo.media.png import Pixels

_UPPER_HALF_BLOCK = "▀"
_BARS = " ▁▂▃▄▅▆▇█"


def picture(body: bytes, columns: int) -> Text:
    """Return a picture, or the middle frame of a film, `columns` characters wide."""
    return _blocks(_scale(_pixels(body), columns))


def sound(body: bytes, columns: int, rows: int) -> Text:
    """Return the loudness of a WAV over time, as bars with a mirror image below."""
    with wave.open(io.BytesIO(body)) as file:
        samples = np.abs(np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32)) / 32768
    loudness = np.array([part.max(initial=0.0) for part in np.array_split(samples, columns)])
    half = max(rows // 2, 1)
    eighths = np.round(loudness / max(float(loudness.max()), 1e-9) * half * 8).astype(int)
    upper = ["".join(_BARS[min(max(e - 8 * level, 0), 8)] for e in eighths) for level in reversed(range(half))]
    text = Text(no_wrap=True)
    for line in upper:
        text.append(line + "\n", Style(color="cyan"))
    for level in range(half):  # bars from top to bottom: the complement of a bar, in reverse video
        for e in eighths:
            filled = min(max(e - 8 * level, 0), 8)
            text.append(_BARS[8 - filled], Style(color="cyan", reverse=True, dim=True))
        text.append("\n" if level < half - 1 else "")
    return text


def picture_rows(columns: int) -> int:
    """Return the number of lines of a picture with the usual aspect ratio."""
    return round(columns / 1.6) // 2


def _pixels(body: bytes) -> Pixels:
    with av.open(io.BytesIO(body), "r") as file:
        frames = list(file.decode(video=0))
        return np.asarray(frames[len(frames) // 2].to_ndarray(format="rgb24"), np.uint8)


def _scale(pixels: Pixels, columns: int) -> Pixels:
    """Scale down by averaging."""
    height, width, _ = pixels.shape
    rows = max(round(columns * height / width) // 2 * 2, 2)
    down = np.linspace(0, height, rows + 1).astype(int)
    across = np.linspace(0, width, columns + 1).astype(int)
    sums = np.add.reduceat(np.add.reduceat(pixels.astype(np.uint64), down[:-1], 0), across[:-1], 1)
    counts = np.diff(down)[:, None, None] * np.diff(across)[None, :, None]
    return np.asarray(sums // np.maximum(counts, 1), np.uint8)


def _blocks(pixels: Pixels) -> Text:
    text = Text(no_wrap=True)
    for line, (top, bottom) in enumerate(_pairs(pixels)):
        if line:
            text.append("\n")
        for above, below in zip(top.tolist(), bottom.tolist(), strict=True):
            text.append(_UPPER_HALF_BLOCK, Style(color=_hex(above), bgcolor=_hex(below)))
    return text


def _hex(colour: list[int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _pairs(pixels: Pixels) -> Iterator[tuple[Pixels, Pixels]]:
    for row in range(0, len(pixels), 2):
        yield pixels[row], pixels[row + 1]
