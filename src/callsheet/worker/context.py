"""`Context`: the input of one task, its files, and the calls that report progress."""

import json
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from callsheet.api.worker_protocol import InputFile, PreviousOutput, ProviderSubmission
from callsheet.core.model.comfyui_graph import RenderedGraph
from callsheet.core.model.commands import OutputFile, PreviousSubmission
from callsheet.core.model.errors import Conflict, LeaseLost
from callsheet.core.policy.magic_bytes import HEAD_BYTES, JPEG, PNG, sniff
from callsheet.core.policy.redaction import redact_error
from callsheet.transport.sha256 import digest_file, measure_content
from callsheet.worker.errors import InvalidTokenError, RetryableError, TaskLeaseLost, UnreachableError
from callsheet.worker.files.cache import Cache
from callsheet.worker.link.base import Link
from callsheet.worker.runtime.active_task import ActiveTask

_MESSAGE_CHARS_MAX = 500
_LOG_LINE_CHARS_MAX = 2_000
_PERCENT_MAX = 100
_PREVIEW_TYPES = {PNG, JPEG}
_EXTENSION = re.compile(r"\.[A-Za-z0-9]{1,10}\Z")
_FILE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")


class Context:
    """The task that a handler works on.

    Any call may raise a `TaskStopped`: do not catch it. All calls are thread-safe.

    Attributes: `kind`, `workflow`, `stage`, `stage_no`, `task_no`, `job_id`, `task_id`, `attempt` (1 for the first
    attempt), `trace` (the W3C trace context of the job, if it has one).
    """

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
        """The ComfyUI graph of the stage with its values, except files; None if the stage has no graph."""
        self.resumed: PreviousSubmission | None = work.resumed
        """The submission that an earlier attempt recorded. Look it up at the provider before you submit again."""
        self.delivered = _PERCENT_MAX
        """The share of the requested work that the result contains, in percent. Set it below 100 to charge less."""

    @cached_property
    def input(self) -> Any:
        """The input of the task, or of the job if the task has none. Pass `{"$file": id}` values to `download`."""
        return json.loads(bytes(self._task.work.input))

    @property
    def should_stop(self) -> bool:
        """Whether the next call would raise a `TaskStopped`. Check it if you must clean up first."""
        return self._task.stop_reason is not None

    @property
    def files(self) -> tuple[OutputFile, ...]:
        """The files uploaded so far."""
        return tuple(self._uploaded[no] for no in sorted(self._uploaded))

    @property
    def folder(self) -> Path:
        """A temporary folder for this task. It is deleted when the task ends."""
        with self._lock:
            self._folder = self._folder or self._make_folder()
            return self._folder

    # -- reports

    def progress(self, percent: float, message: str | None = None) -> None:
        """Report progress, 0 to 100. Non-blocking. Rapid updates are coalesced to the latest."""
        self._task.raise_if_stopped()
        redacted_message = redact_error(message, _MESSAGE_CHARS_MAX) if message else None
        self._task.set_progress(min(max(int(percent), 0), _PERCENT_MAX), redacted_message)
        self._on_update()

    def log(self, text: str) -> None:
        """Append lines to the log of the task. Non-blocking. All lines are sent before the task ends."""
        self._task.raise_if_stopped()
        lines = [line[:_LOG_LINE_CHARS_MAX] for line in text.splitlines() if line.strip()]
        if lines:
            self._task.append_log(lines)
            self._on_update()

    def preview(self, picture: bytes) -> None:
        """Upload a preview, a small PNG or JPEG. It is skipped if the server has not acknowledged the previous one."""
        self._task.raise_if_stopped()
        media_type = sniff(picture[:HEAD_BYTES])
        if media_type not in _PREVIEW_TYPES:
            raise ValueError(f"The preview is {media_type or 'of an unknown type'}; it must be a PNG or a JPEG.")
        with self._preview_lock:
            if not self._task.preview_acknowledged or not self._upload_preview(picture, media_type):
                return
            self._preview_no += 1
            self._task.set_preview(self._preview_no)
        self._on_update()

    def record_submission(self, provider: str, ref: str) -> None:
        """Record the provider's job id before you submit.

        If this attempt is interrupted, or raises `RetryableError(resume=True)`, the next one finds the record in
        `resumed` and can collect the result instead of paying again.
        """
        report = ProviderSubmission(lease=self._task.work.lease, provider=provider, ref=ref)
        self._task.call_with_retry(lambda: self._link.record_submission(report))

    # -- files

    def upload(self, name: str, body: bytes | Path, media_type: str = "application/octet-stream") -> OutputFile:
        """Upload an output file. It becomes an output of the job when the handler returns."""
        self._task.raise_if_stopped()
        size, sha256 = measure_content(body)
        with self._lock:
            self._upload_no += 1
            output_file = OutputFile(self._upload_no, name, media_type, size, sha256)
        self._task.call_with_retry(
            lambda: self._link.upload(self._task.work, output_file, body, self._task.raise_if_stopped)
        )
        self._uploaded[output_file.no] = output_file
        return output_file

    def download(self, file: str | Mapping[str, str] | InputFile) -> Path:
        """Download a file of the input or of `previous_outputs()` and return its path.

        `file` is a file id, a `{"$file": id}` value of the input, or an `InputFile`. The digest is verified. The file
        may be shared with other tasks on this machine: do not modify it.
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
        """Return the outputs of the completed tasks of earlier stages, in order."""
        return self._task.call_with_retry(lambda: self._link.previous_outputs(self._task.work))

    # -- helpers

    def _upload_preview(self, picture: bytes, media_type: str) -> bool:
        """Upload once, without retries: the next preview replaces it anyway."""
        try:
            self._link.upload_preview(self._task.work, picture, media_type)
        except (UnreachableError, Conflict):  # a preview is optional: the storage quota may be used up
            return False
        except InvalidTokenError as error:
            self._task.renew_token(error)
            return False
        except LeaseLost:
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
        if digest_file(partial) != input_file.sha256:
            partial.unlink()
            raise RetryableError(
                f"The download of {input_file.name} is damaged: its SHA-256 differs from the stored one.",
                code="file_damaged",
            )
        if self._cache is not None:
            with suppress(OSError):  # the disk is full or not writable; the task has its file anyway
                self._cache.add(input_file.sha256, partial)
        partial.rename(path)


def _file_id(file: str | Mapping[str, str]) -> str:
    file_id = file if isinstance(file, str) else file.get("$file")
    if not isinstance(file_id, str):
        raise TypeError(f'{file!r} is not a file: pass a file id or {{"$file": id}}.')
    return file_id


def _local_name(input_file: InputFile) -> str:
    """Return the local file name: the file id with the extension of the original name."""
    if not _FILE_ID.match(input_file.id):
        raise ValueError(f"{input_file.id!r} is not a file id: only letters, digits, - and _ are allowed.")
    extension = _EXTENSION.search(input_file.name)
    return input_file.id + (extension[0].lower() if extension else "")
