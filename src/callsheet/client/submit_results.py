"""Results with fields that the client adds. All other results are structs of `callsheet.api`."""

from callsheet.api.jobs import BulkItem, Job


class SubmittedJob(Job, frozen=True):
    """A job as `submit` returns it."""

    replay: bool = False
    """Whether your idempotency key had created this job before."""


class BulkResult(BulkItem, frozen=True, omit_defaults=True):
    """Result of one job of `submit_many`: its id, or the problem."""

    idempotency_key: str = ""
    """The key that the job was sent with, yours or a generated one. Submitting the job again with this key is safe."""
