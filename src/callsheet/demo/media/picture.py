"""Draw a landscape from a prompt, layer by layer, as a PNG. The same prompt always gives the same picture."""

from collections.abc import Generator

from callsheet.demo.media import png
from callsheet.demo.media.scenery.landscape import Landscape
from callsheet.demo.media.seeded_random import Unfinished

WIDTH, HEIGHT = 640, 400
_PERCENT_MAX = 100


class Picture:
    """A picture that is drawn step by step. Iterate over `draw` to the end, then call `png`."""

    def __init__(self, prompt: str, width: int = WIDTH, height: int = HEIGHT) -> None:
        self._landscape = Landscape(prompt, width, height)
        self._percent = 0

    def draw(self) -> Generator[int, None, None]:
        """Draw from the sky to the foreground. Yields the progress in percent."""
        for number, _ in enumerate(self._landscape.paint(), start=1):
            self._percent = _PERCENT_MAX * number // len(self._landscape)
            yield self._percent

    def preview(self) -> bytes:
        """Return a small PNG of the layers drawn so far."""
        return png.preview(self._landscape.pixels())

    def png(self) -> bytes:
        """Return the PNG file. Raises `Unfinished` before the drawing is complete."""
        if self._percent < _PERCENT_MAX:
            raise Unfinished
        return png.encode(self._landscape.pixels())
