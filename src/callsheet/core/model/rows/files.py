"""Files, and who needs them."""

from typing import ClassVar

from callsheet.core.model.rows.base import Row


class File(Row, frozen=True, gc=False):
    """A stored object, brought by a person or made by a task; where its bytes lie follows from that, and is hidden."""

    TABLE: ClassVar[str] = "file"
    FIXED_COLUMNS: ClassVar[int] = 12

    id: str
    tenant: str
    user_id: str
    job_id: str | None
    """The job that made it; none for one that was brought."""
    task_id: str | None
    attempt: int
    no: int
    name: str
    media_type: str
    bytes: int
    sha256: str
    created_at: int
    status: str = "ready"
    """`uploading` until its bytes are there, `ready`, `deleted` once they are not kept any more."""
    expires_at: int | None = None


class JobFile(Row, frozen=True, gc=False):
    """A job's input refers to a file."""

    TABLE: ClassVar[str] = "job_file"
    KEY: ClassVar[tuple[str, ...]] = ("job_id", "file_id")

    job_id: str
    file_id: str


class WorkflowFile(Row, frozen=True, gc=False):
    """A version of a workflow names a file of its own: a style picture, a mask."""

    TABLE: ClassVar[str] = "workflow_file"
    KEY: ClassVar[tuple[str, ...]] = ("workflow", "version", "file_id")

    workflow: str
    version: int
    file_id: str
