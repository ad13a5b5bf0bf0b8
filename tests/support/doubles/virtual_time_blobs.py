"""File storage in virtual time, and helpers that upload to it."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from callsheet.blobs import object_keys
from callsheet.blobs.base import DeleteSummary, StorageUnavailableError
from callsheet.blobs.local import LocalBlobs
from callsheet.core.model.commands import CreateUpload, FinishUpload, Lease, OutputFile
from callsheet.core.model.rows import File
from callsheet.engine.loops.orphan_files import OrphanCollector
from tests.support.doubles.virtual_clock import VirtualClock
from tests.support.engine.engine_harness import TENANT, USER, EngineHarness

BODY = b"\x89PNG\r\n\x1a\n and the rest"
DIGEST = hashlib.sha256(BODY).hexdigest()
PICTURE = OutputFile(1, "picture.png", "image/png", len(BODY), DIGEST)
GRACE_SECONDS = 1_000
"""The age at which an orphan is deleted."""


class VirtualTimeBlobs(LocalBlobs):
    """Local storage whose files have the virtual time; `unavailable` makes deletions fail."""

    def __init__(self, path: Path, clock: VirtualClock) -> None:
        super().__init__(path)
        self.clock = clock
        self.unavailable = False

    def put(self, key: str, body: Any = BODY, *, overwrite: bool = False) -> None:
        super().put(key, body, overwrite=overwrite)
        os.utime(self.path(key), ns=(self.clock.now() * 1_000,) * 2)

    def delete(self, keys: Iterable[str]) -> DeleteSummary:
        if self.unavailable:
            raise StorageUnavailableError("The disk is not available.")
        return super().delete(keys)

    def all(self) -> set[str]:
        return {one.key for one in self.list("", "", 10_000)}


def upload_command() -> CreateUpload:
    return CreateUpload(tenant=TENANT, user=USER, name="a.png", media_type="image/png", bytes=len(BODY), sha256=DIGEST)


def create_upload(harness: EngineHarness) -> File:
    file: File = harness.do(upload_command())
    return file


def upload_file(harness: EngineHarness, blobs: VirtualTimeBlobs) -> File:
    file = create_upload(harness)
    blobs.put(object_keys.file_key(file))
    ready: File = harness.do(FinishUpload(tenant=TENANT, file_id=file.id))
    return ready


def key_of(lease: Lease, no: int | None = 1) -> str:
    attempt = (TENANT, lease.job_id, lease.task_id, lease.attempt)
    return object_keys.preview_key(*attempt) if no is None else object_keys.output_key(*attempt, no)


def run_full_pass(orphans: OrphanCollector, now: int) -> int:
    """Run the collector over all objects once; return the number of pages."""
    pages = 1
    while orphans.run_once(now):
        pages += 1
    return pages
