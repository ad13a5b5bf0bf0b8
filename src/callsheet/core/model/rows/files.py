"""Rows of files, and the links of jobs and workflows to them."""

from typing import ClassVar

from callsheet.core.model.rows.base import Row


class File(Row, frozen=True, gc=False):
    """A stored object: an upload of a user, or an output of a task. Its storage key is derived from the row."""

    TABLE: ClassVar[str] = "file"
    FIXED_COLUMNS: ClassVar[int] = 12
    TIMES: ClassVar[tuple[str, ...]] = ("created_at",)

    id: str
    tenant: str
    user_id: str
    job_id: str | None
    """The job that created the file; None for an upload."""
    task_id: str | None
    attempt: int
    no: int
    name: str
    media_type: str
    bytes: int
    sha256: str
    created_at: int
    status: str = "ready"
    """`uploading` until the upload is finished, then `ready`; `deleted` when its bytes are no longer kept."""
    expires_at: int | None = None


class StorageUsage(Row, frozen=True, gc=False):
    """The size of a tenant's files. It changes in the transaction that changes the files."""

    TABLE: ClassVar[str] = "storage_usage"
    KEY: ClassVar[tuple[str, ...]] = ("tenant",)
    FIXED_COLUMNS: ClassVar[int] = 1

    tenant: str
    stored_bytes: int = 0
    """Files in the status `ready`."""
    pending_bytes: int = 0
    """Files in the status `uploading`, and what running attempts have announced."""


class JobFile(Row, frozen=True, gc=False):
    """A job's input refers to a file."""

    TABLE: ClassVar[str] = "job_file"
    KEY: ClassVar[tuple[str, ...]] = ("job_id", "file_id")

    job_id: str
    file_id: str


class WorkflowFile(Row, frozen=True, gc=False):
    """A version of a workflow refers to a file, for example a style picture or a mask."""

    TABLE: ClassVar[str] = "workflow_file"
    KEY: ClassVar[tuple[str, ...]] = ("workflow", "version", "file_id")

    workflow: str
    version: int
    file_id: str
