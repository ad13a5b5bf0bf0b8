"""The board in the terminal: a bar for each piece of work, and the newest picture of each job below."""

import threading
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from callsheet.demo import screen

_FULL = 100
_BAR_WIDTH, _BAR_WIDTH_NARROW, _NARROW = 24, 16, 100
_PICTURE_WIDTH_MAX, _GAP = 34, 2
_STYLES = {"completed": "green", "failed": "red", "canceled": "yellow", "expired": "red"}


class Line:
    """One piece of work on the board."""

    def __init__(self, board: "Board", name: str, note: str, of: str) -> None:
        self._board = board
        self.name = name
        self.note = note
        self.of = of
        self.percent = 0
        self.word = "waits"
        self.status = ""
        self.held = ""

    def update(self, percent: int, word: str) -> None:
        if self.status:  # it has ended, and was told so
            return
        self.percent, self.word, self.held = percent, word, ""
        self._board.changed(self)

    def hold(self, why: str) -> None:
        """Say what it waits for, until it goes on; where there is no terminal, once."""
        if self.status:
            return
        if not self.held:
            self._board.told(self, why)
        self.held = why

    def remark(self, note: str) -> None:
        """Say something about it that stays."""
        self.note = note
        self._board.told(self, note)

    def end(self, status: str, why: str) -> None:
        if self.status:
            return
        self.percent = _FULL if status == "completed" else self.percent
        self.status, self.word, self.held = status, f"{status}: {why}" if why else status, ""
        self._board.changed(self)

    def show(self, body: bytes, media_type: str) -> None:
        self._board.show(self.of, body, media_type)


class Board:
    """Lines and pictures; on anything but a terminal, plain sentences as things happen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: list[Line] = []
        self._pictures: dict[str, Text] = {}
        self._lock = threading.Lock()
        self.draws = console.is_terminal and not console.no_color and console.color_system in {"truecolor", "256"}
        self._live = Live(console=console, get_renderable=self._rendered, refresh_per_second=12, transient=False)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def add(self, name: str, note: str, of: str = "") -> Line:
        """Put one more piece of work on the board; `of` is the job that it belongs to."""
        line = Line(self, name, note, of or name)
        with self._lock:
            self._lines.append(line)
        return line

    def told(self, line: Line, said: str) -> None:
        """Say something about a line where there is no terminal to show it."""
        if not self._console.is_terminal:
            self._console.print(f"{line.of}: {said}", markup=False)

    def changed(self, line: Line) -> None:
        """Take notice; where there is no terminal, say what is new of a line."""
        if not self._console.is_terminal and line.status:
            name = line.of if line.name == line.of else f"{line.of}, {line.name.strip()}"
            self._console.print(f"{name}: {line.word}", markup=False)

    def show(self, job: str, body: bytes, media_type: str) -> None:
        """Show the newest picture of a job."""
        width = self._width()
        if media_type.startswith("audio/"):
            drawn = screen.sound(body, width, screen.height_of(width))
        else:
            drawn = screen.picture(body, width)
        with self._lock:
            self._pictures[job] = drawn

    # -- drawing

    def _width(self) -> int:
        jobs = sum(line.name == line.of for line in self._lines)
        return max(min(_PICTURE_WIDTH_MAX, (self._console.width - 1) // max(jobs, 1) - _GAP), 8)

    def _rendered(self) -> RenderableType:
        with self._lock:
            parts: list[RenderableType] = [self._bars()]
            parts += [Text(f"{line.of}: {line.held}", "yellow") for line in self._lines if line.held]
            if self.draws:
                parts.append(Padding(self._gallery(), (1, 0, 0, 0)))
            # Ctrl-C is echoed where the cursor is: behind a full line it would push the board down by one.
            return Group(*parts, Text())

    def _bars(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        width = _BAR_WIDTH if self._console.width >= _NARROW else _BAR_WIDTH_NARROW
        for line in self._lines:
            head = line.name == line.of
            bar = ProgressBar(_FULL, line.percent, width, complete_style="cyan", finished_style="green")
            name = Text(line.name, "bold" if head else "dim")
            table.add_row(name, bar, f"{line.percent:3d} %", self._word(line))
        return table

    def _word(self, line: Line) -> Text:
        word = Text(line.word, _STYLES.get(line.status, ""), no_wrap=True, overflow="ellipsis")
        return word if not line.note else Text.assemble(word, (f"  {line.note}", "dim italic"), no_wrap=True)

    def _gallery(self) -> Table:
        """Lay the pictures side by side, with room for those that are not there yet."""
        width = self._width()
        empty = "\n" * (screen.height_of(width) - 1)
        grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
        heads = [line.name for line in self._lines if line.name == line.of]
        for _ in heads:
            grid.add_column(width=width, no_wrap=True)
        grid.add_row(*(self._pictures.get(name, Text(empty)) for name in heads))
        grid.add_row(*(Text(name, "dim") for name in heads))
        return grid
