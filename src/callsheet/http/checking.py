"""Whether the files that a task claims are there: looked at by one at a time, however many ask."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from callsheet.blobs import keys
from callsheet.blobs.base import Blobs, NotAsClaimed, check_claim
from callsheet.core.commands import Made
from callsheet.core.rows import Task
from callsheet.http.problem import Problem


class Look(NamedTuple):
    """A look under way: at which files, and what comes of it."""

    files: tuple[Made, ...]
    answer: "Future[None]"


class Checks:
    """Looks at what tasks made, one look per try of a task at a time in this process.

    Whoever comes with the same report meanwhile gets the same answer; another report waits, and is looked at then.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._lock = Lock()
        self._looks: dict[tuple[str, int], Look] = {}

    async def check(self, task: Task, files: Sequence[Made]) -> None:
        """Make sure that every file is there as it is claimed to be."""
        wanted = tuple(files)
        while (look := self._begun(task, wanted)).files != wanted:
            with suppress(Exception):
                await asyncio.wrap_future(look.answer)
        await asyncio.wrap_future(look.answer)

    def _begun(self, task: Task, files: tuple[Made, ...]) -> Look:
        """Return the look at a task that is under way, or begin one; it goes on if whoever began it goes away."""
        place = (task.id, task.attempts)
        with self._lock:
            look = self._looks.get(place)
            if look is None:
                look = Look(files, Future())
                look.answer.set_running_or_notify_cancel()  # nobody who waits can cancel it
                asyncio.get_running_loop().run_in_executor(None, self._look, task, look)
                self._looks[place] = look
        return look

    def _look(self, task: Task, look: Look) -> None:
        fault: BaseException | None = None
        try:
            for made in look.files:
                self._check(task, made)
        except BaseException as error:  # noqa: BLE001 - it is for everybody who waits
            fault = error
        with self._lock:
            del self._looks[task.id, task.attempts]
        if fault is None:
            look.answer.set_result(None)
        else:
            look.answer.set_exception(fault)

    def _check(self, task: Task, made: Made) -> None:
        key = keys.made(task.tenant, task.job_id, task.id, task.attempts, made.no)
        try:
            check_claim(self._blobs, key, size=made.bytes, sha256=made.sha256)
        except FileNotFoundError:
            raise Problem(422, "file_not_put", f"File {made.no} was not put: put it, then complete.") from None
        except NotAsClaimed as lie:
            raise Problem(422, f"{lie.what}_mismatch", f"File {made.no}: {lie}") from None
