"""Verification of the files that a task reports. Concurrent calls for the same attempt share one verification."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from callsheet.blobs import object_keys
from callsheet.blobs.base import BlobMismatchError, Blobs, verify_claim
from callsheet.core.model.commands import OutputFile
from callsheet.core.model.errors import BadInput
from callsheet.core.model.rows import Task


class Verification(NamedTuple):
    """A verification in progress: its files and its result."""

    files: tuple[OutputFile, ...]
    result: "Future[None]"


class FileVerifier:
    """Verifies output files, one verification per attempt at a time in this process.

    A second call with the same report gets the same result. A call with another report waits, and is verified then.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._lock = Lock()
        self._running: dict[tuple[str, int], Verification] = {}

    async def verify_files(self, task: Task, files: Sequence[OutputFile]) -> None:
        """Check that every file is stored with its reported size and digest."""
        reported = tuple(files)
        while (verification := self._start_or_join(task, reported)).files != reported:
            with suppress(Exception):
                await asyncio.wrap_future(verification.result)
        await asyncio.wrap_future(verification.result)

    def _start_or_join(self, task: Task, files: tuple[OutputFile, ...]) -> Verification:
        """Return the verification in progress for an attempt, or start one. It continues if its caller is canceled."""
        key_of_attempt = (task.id, task.attempts)
        with self._lock:
            verification = self._running.get(key_of_attempt)
            if verification is None:
                verification = Verification(files, Future())
                verification.result.set_running_or_notify_cancel()  # a waiting caller cannot cancel it
                asyncio.get_running_loop().run_in_executor(None, self._run, task, verification)
                self._running[key_of_attempt] = verification
        return verification

    def _run(self, task: Task, verification: Verification) -> None:
        failure: BaseException | None = None
        try:
            for file in verification.files:
                self._verify_file(task, file)
        except BaseException as error:  # noqa: BLE001 - every waiting caller gets it
            failure = error
        with self._lock:
            del self._running[task.id, task.attempts]
        if failure is None:
            verification.result.set_result(None)
        else:
            verification.result.set_exception(failure)

    def _verify_file(self, task: Task, file: OutputFile) -> None:
        key = object_keys.output_key(task.tenant, task.job_id, task.id, task.attempts, file.no)
        try:
            verify_claim(self._blobs, key, size=file.bytes, sha256=file.sha256)
        except FileNotFoundError:
            raise BadInput(
                "file_not_uploaded", f"File {file.no} was not uploaded: upload it, then complete the task."
            ) from None
        except BlobMismatchError as mismatch:
            raise BadInput(f"{mismatch.field}_mismatch", f"File {file.no}: {mismatch}") from None
