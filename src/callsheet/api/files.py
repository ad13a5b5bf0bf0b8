"""Files, uploads and deletions."""

from datetime import datetime

from msgspec import Struct


class File(Struct, frozen=True):
    """A stored file, brought by a user or made by a job; `url` is on this server and asks for a key."""

    id: str
    name: str
    media_type: str
    bytes: int
    sha256: str
    url: str
    status: str
    user: str
    job_id: str | None
    created_at: datetime
    expires_at: datetime | None


class FileBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What a file will be."""

    user: str
    name: str
    media_type: str
    bytes: int
    sha256: str


class Upload(Struct, frozen=True):
    """How to put the bytes: one request, with these headers as they are, within its time."""

    method: str
    url: str
    headers: dict[str, str]
    expires_in_seconds: int


class NewFile(Struct, frozen=True):
    """An announced file, and how to put its bytes."""

    file: File
    upload: Upload


class FilesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose files to list; newest first."""

    user: str = ""
    limit: int = 50
    cursor: str = ""


class FilePage(Struct, frozen=True):
    """Files that a user brought, newest first, and where to go on."""

    files: list[File]
    next: str | None


class DeleteSummary(Struct, frozen=True):
    """What a deletion freed."""

    files: int
    bytes: int
    pending: bool = False
