"""Which stored objects nobody needs any more: decided from what a key says and what the rows say, from nothing else.

A key is given out only after its row is committed (an upload's, or the try's), and a file's row comes in the same
step as the end of its try. So an object whose upload was deleted, or whose try has ended without naming it, can never
be needed again. The age is a margin, not the proof.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from callsheet.core.model.rows import File

ObjectState = Literal["needed", "young", "unknown", "orphan"]


class AttemptFiles(NamedTuple):
    """What the rows say of one try of a task, read in one moment."""

    tenant: str
    job_id: str
    open: bool
    files: Mapping[int, str]
    """Status of its files, by number."""


class ObjectAge(NamedTuple):
    """When an object was written, as seen from now."""

    modified_at: int
    now: int
    database_created_at: int
    """When the database was made; what is older and has no row was not made by it."""
    grace: int


def classify_upload(tenant: str, file: File | None, age: ObjectAge) -> ObjectState:
    """Decide about what a person brought, by the row of its id."""
    if file is None or file.tenant != tenant or file.job_id is not None:
        return _classify_without_row(age)
    return "needed" if file.status != "deleted" else _orphan_or_young(age)


def classify_output(
    tenant: str, job_id: str, no: int | None, attempt: AttemptFiles | None, age: ObjectAge
) -> ObjectState:
    """Decide about what a try of a task made: a file by its number, or its preview without one."""
    if attempt is None or (attempt.tenant, attempt.job_id) != (tenant, job_id):
        return _classify_without_row(age)
    if attempt.open or (no is not None and attempt.files.get(no) == "ready"):
        return "needed"
    return _orphan_or_young(age)


def _orphan_or_young(age: ObjectAge) -> ObjectState:
    return "young" if age.modified_at > age.now - age.grace else "orphan"


def _classify_without_row(age: ObjectAge) -> ObjectState:
    """Leave alone what another database may know: a folder that is older than this one is not ours to empty."""
    return "unknown" if age.modified_at < age.database_created_at else _orphan_or_young(age)
