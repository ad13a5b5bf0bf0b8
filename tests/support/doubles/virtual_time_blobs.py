"""A folder of files in virtual time, and what is put into it."""

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
"""Seconds that an orphan may lie."""


class VirtualTimeBlobs(LocalBlobs):
    """A folder whose files are as old as the studio's clock says; it can be away."""

    def __init__(self, path: Path, clock: VirtualClock) -> None:
        super().__init__(path)
        self.clock = clock
        self.unavailable = False

    def put(self, key: str, body: Any = BODY, *, overwrite: bool = False) -> None:
        super().put(key, body, overwrite=overwrite)
        os.utime(self.path(key), ns=(self.clock.now() * 1_000,) * 2)

    def delete(self, keys: Iterable[str]) -> DeleteSummary:
        if self.unavailable:
            raise StorageUnavailableError("The disk is gone.")
        return super().delete(keys)

    def all(self) -> set[str]:
        return {one.key for one in self.list("", "", 10_000)}


def upload_command() -> CreateUpload:
    return CreateUpload(tenant=TENANT, user=USER, name="a.png", media_type="image/png", bytes=len(BODY), sha256=DIGEST)


def create_upload(harness: EngineHarness) -> File:
    file: File = harness.do(upload_command())
    return file


def upload_file(harness: EngineHarness, folder: VirtualTimeBlobs) -> File:
    file = create_upload(harness)
    folder.put(object_keys.file_key(file))
    done: File = harness.do(FinishUpload(tenant=TENANT, file_id=file.id))
    return done


def key_of(lease: Lease, no: int | None = 1) -> str:
    place = (TENANT, lease.job_id, lease.task_id, lease.attempt)
    return object_keys.preview_key(*place) if no is None else object_keys.output_key(*place, no)


def run_full_pass(orphans: OrphanCollector, now: int) -> int:
    """Let the collector go through everything once; return how many pages that were."""
    pages = 1
    while orphans.run_once(now):
        pages += 1
    return pages
