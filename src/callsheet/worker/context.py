"""What a handler has: its input, what came before it, and ways to say how far it is and to keep what it made."""

import hashlib
import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

from callsheet.core.commands import Made
from callsheet.core.redact import clean
from callsheet.worker.errors import Retry
from callsheet.worker.hand import Hand
from callsheet.worker.link import Earlier, Kept, Link

_MESSAGE_CHARS_MAX = 500
_FULL = 100
_PNG = b"\x89PNG\r\n\x1a\n"


class Context:
    """One task, as its handler sees it. Each call may raise a `Stop`: let it pass."""

    def __init__(self, hand: Hand, link: Link, news: Callable[[], None]) -> None:
        self._hand = hand
        self._link = link
        self._news = news
        self._files: list[Made] = []
        self._previews = 0
        task = hand.task
        self.kind = task.kind
        self.workflow = task.workflow
        self.stage = task.stage
        self.stage_no = task.stage_no
        self.task_no = task.task_no
        self.job_id = task.lease.job_id
        self.task_id = task.lease.task_id
        self.attempt = task.lease.attempt
        self.delivered = _FULL
        """How much of what was asked for is in the result, in percent; less is paid less."""

    @cached_property
    def input(self) -> Any:
        """The task's input, else the job's."""
        return json.loads(self._hand.task.input)

    @property
    def canceled(self) -> bool:
        """Whether to stop; for a handler that has something to tidy up before its next call would raise."""
        return self._hand.stop is not None

    @property
    def files(self) -> tuple[Made, ...]:
        """What was saved so far."""
        return tuple(self._files)

    def progress(self, percent: float, message: str | None = None) -> None:
        """Say how far the work is. Never waits; what is said too often is told as the last of it."""
        self._hand.check()
        said = clean(message, _MESSAGE_CHARS_MAX) if message else None
        self._hand.say(min(max(int(percent), 0), _FULL), said)
        self._news()

    def preview(self, picture: bytes) -> None:
        """Show what there is so far, as a small PNG. One that comes before the last was told is left out."""
        self._hand.check()
        if not picture.startswith(_PNG):
            raise ValueError("A preview is a PNG.")
        if not self._hand.shown:
            return
        self._link.put_preview(self._hand.task, picture)
        self._previews += 1
        self._hand.show(self._previews)
        self._news()

    def save(self, name: str, body: bytes, media_type: str = "application/octet-stream") -> Made:
        """Keep a file; it becomes the job's when the handler returns."""
        self._hand.check()
        made = Made(len(self._files) + 1, name, media_type, len(body), hashlib.sha256(body).hexdigest())
        self._link.put(self._hand.task, made.no, body)
        self._files.append(made)
        return made

    def before(self) -> list[Earlier]:
        """Return what the completed tasks of earlier stages made, in order."""
        self._hand.check()
        return self._link.before(self._hand.task)

    def read(self, file: Kept) -> bytes:
        """Return the bytes of a file of an earlier stage, exactly as they were saved."""
        self._hand.check()
        body = self._link.read(self._hand.task, file)
        if hashlib.sha256(body).hexdigest() != file.sha256:
            raise Retry(f"The file {file.name} is not what was saved.", code="file_damaged")
        return body
