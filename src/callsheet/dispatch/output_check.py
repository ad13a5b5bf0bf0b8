"""Whether the files that a task claims are there: looked at by one at a time, however many ask."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from callsheet.blobs import object_keys
from callsheet.blobs.base import BlobMismatchError, Blobs, verify_claim
from callsheet.core.model.commands import OutputFile
from callsheet.core.model.rows import Task
from callsheet.http.server.problems import Problem


class Verification(NamedTuple):
    """A look under way: at which files, and what comes of it."""

    files: tuple[OutputFile, ...]
    answer: "Future[None]"


class FileVerifier:
    """Looks at what tasks made, one look per try of a task at a time in this process.

    Whoever comes with the same report meanwhile gets the same answer; another report waits, and is looked at then.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._lock = Lock()
        self._running: dict[tuple[str, int], Verification] = {}

    async def verify_files(self, task: Task, files: Sequence[OutputFile]) -> None:
        """Make sure that every file is there as it is claimed to be."""
        wanted = tuple(files)
        while (verification := self._start_or_join(task, wanted)).files != wanted:
            with suppress(Exception):
                await asyncio.wrap_future(verification.answer)
        await asyncio.wrap_future(verification.answer)

    def _start_or_join(self, task: Task, files: tuple[OutputFile, ...]) -> Verification:
        """Return the look at a task that is under way, or begin one; it goes on if whoever began it goes away."""
        key_of_attempt = (task.id, task.attempts)
        with self._lock:
            verification = self._running.get(key_of_attempt)
            if verification is None:
                verification = Verification(files, Future())
                verification.answer.set_running_or_notify_cancel()  # nobody who waits can cancel it
                asyncio.get_running_loop().run_in_executor(None, self._run, task, verification)
                self._running[key_of_attempt] = verification
        return verification

    def _run(self, task: Task, verification: Verification) -> None:
        failure: BaseException | None = None
        try:
            for made in verification.files:
                self._verify_file(task, made)
        except BaseException as error:  # noqa: BLE001 - it is for everybody who waits
            failure = error
        with self._lock:
            del self._running[task.id, task.attempts]
        if failure is None:
            verification.answer.set_result(None)
        else:
            verification.answer.set_exception(failure)

    def _verify_file(self, task: Task, made: OutputFile) -> None:
        key = object_keys.output_key(task.tenant, task.job_id, task.id, task.attempts, made.no)
        try:
            verify_claim(self._blobs, key, size=made.bytes, sha256=made.sha256)
        except FileNotFoundError:
            raise Problem(422, "file_not_uploaded", f"File {made.no} was not put: put it, then complete.") from None
        except BlobMismatchError as mismatch:
            raise Problem(422, f"{mismatch.field}_mismatch", f"File {made.no}: {mismatch}") from None
