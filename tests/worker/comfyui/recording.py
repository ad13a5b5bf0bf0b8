"""A context that writes down what the handler does, and a way to run one beside the test."""

import threading
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from callsheet.core.comfy import Rendered, Slot
from callsheet.core.commands import Resumed
from callsheet.worker import Stop
from callsheet.worker.comfyui import ComfyHandler
from tests.support.waiting import wait_until

SECONDS = 20.0


@dataclass
class Recorded:
    """One task, as the handler sees it."""

    comfyui: Rendered | None
    files: dict[str, Path] = field(default_factory=dict)
    resumed: Resumed | None = None
    stop: type[Stop] | None = None
    stop_at_submit: type[Stop] | None = None
    stop_before_submit: type[Stop] | None = None
    """The wish to stop comes while the answer of the server is under way."""
    refs_before_stop: int = 0
    """How many references are written down before that."""
    stop_at_upload: type[Stop] | None = None
    said: list[tuple[float, str | None]] = field(default_factory=list)
    previews: list[bytes] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    kept: list[tuple[str, str, bytes]] = field(default_factory=list)
    refs: list[tuple[str, str]] = field(default_factory=list)
    downloads: list[str] = field(default_factory=list)

    @cached_property
    def folder(self) -> Path:
        return Path(mkdtemp(prefix="task-"))

    @property
    def canceled(self) -> bool:
        return self.stop is not None

    def _check(self) -> None:
        if self.stop is not None:
            raise self.stop

    def progress(self, percent: float, message: str | None = None) -> None:
        self._check()
        self.said.append((percent, message))

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
        self.kept.append((name, media_type, body if isinstance(body, bytes) else body.read_bytes()))

    def submitted(self, provider: str, ref: str) -> None:
        if len(self.refs) >= self.refs_before_stop:
            self.stop = self.stop or self.stop_before_submit
        self._check()
        self.refs.append((provider, ref))
        self.stop = self.stop_at_submit

    @property
    def percents(self) -> list[float]:
        return [percent for percent, _ in self.said]

    @property
    def messages(self) -> list[str | None]:
        return [message for _, message in self.said]


def task(graph: Any, *slots: Slot, output_node: str | None = None, **more: Any) -> Recorded:
    return Recorded(Rendered(graph, list(slots), output_node), **more)


class Beside:
    """A handler at work in a thread."""

    def __init__(self, handler: ComfyHandler, ctx: Recorded) -> None:
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
    def over(self) -> bool:
        return not self._thread.is_alive()

    def ended(self) -> Any:
        """Wait for the end; return the output, or raise what the handler raised."""
        wait_until(lambda: self.over, SECONDS)
        if self.error is not None:
            raise self.error
        return self.output
