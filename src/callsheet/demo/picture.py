"""Drawing a picture from a prompt, row by row, as a PNG. The same prompt always gives the same picture."""

import colorsys
import hashlib
import math
import struct
import zlib
from collections.abc import Iterator

WIDTH, HEIGHT = 480, 300
Wave = tuple[float, float, float, float]


class Picture:
    """A picture in the making: iterate to draw it and hear how far it is, then take its bytes."""

    def __init__(self, prompt: str, width: int = WIDTH, height: int = HEIGHT) -> None:
        seed = hashlib.sha256(prompt.encode()).digest()
        part = [byte / 255 for byte in seed]
        self._size = (width, height)
        self._waves: list[Wave] = [
            (2 + 9 * part[n], 2 + 9 * part[n + 1], math.tau * part[n + 2], 0.4 + part[n + 3]) for n in (0, 4, 8, 12)
        ]
        self._hue, self._spread, self._sun = part[16], 0.12 + 0.3 * part[17], (part[18], 0.15 + 0.5 * part[19])
        self._rows: list[bytes] = []

    def draw(self) -> Iterator[int]:
        """Draw row by row; yields the percentage done."""
        width, height = self._size
        for y in range(height):
            self._rows.append(b"\0" + b"".join(self._pixel(x / width, y / height) for x in range(width)))
            yield 100 * (y + 1) // height

    def png(self) -> bytes:
        """Return the file."""
        width, height = self._size
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        body = zlib.compress(b"".join(self._rows), 9)
        return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")

    def _pixel(self, x: float, y: float) -> bytes:
        height = sum(weight * math.sin(a * x + b * y * y + phase) for a, b, phase, weight in self._waves)
        level = 0.5 + height / 5
        glow = math.exp(-14 * ((x - self._sun[0]) ** 2 + (y - self._sun[1]) ** 2))
        hue = (self._hue + self._spread * level) % 1
        red, green, blue = colorsys.hsv_to_rgb(hue, 0.75 - 0.5 * glow, min(0.2 + 0.7 * level + glow, 1.0))
        return bytes((_byte(red), _byte(green), _byte(blue)))


def _byte(part: float) -> int:
    return max(0, min(255, int(part * 255)))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
