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

from callsheet.demo import terminal_media

_FULL = 100
_BAR_WIDTH, _BAR_WIDTH_NARROW, _NARROW = 24, 16, 100
_PICTURE_WIDTH_MAX, _GAP = 34, 2
_STYLES = {"completed": "green", "failed": "red", "canceled": "yellow", "expired": "red"}


class Line:
    """One piece of work on the board."""

    def __init__(self, board: "Board", name: str, note: str, job_name: str) -> None:
        self._board = board
        self.name = name
        self.note = note
        self.job_name = job_name
        self.percent = 0
        self.status_text = "waits"
        self.status = ""
        self.blocked_by = ""

    def update(self, percent: int, status_text: str) -> None:
        if self.status:  # it has ended and was reported
            return
        self.percent, self.status_text, self.blocked_by = percent, status_text, ""
        self._board.refresh(self)

    def show_blocked(self, why: str) -> None:
        """Show what the job waits for, until it continues; without a terminal, once."""
        if self.status:
            return
        if not self.blocked_by:
            self._board.announce(self, why)
        self.blocked_by = why

    def set_note(self, note: str) -> None:
        """Say something about it that stays."""
        self.note = note
        self._board.announce(self, note)

    def end(self, status: str, why: str) -> None:
        if self.status:
            return
        self.percent = _FULL if status == "completed" else self.percent
        self.status, self.status_text, self.blocked_by = status, f"{status}: {why}" if why else status, ""
        self._board.refresh(self)

    def show(self, body: bytes, media_type: str) -> None:
        self._board.show(self.job_name, body, media_type)


class Board:
    """Lines and pictures; on anything but a terminal, plain sentences as things happen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: list[Line] = []
        self._pictures: dict[str, Text] = {}
        self._lock = threading.Lock()
        self.shows_pictures = (
            console.is_terminal and not console.no_color and console.color_system in {"truecolor", "256"}
        )
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=12, transient=False)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def add(self, name: str, note: str, job_name: str = "") -> Line:
        """Put one more piece of work on the board; `of` is the job that it belongs to."""
        line = Line(self, name, note, job_name or name)
        with self._lock:
            self._lines.append(line)
        return line

    def announce(self, line: Line, message: str) -> None:
        """Say something about a line where there is no terminal to show it."""
        if not self._console.is_terminal:
            self._console.print(f"{line.job_name}: {message}", markup=False)

    def refresh(self, line: Line) -> None:
        """Take notice; where there is no terminal, say what is new of a line."""
        if not self._console.is_terminal and line.status:
            name = line.job_name if line.name == line.job_name else f"{line.job_name}, {line.name.strip()}"
            self._console.print(f"{name}: {line.status_text}", markup=False)

    def show(self, job: str, body: bytes, media_type: str) -> None:
        """Show the newest picture of a job."""
        width = self._picture_width()
        if media_type.startswith("audio/"):
            drawn = terminal_media.sound(body, width, terminal_media.picture_rows(width))
        else:
            drawn = terminal_media.picture(body, width)
        with self._lock:
            self._pictures[job] = drawn

    # -- drawing

    def _picture_width(self) -> int:
        jobs = sum(line.name == line.job_name for line in self._lines)
        return max(min(_PICTURE_WIDTH_MAX, (self._console.width - 1) // max(jobs, 1) - _GAP), 8)

    def _render(self) -> RenderableType:
        with self._lock:
            parts: list[RenderableType] = [self._bars()]
            parts += [Text(f"{line.job_name}: {line.blocked_by}", "yellow") for line in self._lines if line.blocked_by]
            if self.shows_pictures:
                parts.append(Padding(self._gallery(), (1, 0, 0, 0)))
            # Ctrl-C is echoed where the cursor is: behind a full line it would push the board down by one.
            return Group(*parts, Text())

    def _bars(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        width = _BAR_WIDTH if self._console.width >= _NARROW else _BAR_WIDTH_NARROW
        for line in self._lines:
            head = line.name == line.job_name
            bar = ProgressBar(_FULL, line.percent, width, complete_style="cyan", finished_style="green")
            name = Text(line.name, "bold" if head else "dim")
            table.add_row(name, bar, f"{line.percent:3d} %", self._render_status(line))
        return table

    def _render_status(self, line: Line) -> Text:
        status_text = Text(line.status_text, _STYLES.get(line.status, ""), no_wrap=True, overflow="ellipsis")
        return (
            status_text if not line.note else Text.assemble(status_text, (f"  {line.note}", "dim italic"), no_wrap=True)
        )

    def _gallery(self) -> Table:
        """Lay the pictures side by side, with room for those that are not there yet."""
        width = self._picture_width()
        empty = "\n" * (terminal_media.picture_rows(width) - 1)
        grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
        heads = [line.name for line in self._lines if line.name == line.job_name]
        for _ in heads:
            grid.add_column(width=width, no_wrap=True)
        grid.add_row(*(self._pictures.get(name, Text(empty)) for name in heads))
        grid.add_row(*(Text(name, "dim") for name in heads))
        return grid
