"""A folder. A blob's place is made of ids of ours, never of names that somebody gave; it is whole or absent."""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z")
_FOLDER_MODE = 0o700


class Place(NamedTuple):
    """Where the bytes of one file of one epoch lie: a late worker overwrites nothing."""

    tenant: str
    job_id: str
    task_id: str
    attempt: int
    name: str

    def parts(self) -> Iterator[str]:
        for part in (self.tenant, self.job_id, self.task_id, str(self.attempt), self.name):
            if not _PART.match(part):
                raise ValueError("a blob's place is made of ids only")
            yield part


class LocalBlobs:
    """Blobs below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, place: Place, body: bytes) -> None:
        """Write a blob: beside its place, down to the disk, then into its place."""
        target = self._path(place)
        target.parent.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with temporary.open("xb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def open(self, place: Place) -> IO[bytes]:
        """Open a blob for reading; FileNotFoundError if it is not there."""
        return self._path(place).open("rb")

    def path(self, place: Place) -> Path:
        """Return where a blob lies on this machine."""
        return self._path(place)

    def forget_job(self, tenant: str, job_id: str) -> None:
        """Remove everything that a job left."""
        place = Place(tenant, job_id, "x", 1, "x")
        shutil.rmtree(self._path(place).parent.parent.parent, ignore_errors=True)

    def _path(self, place: Place) -> Path:
        return self._folder.joinpath(*place.parts())
