"""Orphaned objects in storage: decides from an object's key and the rows whether it can be deleted.

A key is only issued after its row is committed (of the upload or the attempt), and the rows of output files are
committed together with the end of their attempt. So an object can never be needed again if its upload was deleted, or
if its attempt ended without reporting it. The grace period is an additional margin.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from callsheet.core.model.rows import File

ObjectState = Literal["needed", "young", "unknown", "orphan"]


class AttemptFiles(NamedTuple):
    """One attempt of a task and its files, read at one moment."""

    tenant: str
    job_id: str
    open: bool
    files: Mapping[int, str]
    """Status of the files by number."""


class ObjectAge(NamedTuple):
    """The age of an object."""

    modified_at: int
    now: int
    database_created_at: int
    """When the database was created. An older object without a row belongs to another database."""
    grace: int


def classify_upload(tenant: str, file: File | None, age: ObjectAge) -> ObjectState:
    """Classify an uploaded object by the row of its file."""
    if file is None or file.tenant != tenant or file.job_id is not None:
        return _classify_without_row(age)
    return "needed" if file.status != "deleted" else _orphan_or_young(age)


def classify_output(
    tenant: str, job_id: str, no: int | None, attempt: AttemptFiles | None, age: ObjectAge
) -> ObjectState:
    """Classify an object of an attempt: an output file by its number, or a preview if `no` is None."""
    if attempt is None or (attempt.tenant, attempt.job_id) != (tenant, job_id):
        return _classify_without_row(age)
    if attempt.open or (no is not None and attempt.files.get(no) == "ready"):
        return "needed"
    return _orphan_or_young(age)


def _orphan_or_young(age: ObjectAge) -> ObjectState:
    return "young" if age.modified_at > age.now - age.grace else "orphan"


def _classify_without_row(age: ObjectAge) -> ObjectState:
    """Classify an object without a row. One that is older than the database may belong to another one, so it stays."""
    return "unknown" if age.modified_at < age.database_created_at else _orphan_or_young(age)
