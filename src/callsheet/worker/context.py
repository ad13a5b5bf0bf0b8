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

from callsheet.api.worker_protocol import InputFile, PreviousOutput, ProviderSubmission
from callsheet.core.model.commands import OutputFile, PreviousSubmission
from callsheet.core.model.errors import LeaseLost
from callsheet.core.model.graph_spec import RenderedGraph
from callsheet.core.policy.redaction import redact_error
from callsheet.worker.errors import InvalidTokenError, RetryableError, TaskLeaseLost, UnreachableError
from callsheet.worker.files.cache import Cache, digest_of
from callsheet.worker.link.base import Link
from callsheet.worker.runtime.active_task import ActiveTask

_MESSAGE_CHARS_MAX = 500
_LOG_LINE_CHARS_MAX = 2_000
_PERCENT_MAX = 100
_IMAGE_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
_EXTENSION = re.compile(r"\.[A-Za-z0-9]{1,10}\Z")
_FILE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")


class Context:
    """One task, as its handler sees it. Each call may raise a `Stop`: let it pass. Calls may come from any thread."""

    def __init__(
        self,
        task: ActiveTask,
        link: Link,
        make_folder: Callable[[], Path],
        cache: Cache | None,
        on_update: Callable[[], None],
    ) -> None:
        self._task = task
        self._link = link
        self._make_folder = make_folder
        self._folder: Path | None = None
        self._cache = cache
        self._on_update = on_update
        self._lock, self._preview_lock = threading.Lock(), threading.Lock()
        self._upload_no = 0
        self._uploaded: dict[int, OutputFile] = {}
        self._download_locks: dict[str, threading.Lock] = {}
        self._preview_no = 0
        work = task.work
        self.kind = work.kind
        self.workflow = work.workflow
        self.stage = work.stage
        self.stage_no = work.stage_no
        self.task_no = work.task_no
        self.job_id = work.lease.job_id
        self.task_id = work.lease.task_id
        self.attempt = work.lease.attempt
        self.trace = work.trace
        self.comfyui: RenderedGraph | None = work.comfyui
        """The ComfyUI graph of the stage with everything filled in but its files."""
        self.resumed: PreviousSubmission | None = work.resumed
        """What an earlier try said with `submitted`: look there before doing it again."""
        self.delivered = _PERCENT_MAX
        """How much of what was asked for is in the result, in percent; less is paid less."""

    @cached_property
    def input(self) -> Any:
        """The task's input, else the job's. `{"$file": id}` in it is a file: `download` takes it as it is."""
        return json.loads(bytes(self._task.work.input))

    @property
    def should_stop(self) -> bool:
        """Whether to stop; for a handler that has something to tidy up before its next call would raise."""
        return self._task.stop_reason is not None

    @property
    def files(self) -> tuple[OutputFile, ...]:
        """What was uploaded so far."""
        return tuple(self._uploaded[no] for no in sorted(self._uploaded))

    @property
    def folder(self) -> Path:
        """A folder for the time of this task. It is removed with all that is in it, however the task ends."""
        with self._lock:
            self._folder = self._folder or self._make_folder()
            return self._folder

    # -- saying

    def progress(self, percent: float, message: str | None = None) -> None:
        """Say how far the work is. Never waits; what is said too often is told as the last of it."""
        self._task.raise_if_stopped()
        text_message = redact_error(message, _MESSAGE_CHARS_MAX) if message else None
        self._task.set_progress(min(max(int(percent), 0), _PERCENT_MAX), text_message)
        self._on_update()

    def log(self, text: str) -> None:
        """Write lines into the task's log. Never waits; all of them are told before the task ends."""
        self._task.raise_if_stopped()
        lines = [line[:_LOG_LINE_CHARS_MAX] for line in text.splitlines() if line.strip()]
        if lines:
            self._task.append_log(lines)
            self._on_update()

    def preview(self, picture: bytes) -> None:
        """Show what there is so far, as a small PNG or JPEG. One that comes before the last was told is left out."""
        self._task.raise_if_stopped()
        media_type = next((kind for head, kind in _IMAGE_SIGNATURES.items() if picture.startswith(head)), None)
        if media_type is None:
            raise ValueError("A preview is a PNG or a JPEG.")
        with self._preview_lock:
            if not self._task.preview_acknowledged or not self._upload_preview(picture, media_type):
                return
            self._preview_no += 1
            self._task.set_preview(self._preview_no)
        self._on_update()

    def record_submission(self, provider: str, ref: str) -> None:
        """Write down that the work is at somebody else's machine, under this reference. Call it before it is."""
        report = ProviderSubmission(lease=self._task.work.lease, provider=provider, ref=ref)
        self._task.call_with_retry(lambda: self._link.record_submission(report))

    # -- files

    def upload(self, name: str, body: bytes | Path, media_type: str = "application/octet-stream") -> OutputFile:
        """Keep a file; it becomes the job's when the handler returns."""
        self._task.raise_if_stopped()
        size, sha256 = _size_and_digest(body)
        with self._lock:
            self._upload_no += 1
            output_file = OutputFile(self._upload_no, name, media_type, size, sha256)
        self._task.call_with_retry(
            lambda: self._link.upload(self._task.work, output_file, body, self._task.raise_if_stopped)
        )
        self._uploaded[output_file.no] = output_file
        return output_file

    def download(self, file: str | Mapping[str, str] | InputFile) -> Path:
        """Fetch a file and return where it lies: one of the input, by its id or as it stands there, or of `before()`.

        The bytes are checked. The file may be shared with other tasks of this machine: read it, copy it, but do not
        change it.
        """
        self._task.raise_if_stopped()
        input_file = file if isinstance(file, InputFile) else self._find_input_file(_file_id(file))
        path = self.folder / _local_name(input_file)
        with self._lock:
            download_lock = self._download_locks.setdefault(input_file.id, threading.Lock())
        with download_lock:
            if not path.exists():
                self._download(input_file, path)
        return path

    def previous_outputs(self) -> list[PreviousOutput]:
        """Return what the completed tasks of earlier stages made, in order."""
        return self._task.call_with_retry(lambda: self._link.previous_outputs(self._task.work))

    # -- inside

    def _upload_preview(self, picture: bytes, media_type: str) -> bool:
        """Try once: it is only looked at, and the next one may arrive."""
        try:
            self._link.upload_preview(self._task.work, picture, media_type)
        except UnreachableError:
            return False
        except (LeaseLost, InvalidTokenError):
            self._task.request_stop(TaskLeaseLost)
            raise TaskLeaseLost from None
        return True

    def _find_input_file(self, file_id: str) -> InputFile:
        work = self._task.work
        found = next((input_file for input_file in work.files if input_file.id == file_id), None)
        return found or self._task.call_with_retry(lambda: self._link.input_file(work, file_id))

    def _download(self, input_file: InputFile, path: Path) -> None:
        if self._cache is not None and self._cache.link_to(input_file.sha256, path):
            return
        partial = path.with_name(f".{path.name}.part")
        self._task.call_with_retry(
            lambda: self._link.download(self._task.work, input_file, partial, self._task.raise_if_stopped)
        )
        if digest_of(partial) != input_file.sha256:
            partial.unlink()
            raise RetryableError(f"The file {input_file.name} is not what was stored.", code="file_damaged")
        if self._cache is not None:
            with suppress(OSError):  # a full disk, or no rights: the task has its file all the same
                self._cache.add(input_file.sha256, partial)
        partial.rename(path)


def _size_and_digest(body: bytes | Path) -> tuple[int, str]:
    if isinstance(body, Path):
        return body.stat().st_size, digest_of(body)
    return len(body), hashlib.sha256(body).hexdigest()


def _file_id(file: str | Mapping[str, str]) -> str:
    found = file if isinstance(file, str) else file.get("$file")
    if not isinstance(found, str):
        raise TypeError('A file is named by its id, or as {"$file": id}.')
    return found


def _local_name(input_file: InputFile) -> str:
    """Return a file's name on this machine: its id, and the ending of the name that somebody gave it."""
    if not _FILE_ID.match(input_file.id):
        raise ValueError("a file's id has letters, digits, - and _ only")
    extension = _EXTENSION.search(input_file.name)
    return input_file.id + (extension[0].lower() if extension else "")
