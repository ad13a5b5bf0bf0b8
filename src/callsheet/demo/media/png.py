"""Encode pixels as a PNG file, in full size or as a small preview."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
_PREVIEW_WIDTH = 160
_UP = 2
_LEVEL = 6


def encode(pixels: Pixels) -> bytes:
    """Return a PNG file. It uses the filter type Up, which compresses gradients well."""
    height, width, _ = pixels.shape
    rows = np.full((height, 1 + 3 * width), _UP, np.uint8)
    rows[:, 1:] = np.diff(pixels.reshape(height, -1), axis=0, prepend=np.uint8(0))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(rows.tobytes(), _LEVEL)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def preview(pixels: Pixels, width: int = _PREVIEW_WIDTH) -> bytes:
    """Return a small PNG. Each of its pixels is the mean of a square of pixels."""
    side = max(1, round(pixels.shape[1] / width))
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    squares = pixels[: rows * side, : columns * side].reshape(rows, side, columns, side, 3)
    return encode(squares.mean(axis=(1, 3), dtype=np.float32).astype(np.uint8))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
