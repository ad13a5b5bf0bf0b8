"""The progress board of the demo: a progress bar per job and task, and the newest picture of each job."""

import threading
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from callsheet.core.model.terminal_text import sanitize
from callsheet.demo import terminal_media

_FULL = 100
_BAR_WIDTH, _BAR_WIDTH_NARROW, _NARROW = 24, 16, 100
_PICTURE_WIDTH_MAX, _GAP = 34, 2
_STYLES = {"completed": "green", "failed": "red", "canceled": "yellow", "expired": "red"}


class Line:
    """The line of a job or a task on the board."""

    def __init__(self, board: "Board", name: str, note: str, job_name: str) -> None:
        self._board = board
        self.name = sanitize(name)
        self.note = sanitize(note)
        self.job_name = sanitize(job_name)
        self.percent = 0
        self.status_text = "waiting"
        self.status = ""
        self.blocked_by = ""

    def update(self, percent: int, status_text: str) -> None:
        if self.status:  # it has ended and was reported
            return
        self.percent, self.status_text, self.blocked_by = percent, sanitize(status_text), ""
        self._board.refresh(self)

    def show_blocked(self, reason: str) -> None:
        """Show what blocks the job, until it continues. Without a terminal, print it once."""
        if self.status:
            return
        reason = sanitize(reason)
        if not self.blocked_by:
            self._board.announce(self, reason)
        self.blocked_by = reason

    def set_note(self, note: str) -> None:
        """Set a note that stays on the line."""
        self.note = sanitize(note)
        self._board.announce(self, self.note)

    def end(self, status: str, reason: str) -> None:
        if self.status:
            return
        self.percent = _FULL if status == "completed" else self.percent
        text = f"{status}: {reason}" if reason else status
        self.status, self.status_text, self.blocked_by = status, sanitize(text), ""
        self._board.refresh(self)

    def show(self, body: bytes, media_type: str) -> None:
        self._board.show(self.job_name, body, media_type)


class Board:
    """Lines and pictures on a terminal; elsewhere it prints a sentence per change."""

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
        """Add a line to the board. For a task, `job_name` is the job that it belongs to."""
        line = Line(self, name, note, job_name or name)
        with self._lock:
            self._lines.append(line)
        return line

    def announce(self, line: Line, message: str) -> None:
        """Print a message about a line, unless a terminal shows the line."""
        if not self._console.is_terminal:
            self._console.print(f"{line.job_name}: {message}", markup=False)

    def refresh(self, line: Line) -> None:
        """Print the status of a line that has ended, unless a terminal shows the line."""
        if not self._console.is_terminal and line.status:
            name = line.job_name if line.name == line.job_name else f"{line.job_name}, {line.name.strip()}"
            self._console.print(f"{name}: {line.status_text}", markup=False)

    def show(self, job: str, body: bytes, media_type: str) -> None:
        """Show the newest picture of a job."""
        width = self._picture_width()
        if media_type.startswith("audio/"):
            picture = terminal_media.sound(body, width, terminal_media.picture_rows(width))
        else:
            picture = terminal_media.picture(body, width)
        with self._lock:
            self._pictures[job] = picture

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
            # End with an empty line: the terminal echoes ^C there. After a full line that would move the board down.
            return Group(*parts, Text())

    def _bars(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        width = _BAR_WIDTH if self._console.width >= _NARROW else _BAR_WIDTH_NARROW
        for line in self._lines:
            is_job = line.name == line.job_name
            bar = ProgressBar(_FULL, line.percent, width, complete_style="cyan", finished_style="green")
            name = Text(line.name, "bold" if is_job else "dim")
            table.add_row(name, bar, f"{line.percent:3d} %", self._render_status(line))
        return table

    def _render_status(self, line: Line) -> Text:
        status_text = Text(line.status_text, _STYLES.get(line.status, ""), no_wrap=True, overflow="ellipsis")
        return (
            status_text if not line.note else Text.assemble(status_text, (f"  {line.note}", "dim italic"), no_wrap=True)
        )

    def _gallery(self) -> Table:
        """Return the pictures side by side, with empty space for missing ones."""
        width = self._picture_width()
        empty = "\n" * (terminal_media.picture_rows(width) - 1)
        grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
        job_names = [line.name for line in self._lines if line.name == line.job_name]
        for _ in job_names:
            grid.add_column(width=width, no_wrap=True)
        grid.add_row(*(self._pictures.get(name, Text(empty)) for name in job_names))
        grid.add_row(*(Text(name, "dim") for name in job_names))
        return grid
