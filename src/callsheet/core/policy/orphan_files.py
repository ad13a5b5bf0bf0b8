"""Orphaned objects in storage: decides from an object's key and the rows whether it can be deleted.

A key is only issued after its row is committed (of the upload or the attempt), and the rows of output files are
committed together with the end of their attempt. So an object can never be needed again if its upload was deleted, or
if its attempt ended without reporting it. The grace period is an additional margin.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

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
    return "needed" if is_upload_needed(tenant, file) else _orphan_or_young(age)


def classify_output(
    tenant: str, job_id: str, no: int | None, attempt: AttemptFiles | None, age: ObjectAge
) -> ObjectState:
    """Classify an object of an attempt: an output file by its number, or a preview if `no` is None."""
    if attempt is None or (attempt.tenant, attempt.job_id) != (tenant, job_id):
        return _classify_without_row(age)
    return "needed" if is_output_needed(tenant, job_id, no, attempt) else _orphan_or_young(age)


def is_upload_needed(tenant: str, file: File | None) -> bool:
    """Return whether the bytes of an upload are needed, stored or still to come."""
    return file is not None and (file.tenant, file.job_id) == (tenant, None) and file.status != "deleted"


def is_output_needed(tenant: str, job_id: str, no: int | None, attempt: AttemptFiles | None) -> bool:
    """Return whether an object of an attempt is needed: the attempt runs, or has reported the file."""
    if attempt is None or (attempt.tenant, attempt.job_id) != (tenant, job_id):
        return False
    return attempt.open or (no is not None and attempt.files.get(no) == "ready")


def group_attempts(rows: Iterable[Sequence[Any]]) -> dict[tuple[str, int], AttemptFiles]:
    """Return attempts by task and number, from the rows of the query `attempts_and_files`."""
    attempts: dict[tuple[str, int], AttemptFiles] = {}
    files: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for task_id, no, tenant, job_id, ended_at, file_no, status in rows:
        key = (task_id, no)
        if file_no is not None:
            files[key][file_no] = status
        attempts[key] = AttemptFiles(tenant, job_id, ended_at is None, files[key])
    return attempts


def _orphan_or_young(age: ObjectAge) -> ObjectState:
    return "young" if age.modified_at > age.now - age.grace else "orphan"


def _classify_without_row(age: ObjectAge) -> ObjectState:
    """Classify an object without a row. One that is older than the database may belong to another one, so it stays."""
    return "unknown" if age.modified_at < age.database_created_at else _orphan_or_young(age)
