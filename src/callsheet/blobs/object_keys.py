"""Where the bytes of a file lie: a key made of ids of ours only, never of a name that somebody gave.

tenant/jobs/job/task/attempt/no       what one try of a task made: a late worker overwrites nothing
tenant/jobs/job/task/attempt/preview  the newest picture of what a try is making
tenant/uploads/file                   what a user brought
"""

import re
from typing import NamedTuple

from callsheet.core.model.rows import File

_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z")
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,17})\Z")
_JOBS, _UPLOADS, _PREVIEW = "jobs", "uploads", "preview"


class OutputKey(NamedTuple):
    """What a key of a task's try says; without a number it is the preview."""

    tenant: str
    job_id: str
    task_id: str
    attempt: int
    no: int | None


class UploadKey(NamedTuple):
    """What a key of an upload says."""

    tenant: str
    file_id: str


def output_key(tenant: str, job_id: str, task_id: str, attempt: int, no: int) -> str:
    """Return the key of a file that a try of a task made."""
    return _join_key(tenant, _JOBS, job_id, task_id, f"{attempt}", f"{no}")


def preview_key(tenant: str, job_id: str, task_id: str, attempt: int) -> str:
    """Return the key of a try's preview."""
    return _join_key(tenant, _JOBS, job_id, task_id, f"{attempt}", _PREVIEW)


def upload_key(tenant: str, file_id: str) -> str:
    """Return the key of a file that a user brought."""
    return _join_key(tenant, _UPLOADS, file_id)


def file_key(file: File) -> str:
    """Return the key of a file by its row."""
    if file.job_id is None or file.task_id is None:
        return upload_key(file.tenant, file.id)
    return output_key(file.tenant, file.job_id, file.task_id, file.attempt, file.no)


def job_prefix(tenant: str, job_id: str) -> str:
    """Return how the keys of all that a job made begin."""
    return _join_key(tenant, _JOBS, job_id) + "/"


def parse_key(key: str) -> OutputKey | UploadKey | None:
    """Return what a key is of; None if it is none that we make."""
    parts = key.split("/")
    if not all(map(_SEGMENT.match, parts)):
        return None
    match parts:
        case [tenant, "uploads", file_id]:
            return UploadKey(tenant, file_id)
        case [tenant, "jobs", job_id, task_id, attempt, last] if _NUMBER.match(attempt):
            if last == _PREVIEW:
                return OutputKey(tenant, job_id, task_id, int(attempt), None)
            if _NUMBER.match(last):
                return OutputKey(tenant, job_id, task_id, int(attempt), int(last))
    return None


def split_key(key: str) -> list[str]:
    """Return the parts of a key, or of a prefix without its last slash; anything that could lead elsewhere is refused.

    The key is not repeated: an error is shown to people who may not know it.
    """
    parts = key.split("/")
    if not all(map(_SEGMENT.match, parts)):
        raise ValueError("a blob's key is made of ids only")
    return parts


def split_prefix(prefix: str) -> list[str]:
    """Return the parts of a prefix; one ends with a slash, or is empty: t/1 is not the beginning of t/10."""
    if not prefix:
        return []
    if not prefix.endswith("/"):
        raise ValueError("a prefix of keys ends with a slash")
    return split_key(prefix[:-1])


def _join_key(*parts: str) -> str:
    key = "/".join(parts)
    split_key(key)
    if key.count("/") != len(parts) - 1:
        raise ValueError("a blob's key is made of ids only")
    return key
