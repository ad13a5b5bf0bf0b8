"""Which stored objects nobody needs any more: decided from what a key says and what the rows say, from nothing else.

A key is given out only after its row is committed (an upload's, or the try's), and a file's row comes in the same
step as the end of its try. So an object whose upload was dropped, or whose try has ended without naming it, can never
be needed again. The age is a margin, not the proof.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from callsheet.core.rows import File

Fate = Literal["needed", "young", "unknown", "orphan"]


class Try(NamedTuple):
    """What the rows say of one try of a task, read in one moment."""

    tenant: str
    job_id: str
    open: bool
    files: Mapping[int, str]
    """Status of its files, by number."""


class Age(NamedTuple):
    """When an object was written, as seen from now."""

    modified_at: int
    now: int
    born_at: int
    """When the database was made; what is older and has no row was not made by it."""
    grace: int


def fate_of_upload(tenant: str, file: File | None, age: Age) -> Fate:
    """Decide about what a person brought, by the row of its id."""
    if file is None or file.tenant != tenant or file.job_id is not None:
        return _without_row(age)
    return "needed" if file.status != "dropped" else _unneeded(age)


def fate_of_output(tenant: str, job_id: str, no: int | None, made_by: Try | None, age: Age) -> Fate:
    """Decide about what a try of a task made: a file by its number, or its preview without one."""
    if made_by is None or (made_by.tenant, made_by.job_id) != (tenant, job_id):
        return _without_row(age)
    if made_by.open or (no is not None and made_by.files.get(no) == "ready"):
        return "needed"
    return _unneeded(age)


def _unneeded(age: Age) -> Fate:
    return "young" if age.modified_at > age.now - age.grace else "orphan"


def _without_row(age: Age) -> Fate:
    """Leave alone what another database may know: a folder that is older than this one is not ours to empty."""
    return "unknown" if age.modified_at < age.born_at else _unneeded(age)
