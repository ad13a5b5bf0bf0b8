"""Storage quotas: how many bytes a tenant may store and announce, and how many a job may output.

Bytes count from the moment they are announced. So an upload that was accepted can always be finished, and the storage
never holds more than its quota.
"""

from typing import NamedTuple

import msgspec

from callsheet.core.model.errors import Conflict, RateLimited
from callsheet.core.model.plural import pluralize
from callsheet.core.model.rows import Attempt, Job, StorageUsage, Tenant
from callsheet.core.policy.engine_limits import Limits

PREVIEW = "preview"
"""The name of the preview among the announced objects of an attempt; files are named by their numbers."""
_PENDING_RETRY_AFTER_SECONDS = 5


class DiscardedOutputs(NamedTuple):
    """Objects that an ended attempt announced and did not report. They are deleted after the commit."""

    tenant: str
    job_id: str
    task_id: str
    attempt: int
    names: tuple[str, ...]


def announced_sizes(attempt: Attempt) -> dict[str, int]:
    """Return the sizes of the objects that an attempt has announced, by name."""
    return msgspec.json.decode(attempt.announced, type=dict[str, int]) if attempt.announced else {}


def storage_bytes_max(tenant: Tenant, limits: Limits) -> int:
    """Return the storage limit of a tenant: its own, or the server's."""
    return limits.storage_bytes_max if tenant.storage_bytes_max is None else tenant.storage_bytes_max


def check_tenant_storage(usage: StorageUsage, tenant: Tenant, requested: int, limits: Limits) -> None:
    """Refuse bytes beyond the storage limit of a tenant."""
    limit, used = storage_bytes_max(tenant, limits), usage.stored_bytes + usage.pending_bytes
    if used + requested > limit:
        raise Conflict(
            "storage_quota_exceeded",
            f"This tenant has stored {pluralize(usage.stored_bytes, 'byte')} and announced {usage.pending_bytes}; "
            f"{requested} more would exceed its limit of {limit} (storage_bytes_max): delete files, or ask the "
            "operator for a higher limit.",
            limit="storage_bytes_max", used=used, requested=requested, max=limit,
        )  # fmt: skip


def check_pending_bytes(usage: StorageUsage, requested: int, limits: Limits) -> None:
    """Refuse to announce bytes beyond the limit of unfinished uploads and running tasks of a tenant."""
    limit, used = limits.pending_bytes_max, usage.pending_bytes
    if requested > limit:
        raise Conflict(
            "storage_quota_exceeded",
            f"The upload has {pluralize(requested, 'byte')}; a tenant may announce at most {limit} "
            "(pending_bytes_max): send smaller files, or ask the operator for a higher limit.",
            limit="pending_bytes_max", used=used, requested=requested, max=limit,
        )  # fmt: skip
    if used + requested > limit:
        raise RateLimited(
            "too_many_pending_bytes",
            f"Unfinished uploads and running tasks of this tenant have announced {pluralize(used, 'byte')}; "
            f"{requested} more would exceed the limit of {limit} (pending_bytes_max): finish or delete an upload, "
            "then retry.",
            retry_after_seconds=_PENDING_RETRY_AFTER_SECONDS,
            limit="pending_bytes_max", used=used, requested=requested, max=limit,
        )  # fmt: skip


def check_job_outputs(job: Job, requested: int, limits: Limits) -> None:
    """Refuse bytes beyond the limit of a job's outputs."""
    limit = limits.file_bytes_per_job_max
    if job.output_bytes + requested > limit:
        raise Conflict(
            "storage_quota_exceeded",
            f"The outputs of this job have {pluralize(job.output_bytes, 'byte')}; {requested} more would exceed "
            f"the limit of {limit} (file_bytes_per_job_max): write smaller files, or ask the operator for a "
            "higher limit.",
            limit="file_bytes_per_job_max", used=job.output_bytes, requested=requested, max=limit,
        )  # fmt: skip
