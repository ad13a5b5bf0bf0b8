"""Files as the server shows them, how to put one, and what a deletion freed."""

from datetime import datetime

from msgspec import Struct


class File(Struct, frozen=True):
    """A stored file, brought by a user or made by a job."""

    id: str
    name: str
    media_type: str
    bytes: int
    sha256: str
    url: str
    status: str = "ready"
    user: str = ""
    job_id: str | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None

    @property
    def reference(self) -> dict[str, str]:
        """How an input refers to it."""
        return {"$file": self.id}


class Upload(Struct, frozen=True):
    """How to put the bytes of a file."""

    method: str
    url: str
    headers: dict[str, str]
    expires_in_seconds: int


class NewFile(Struct, frozen=True):
    """An announced file, and how to put its bytes."""

    file: File
    upload: Upload


class DeleteSummary(Struct, frozen=True):
    """What a deletion freed; `pending` if the storage did not answer and is asked again later."""

    files: int
    bytes: int
    pending: bool
