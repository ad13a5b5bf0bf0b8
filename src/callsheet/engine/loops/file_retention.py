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

from callsheet.blobs import object_keys
from callsheet.blobs.base import BlobEntry, Blobs
from callsheet.blobs.object_keys import OutputKey, UploadKey
from callsheet.core.decisions.files import DeletedFiles
from callsheet.core.model.clock import SECOND
from callsheet.core.model.commands import DeleteFiles
from callsheet.core.model.rows import File
from callsheet.core.policy.orphan_files import AttemptFiles, ObjectAge, classify_output, classify_upload
from callsheet.engine.loops.duties import PAGE, CommandExecutor, due
from callsheet.engine.reads.blocking import BlockingReader
from callsheet.store.verify import ROWS_SHOWN_MAX, Violation

RETENTION_ACTOR = "retention"
"""Who drops files, in the audit log."""
_ABOVE_ALL_IDS = "~"


class FileRetention:
    """Drops files that were kept long enough, and uploads whose bytes never came."""

    def __init__(self, engine: CommandExecutor, blobs: Blobs, page: int = PAGE) -> None:
        self._engine = engine
        self._blobs = blobs
        self._page = page

    def run_once(self, now: int) -> int:
        deleted = 0
        errors: list[Exception] = []
        for rows in due(self._engine.reads, "due_files", now, self._page):
            done: DeletedFiles = self._engine.execute(
                DeleteFiles(file_ids=tuple(row[1] for row in rows), by=RETENTION_ACTOR)
            )
            deleted += len(done.files)
            try:
                self._blobs.delete([object_keys.file_key(file) for file in done.files])
            except Exception as error:  # noqa: BLE001 - their rows are gone: orphans now, and the next page is due
                errors.append(error)
        if errors:
            raise errors[0]
        return deleted


class StorageCounts(Struct):
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

    def add(self, other: "StorageCounts") -> None:
        for name, count in asdict(other).items():
            setattr(self, name, getattr(self, name) + count)


class OrphanPage(NamedTuple):
    """One page of the storage: what may go, what was found, and where to go on; None at the end."""

    orphans: list[BlobEntry]
    counts: StorageCounts
    after: str | None


class OrphanCollector:
    """Removes objects that no row needs, page by page; a run that does nothing is the end of a pass."""

    def __init__(self, read: BlockingReader, blobs: Blobs, grace_seconds: int, page: int = PAGE) -> None:
        self._read = read
        self._blobs = blobs
        self._grace = grace_seconds * SECOND
        self._page = page
        self._after = ""

    def run_once(self, now: int) -> int:
        if not self._after:
            self._blobs.sweep(self._grace / SECOND)
        scanned = self.scan_page(now, self._after)
        if scanned.orphans:
            self._blobs.delete([one.key for one in scanned.orphans])
        self._after = scanned.after or ""
        return scanned.counts.objects if scanned.after else 0

    def scan_page(self, now: int, after: str = "") -> OrphanPage:
        """Look at one page without removing anything."""
        page = self._blobs.list("", after, self._page)
        database_created_at = self._read.fetch("database_created_at")[0][0]
        counts, orphans = StorageCounts(), []
        for one, fate in self._classify(page, now, now if database_created_at is None else database_created_at):
            counts.objects += 1
            if fate == "orphan":
                orphans.append(one)
                counts.orphans, counts.bytes = counts.orphans + 1, counts.bytes + one.size
            else:
                setattr(counts, fate, getattr(counts, fate) + 1)
        return OrphanPage(orphans, counts, page[-1].key if len(page) == self._page else None)

    def _classify(
        self, page: Sequence[BlobEntry], now: int, database_created_at: int
    ) -> Iterator[tuple[BlobEntry, str]]:
        found = [(one, object_keys.parse_key(one.key)) for one in page]
        uploads = {key.file_id for _, key in found if isinstance(key, UploadKey)}
        files = {row[0]: File(*row) for row in self._read.fetch("files_by_id", ids=sorted(uploads))} if uploads else {}
        attempts = self._attempts({(key.task_id, key.attempt) for _, key in found if isinstance(key, OutputKey)})
        for one, key in found:
            age = ObjectAge(one.modified_at, now, database_created_at, self._grace)
            if isinstance(key, UploadKey):
                yield one, classify_upload(key.tenant, files.get(key.file_id), age)
            elif isinstance(key, OutputKey):
                made_by_attempt = attempts.get((key.task_id, key.attempt))
                yield one, classify_output(key.tenant, key.job_id, key.no, made_by_attempt, age)
            else:
                yield one, "foreign"

    def _attempts(self, wanted: set[tuple[str, int]]) -> dict[tuple[str, int], AttemptFiles]:
        """Read tries with their files in one statement: apart, a result could come in between and look absent."""
        if not wanted:
            return {}
        attempts: dict[tuple[str, int], AttemptFiles] = {}
        files: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        for task_id, no, tenant, job_id, ended_at, file_no, status in self._read.fetch(
            "attempts_and_files", keys=sorted(wanted)
        ):
            key = (task_id, no)
            if file_no is not None:
                files[key][file_no] = status
            attempts[key] = AttemptFiles(tenant, job_id, ended_at is None, files[key])
        return attempts


# -- proof


def verify_files(read: BlockingReader, blobs: Blobs, newest: int = 0, page: int = PAGE) -> list[Violation]:
    """Say whether ready files, all or so many of the newest, have their bytes, as far as the store can tell."""
    mismatches: list[dict[str, Any]] = []
    for file in _ready_files(read, newest, page):
        stat = blobs.stat(object_keys.file_key(file))
        if stat is None or stat.size != file.bytes or stat.sha256 not in {None, file.sha256}:
            mismatches.append({"file": file.id, "bytes": file.bytes, "stored_bytes": stat and stat.size})
    return (
        [Violation("O8", "A ready file has its bytes.", len(mismatches), mismatches[:ROWS_SHOWN_MAX])]
        if mismatches
        else []
    )


def _ready_files(read: BlockingReader, newest: int, page: int) -> Iterator[File]:
    before, left = _ABOVE_ALL_IDS, newest or sys.maxsize
    while rows := read.fetch("files_ready", before=before, count=min(page, left)):
        yield from (File(*row) for row in rows)
        before, left = rows[-1][0], left - len(rows)
