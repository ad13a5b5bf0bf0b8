"""What a handler has: its input, what came before it, and ways to say how far it is and to keep what it made."""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from callsheet.core.comfy import Rendered
from callsheet.core.commands import Made, Resumed
from callsheet.core.errors import LeaseLost
from callsheet.core.redact import clean
from callsheet.protocol import Earlier, Given, Submitted
from callsheet.worker.cache import Cache, digest_of
from callsheet.worker.errors import Dismissed, Lost, Retry, Unreachable
from callsheet.worker.hand import Hand
from callsheet.worker.link import Link

_MESSAGE_CHARS_MAX = 500
_LINE_CHARS_MAX = 2_000
_FULL = 100
_PICTURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
_ENDING = re.compile(r"\.[A-Za-z0-9]{1,10}\Z")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")


class Context:
    """One task, as its handler sees it. Each call may raise a `Stop`: let it pass. Calls may come from any thread."""

    def __init__(
        self, hand: Hand, link: Link, folder: Callable[[], Path], cache: Cache | None, news: Callable[[], None]
    ) -> None:
        self._hand = hand
        self._link = link
        self._make_folder = folder
        self._folder: Path | None = None
        self._cache = cache
        self._news = news
        self._lock, self._showing = threading.Lock(), threading.Lock()
        self._count = 0
        self._files: dict[int, Made] = {}
        self._fetching: dict[str, threading.Lock] = {}
        self._previews = 0
        work = hand.work
        self.kind = work.kind
        self.workflow = work.workflow
        self.stage = work.stage
        self.stage_no = work.stage_no
        self.task_no = work.task_no
        self.job_id = work.lease.job_id
        self.task_id = work.lease.task_id
        self.attempt = work.lease.attempt
        self.trace = work.trace
        self.comfyui: Rendered | None = work.comfyui
        """The ComfyUI graph of the stage with everything filled in but its files."""
        self.resumed: Resumed | None = work.resumed
        """What an earlier try said with `submitted`: look there before doing it again."""
        self.delivered = _FULL
        """How much of what was asked for is in the result, in percent; less is paid less."""

    @cached_property
    def input(self) -> Any:
        """The task's input, else the job's. `{"$file": id}` in it is a file: `download` takes it as it is."""
        return json.loads(bytes(self._hand.work.input))

    @property
    def canceled(self) -> bool:
        """Whether to stop; for a handler that has something to tidy up before its next call would raise."""
        return self._hand.stop is not None

    @property
    def files(self) -> tuple[Made, ...]:
        """What was uploaded so far."""
        return tuple(self._files[no] for no in sorted(self._files))

    @property
    def folder(self) -> Path:
        """A folder for the time of this task. It is removed with all that is in it, however the task ends."""
        with self._lock:
            self._folder = self._folder or self._make_folder()
            return self._folder

    # -- saying

    def progress(self, percent: float, message: str | None = None) -> None:
        """Say how far the work is. Never waits; what is said too often is told as the last of it."""
        self._hand.check()
        said = clean(message, _MESSAGE_CHARS_MAX) if message else None
        self._hand.say(min(max(int(percent), 0), _FULL), said)
        self._news()

    def log(self, text: str) -> None:
        """Write lines into the task's log. Never waits; all of them are told before the task ends."""
        self._hand.check()
        lines = [line[:_LINE_CHARS_MAX] for line in text.splitlines() if line.strip()]
        if lines:
            self._hand.note(lines)
            self._news()

    def preview(self, picture: bytes) -> None:
        """Show what there is so far, as a small PNG or JPEG. One that comes before the last was told is left out."""
        self._hand.check()
        media_type = next((kind for head, kind in _PICTURES.items() if picture.startswith(head)), None)
        if media_type is None:
            raise ValueError("A preview is a PNG or a JPEG.")
        with self._showing:
            if not self._hand.shown or not self._put_preview(picture, media_type):
                return
            self._previews += 1
            self._hand.show(self._previews)
        self._news()

    def submitted(self, provider: str, ref: str) -> None:
        """Write down that the work is at somebody else's machine, under this reference. Call it before it is."""
        told = Submitted(lease=self._hand.work.lease, provider=provider, ref=ref)
        self._hand.answered(lambda: self._link.submitted(told))

    # -- files

    def upload(self, name: str, body: bytes | Path, media_type: str = "application/octet-stream") -> Made:
        """Keep a file; it becomes the job's when the handler returns."""
        self._hand.check()
        size, sha256 = _measured(body)
        with self._lock:
            self._count += 1
            made = Made(self._count, name, media_type, size, sha256)
        self._hand.answered(lambda: self._link.put(self._hand.work, made, body, self._hand.check))
        self._files[made.no] = made
        return made

    def download(self, file: str | Mapping[str, str] | Given) -> Path:
        """Fetch a file and return where it lies: one of the input, by its id or as it stands there, or of `before()`.

        The bytes are checked. The file may be shared with other tasks of this machine: read it, copy it, but do not
        change it.
        """
        self._hand.check()
        given = file if isinstance(file, Given) else self._given(_id_of(file))
        path = self.folder / _safe_name(given)
        with self._lock:
            fetching = self._fetching.setdefault(given.id, threading.Lock())
        with fetching:
            if not path.exists():
                self._fetch(given, path)
        return path

    def before(self) -> list[Earlier]:
        """Return what the completed tasks of earlier stages made, in order."""
        return self._hand.answered(lambda: self._link.earlier(self._hand.work))

    # -- inside

    def _put_preview(self, picture: bytes, media_type: str) -> bool:
        """Try once: it is only looked at, and the next one may arrive."""
        try:
            self._link.put_preview(self._hand.work, picture, media_type)
        except Unreachable:
            return False
        except (LeaseLost, Dismissed):
            self._hand.end(Lost)
            raise Lost from None
        return True

    def _given(self, file_id: str) -> Given:
        work = self._hand.work
        found = next((given for given in work.files if given.id == file_id), None)
        return found or self._hand.answered(lambda: self._link.given(work, file_id))

    def _fetch(self, given: Given, path: Path) -> None:
        if self._cache is not None and self._cache.take(given.sha256, path):
            return
        part = path.with_name(f".{path.name}.part")
        self._hand.answered(lambda: self._link.get(self._hand.work, given, part, self._hand.check))
        if digest_of(part) != given.sha256:
            part.unlink()
            raise Retry(f"The file {given.name} is not what was stored.", code="file_damaged")
        if self._cache is not None:
            with suppress(OSError):  # a full disk, or no rights: the task has its file all the same
                self._cache.fill(given.sha256, part)
        part.rename(path)


def _measured(body: bytes | Path) -> tuple[int, str]:
    if isinstance(body, Path):
        return body.stat().st_size, digest_of(body)
    return len(body), hashlib.sha256(body).hexdigest()


def _id_of(file: str | Mapping[str, str]) -> str:
    found = file if isinstance(file, str) else file.get("$file")
    if not isinstance(found, str):
        raise TypeError('A file is named by its id, or as {"$file": id}.')
    return found


def _safe_name(given: Given) -> str:
    """Return a file's name on this machine: its id, and the ending of the name that somebody gave it."""
    if not _NAME.match(given.id):
        raise ValueError("a file's id has letters, digits, - and _ only")
    ending = _ENDING.search(given.name)
    return given.id + (ending[0].lower() if ending else "")
