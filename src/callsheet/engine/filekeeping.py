"""The loops that keep storage tidy: files whose time is over, and objects that nobody needs.

Rows go first, bytes after the commit. Whatever is cut in between leaves an object without a row, never a row without
its object; the collector of orphans finds it.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from callsheet.blobs import keys
from callsheet.blobs.base import Blobs, Listed
from callsheet.blobs.keys import Output, Upload
from callsheet.core.clock import SECOND
from callsheet.core.commands import DropFiles
from callsheet.core.files import Dropped
from callsheet.core.orphans import Age, Try, fate_of_output, fate_of_upload
from callsheet.core.rows import File
from callsheet.engine.loops import PAGE, Executes, due
from callsheet.engine.reading import Reading
from callsheet.store.verify import SHOWN_MAX, Violation

BY = "retention"
"""Who drops files, in the audit log."""
_LAST_ID = "~"


class Keeper:
    """Drops files that were kept long enough, and uploads whose bytes never came."""

    def __init__(self, engine: Executes, blobs: Blobs, page: int = PAGE) -> None:
        self._engine = engine
        self._blobs = blobs
        self._page = page

    def run_once(self, now: int) -> int:
        dropped = 0
        faults: list[Exception] = []
        for rows in due(self._engine.read, "due_files", now, self._page):
            done: Dropped = self._engine.execute(DropFiles(file_ids=tuple(row[1] for row in rows), by=BY))
            dropped += len(done.files)
            try:
                self._blobs.delete([keys.of(file) for file in done.files])
            except Exception as error:  # noqa: BLE001 - their rows are gone: orphans now, and the next page is due
                faults.append(error)
        if faults:
            raise faults[0]
        return dropped


class Tally(Struct):
    """What was found in the storage."""

    objects: int = 0
    needed: int = 0
    young: int = 0
    """Not needed, and younger than the grace."""
    unknown: int = 0
    """Of no row, and older than the database: perhaps of another."""
    foreign: int = 0
    """Under keys that we do not make."""
    orphans: int = 0
    bytes: int = 0
    """Of the orphans."""

    def add(self, other: "Tally") -> None:
        for name, count in asdict(other).items():
            setattr(self, name, getattr(self, name) + count)


class Looked(NamedTuple):
    """One page of the storage: what may go, what was found, and where to go on; None at the end."""

    orphans: list[Listed]
    tally: Tally
    after: str | None


class Orphans:
    """Removes objects that no row needs, page by page; a run that does nothing is the end of a pass."""

    def __init__(self, read: Reading, blobs: Blobs, grace_seconds: int, page: int = PAGE) -> None:
        self._read = read
        self._blobs = blobs
        self._grace = grace_seconds * SECOND
        self._page = page
        self._after = ""

    def run_once(self, now: int) -> int:
        if not self._after:
            self._blobs.sweep(self._grace / SECOND)
        looked = self.look(now, self._after)
        if looked.orphans:
            self._blobs.delete([one.key for one in looked.orphans])
        self._after = looked.after or ""
        return looked.tally.objects if looked.after else 0

    def look(self, now: int, after: str = "") -> Looked:
        """Look at one page without removing anything."""
        page = self._blobs.list("", after, self._page)
        born_at = self._read.fetch("born")[0][0]
        tally, orphans = Tally(), []
        for one, fate in self._fates(page, now, now if born_at is None else born_at):
            tally.objects += 1
            if fate == "orphan":
                orphans.append(one)
                tally.orphans, tally.bytes = tally.orphans + 1, tally.bytes + one.size
            else:
                setattr(tally, fate, getattr(tally, fate) + 1)
        return Looked(orphans, tally, page[-1].key if len(page) == self._page else None)

    def _fates(self, page: Sequence[Listed], now: int, born_at: int) -> Iterator[tuple[Listed, str]]:
        found = [(one, keys.parse(one.key)) for one in page]
        uploads = {key.file_id for _, key in found if isinstance(key, Upload)}
        files = {row[0]: File(*row) for row in self._read.fetch("files_read", ids=sorted(uploads))} if uploads else {}
        tries = self._tries({(key.task_id, key.attempt) for _, key in found if isinstance(key, Output)})
        for one, key in found:
            age = Age(one.modified_at, now, born_at, self._grace)
            if isinstance(key, Upload):
                yield one, fate_of_upload(key.tenant, files.get(key.file_id), age)
            elif isinstance(key, Output):
                made_by = tries.get((key.task_id, key.attempt))
                yield one, fate_of_output(key.tenant, key.job_id, key.no, made_by, age)
            else:
                yield one, "foreign"

    def _tries(self, wanted: set[tuple[str, int]]) -> dict[tuple[str, int], Try]:
        """Read tries with their files in one statement: apart, a result could come in between and look absent."""
        if not wanted:
            return {}
        tries: dict[tuple[str, int], Try] = {}
        files: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        for task_id, no, tenant, job_id, ended_at, file_no, status in self._read.fetch(
            "tries_and_files", keys=sorted(wanted)
        ):
            key = (task_id, no)
            if file_no is not None:
                files[key][file_no] = status
            tries[key] = Try(tenant, job_id, ended_at is None, files[key])
        return tries


# -- proof


def check_files(read: Reading, blobs: Blobs, newest: int = 0, page: int = PAGE) -> list[Violation]:
    """Say whether ready files, all or so many of the newest, have their bytes, as far as the store can tell."""
    bad: list[dict[str, Any]] = []
    for file in _ready(read, newest, page):
        stat = blobs.stat(keys.of(file))
        if stat is None or stat.size != file.bytes or stat.sha256 not in {None, file.sha256}:
            bad.append({"file": file.id, "bytes": file.bytes, "bytes_there": stat and stat.size})
    return [Violation("O8", "A ready file has its bytes.", len(bad), bad[:SHOWN_MAX])] if bad else []


def _ready(read: Reading, newest: int, page: int) -> Iterator[File]:
    before, left = _LAST_ID, newest or sys.maxsize
    while rows := read.fetch("files_ready", before=before, count=min(page, left)):
        yield from (File(*row) for row in rows)
        before, left = rows[-1][0], left - len(rows)
