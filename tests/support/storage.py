"""A folder of files in virtual time, and what is put into it."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from callsheet.blobs import keys
from callsheet.blobs.base import Freed, StorageAway
from callsheet.blobs.local import LocalBlobs
from callsheet.core.commands import AskUpload, FinishUpload, Lease, Made
from callsheet.core.rows import File
from callsheet.engine.filekeeping import Orphans
from tests.support.clocked import VirtualClock
from tests.support.studio import TENANT, USER, Studio

BODY = b"\x89PNG\r\n\x1a\n and the rest"
DIGEST = hashlib.sha256(BODY).hexdigest()
PICTURE = Made(1, "picture.png", "image/png", len(BODY), DIGEST)
GRACE = 1_000
"""Seconds that an orphan may lie."""


class Folder(LocalBlobs):
    """A folder whose files are as old as the studio's clock says; it can be away."""

    def __init__(self, path: Path, clock: VirtualClock) -> None:
        super().__init__(path)
        self.clock = clock
        self.away = False

    def put(self, key: str, body: Any = BODY, *, over: bool = False) -> None:
        super().put(key, body, over=over)
        os.utime(self.path(key), ns=(self.clock.now() * 1_000,) * 2)

    def delete(self, keys: Iterable[str]) -> Freed:
        if self.away:
            raise StorageAway("The disk is gone.")
        return super().delete(keys)

    def all(self) -> set[str]:
        return {one.key for one in self.list("", "", 10_000)}


def announcing() -> AskUpload:
    return AskUpload(tenant=TENANT, user=USER, name="a.png", media_type="image/png", bytes=len(BODY), sha256=DIGEST)


def announce(studio: Studio) -> File:
    file: File = studio.do(announcing())
    return file


def bring(studio: Studio, folder: Folder) -> File:
    file = announce(studio)
    folder.put(keys.of(file))
    done: File = studio.do(FinishUpload(tenant=TENANT, file_id=file.id))
    return done


def key_of(lease: Lease, no: int | None = 1) -> str:
    place = (TENANT, lease.job_id, lease.task_id, lease.attempt)
    return keys.preview(*place) if no is None else keys.made(*place, no)


def whole_pass(orphans: Orphans, now: int) -> int:
    """Let the collector go through everything once; return how many pages that were."""
    pages = 1
    while orphans.run_once(now):
        pages += 1
    return pages
