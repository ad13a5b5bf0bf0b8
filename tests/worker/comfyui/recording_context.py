"""A task context that records what the handler does, and a thread that runs a handler."""

import threading
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from callsheet.core.model.comfyui_graph import FileSlot, RenderedGraph
from callsheet.core.model.commands import PreviousSubmission
from callsheet.worker import TaskStopped
from callsheet.worker.comfyui import ComfyHandler
from tests.support.wait import wait_until

SECONDS = 20.0


@dataclass
class RecordingContext:
    """One task, as the handler sees it."""

    comfyui: RenderedGraph | None
    files: dict[str, Path] = field(default_factory=dict)
    resumed: PreviousSubmission | None = None
    stop: type[TaskStopped] | None = None
    stop_at_submit: type[TaskStopped] | None = None
    stop_before_submit: type[TaskStopped] | None = None
    """Stop while the server is answering."""
    refs_before_stop: int = 0
    """How many references are recorded before that."""
    stop_at_upload: type[TaskStopped] | None = None
    progress_reports: list[tuple[float, str | None]] = field(default_factory=list)
    previews: list[bytes] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    uploads: list[tuple[str, str, bytes]] = field(default_factory=list)
    refs: list[tuple[str, str]] = field(default_factory=list)
    downloads: list[str] = field(default_factory=list)

    @cached_property
    def folder(self) -> Path:
        return Path(mkdtemp(prefix="task-"))

    @property
    def should_stop(self) -> bool:
        return self.stop is not None

    def _check(self) -> None:
        if self.stop is not None:
            raise self.stop

    def progress(self, percent: float, message: str | None = None) -> None:
        self._check()
        self.progress_reports.append((percent, message))

    def preview(self, picture: bytes) -> None:
        self._check()
        self.previews.append(picture)

    def log(self, line: str) -> None:
        self.lines.append(line)

    def download(self, file_id: str) -> Path:
        self._check()
        self.downloads.append(file_id)
        return self.files[file_id]

    def upload(self, name: str, body: bytes | Path, media_type: str = "application/octet-stream") -> None:
        self.stop = self.stop or self.stop_at_upload
        self._check()
        self.uploads.append((name, media_type, body if isinstance(body, bytes) else body.read_bytes()))

    def record_submission(self, provider: str, ref: str) -> None:
        if len(self.refs) >= self.refs_before_stop:
            self.stop = self.stop or self.stop_before_submit
        self._check()
        self.refs.append((provider, ref))
        self.stop = self.stop_at_submit

    @property
    def percents(self) -> list[float]:
        return [percent for percent, _ in self.progress_reports]

    @property
    def messages(self) -> list[str | None]:
        return [message for _, message in self.progress_reports]


def task(graph: Any, *slots: FileSlot, output_node: str | None = None, **more: Any) -> RecordingContext:
    return RecordingContext(RenderedGraph(graph, list(slots), output_node), **more)


class HandlerThread:
    """A handler that runs in a thread."""

    def __init__(self, handler: ComfyHandler, ctx: RecordingContext) -> None:
        self.ctx = ctx
        self.output: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(handler,), daemon=True)
        self._thread.start()

    def _run(self, handler: ComfyHandler) -> None:
        try:
            self.output = handler(self.ctx)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Any:
        """Wait for the end; return the output, or raise what the handler raised."""
        wait_until(lambda: self.has_ended, SECONDS)
        if self.error is not None:
            raise self.error
        return self.output
