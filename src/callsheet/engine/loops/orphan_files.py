"""Deletes stored objects that no row needs: left by crashes, stale workers and abandoned uploads."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from callsheet.blobs import object_keys
from callsheet.blobs.base import BlobEntry, Blobs
from callsheet.blobs.object_keys import OutputKey, UploadKey
from callsheet.core.model.clock import SECOND
from callsheet.core.model.rows import File
from callsheet.core.policy.orphan_files import AttemptFiles, ObjectAge, classify_output, classify_upload, group_attempts
from callsheet.engine.loops.loop_protocol import PAGE
from callsheet.engine.reads.synchronous import BlockingReader


class StorageCounts(Struct):
    """How many objects were found in the storage, by state."""

    objects: int = 0
    needed: int = 0
    young: int = 0
    """Not needed, but younger than the grace period."""
    unknown: int = 0
    """Without a row and older than the database: they may belong to another database."""
    foreign: int = 0
    """With a key that Callsheet does not create."""
    orphans: int = 0
    bytes: int = 0
    """Total size of the orphans."""

    def add(self, other: "StorageCounts") -> None:
        for name, count in asdict(other).items():
            setattr(self, name, getattr(self, name) + count)


class OrphanPage(NamedTuple):
    """One page of the storage: its orphans, its counts, and the key to continue after; None at the end."""

    orphans: list[BlobEntry]
    counts: StorageCounts
    after: str | None


class OrphanCollector:
    """Deletes orphans, one page per run. A run that returns 0 ends a pass over the storage."""

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
            self._blobs.delete([entry.key for entry in scanned.orphans])
        self._after = scanned.after or ""
        return scanned.counts.objects if scanned.after else 0

    def scan_page(self, now: int, after: str = "") -> OrphanPage:
        """Classify one page of objects without deleting any."""
        page = self._blobs.list("", after, self._page)
        database_created_at = self._read.fetch("database_created_at")[0][0]
        counts, orphans = StorageCounts(), []
        for entry, state in self._classify(page, now, now if database_created_at is None else database_created_at):
            counts.objects += 1
            if state == "orphan":
                orphans.append(entry)
                counts.orphans, counts.bytes = counts.orphans + 1, counts.bytes + entry.size
            else:
                setattr(counts, state, getattr(counts, state) + 1)
        return OrphanPage(orphans, counts, page[-1].key if len(page) == self._page else None)

    def _classify(
        self, page: Sequence[BlobEntry], now: int, database_created_at: int
    ) -> Iterator[tuple[BlobEntry, str]]:
        parsed = [(entry, object_keys.parse_key(entry.key)) for entry in page]
        uploads = {key.file_id for _, key in parsed if isinstance(key, UploadKey)}
        files = {row[0]: File(*row) for row in self._read.fetch("files_by_id", ids=sorted(uploads))} if uploads else {}
        attempts = self._attempts({(key.task_id, key.attempt) for _, key in parsed if isinstance(key, OutputKey)})
        for entry, key in parsed:
            age = ObjectAge(entry.modified_at, now, database_created_at, self._grace)
            if isinstance(key, UploadKey):
                yield entry, classify_upload(key.tenant, files.get(key.file_id), age)
            elif isinstance(key, OutputKey):
                attempt = attempts.get((key.task_id, key.attempt))
                yield entry, classify_output(key.tenant, key.job_id, key.no, attempt, age)
            else:
                yield entry, "foreign"

    def _attempts(self, keys: set[tuple[str, int]]) -> dict[tuple[str, int], AttemptFiles]:
        """Read attempts and their files in one statement: with two, a result stored in between would look absent."""
        return group_attempts(self._read.fetch("attempts_and_files", keys=sorted(keys))) if keys else {}
