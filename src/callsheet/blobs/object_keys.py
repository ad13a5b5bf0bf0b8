"""Object keys. They consist of ids that the server generates, never of names that users choose.

tenant/jobs/job/task/attempt/no       an output of one attempt, so that a stale worker cannot overwrite newer outputs
tenant/jobs/job/task/attempt/preview  the newest preview of an attempt
tenant/uploads/file                   an upload of a user
"""

import re
from typing import NamedTuple

from callsheet.core.model.rows import File
from callsheet.core.policy.storage_quota import PREVIEW, DiscardedOutputs

_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z")
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,17})\Z")
_JOBS, _UPLOADS = "jobs", "uploads"


class OutputKey(NamedTuple):
    """The parts of an output key; without a number it is the preview."""

    tenant: str
    job_id: str
    task_id: str
    attempt: int
    no: int | None


class UploadKey(NamedTuple):
    """The parts of an upload key."""

    tenant: str
    file_id: str


def output_key(tenant: str, job_id: str, task_id: str, attempt: int, no: int) -> str:
    """Return the key of an output of an attempt."""
    return _join_key(tenant, _JOBS, job_id, task_id, f"{attempt}", f"{no}")


def preview_key(tenant: str, job_id: str, task_id: str, attempt: int) -> str:
    """Return the key of an attempt's preview."""
    return _join_key(tenant, _JOBS, job_id, task_id, f"{attempt}", PREVIEW)


def upload_key(tenant: str, file_id: str) -> str:
    """Return the key of an upload."""
    return _join_key(tenant, _UPLOADS, file_id)


def file_key(file: File) -> str:
    """Return the key of a file."""
    if file.job_id is None or file.task_id is None:
        return upload_key(file.tenant, file.id)
    return output_key(file.tenant, file.job_id, file.task_id, file.attempt, file.no)


def discarded_keys(outputs: DiscardedOutputs) -> list[str]:
    """Return the keys of discarded objects of an attempt."""
    attempt = (outputs.tenant, outputs.job_id, outputs.task_id, outputs.attempt)
    return [preview_key(*attempt) if name == PREVIEW else output_key(*attempt, int(name)) for name in outputs.names]


def job_prefix(tenant: str, job_id: str) -> str:
    """Return the common prefix of all outputs of a job."""
    return _join_key(tenant, _JOBS, job_id) + "/"


def parse_key(key: str) -> OutputKey | UploadKey | None:
    """Parse a key; None if Callsheet does not create such keys."""
    parts = key.split("/")
    if not all(map(_SEGMENT.match, parts)):
        return None
    match parts:
        case [tenant, "uploads", file_id]:
            return UploadKey(tenant, file_id)
        case [tenant, "jobs", job_id, task_id, attempt, last] if _NUMBER.match(attempt):
            if last == PREVIEW:
                return OutputKey(tenant, job_id, task_id, int(attempt), None)
            if _NUMBER.match(last):
                return OutputKey(tenant, job_id, task_id, int(attempt), int(last))
    return None


def split_key(key: str) -> list[str]:
    """Return the parts of a key, or of a prefix without its last slash. Raises ValueError for an invalid key.

    The error does not contain the key, which the caller may not be allowed to know.
    """
    parts = key.split("/")
    if not all(map(_SEGMENT.match, parts)):
        raise ValueError("an object key must consist of ids")
    return parts


def split_prefix(prefix: str) -> list[str]:
    """Return the parts of a prefix, which is empty or ends with a slash, so that t/1 does not match t/10."""
    if not prefix:
        return []
    if not prefix.endswith("/"):
        raise ValueError("a key prefix must end with a slash")
    return split_key(prefix[:-1])


def _join_key(*parts: str) -> str:
    key = "/".join(parts)
    split_key(key)
    if key.count("/") != len(parts) - 1:
        raise ValueError("an object key must consist of ids")
    return key
