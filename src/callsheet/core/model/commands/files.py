"""Commands for uploads and the deletion of files."""

from callsheet.core.model.commands.base import Command


class CreateUpload(Command, frozen=True, kw_only=True, gc=False):
    """Create an upload; its bytes are uploaded afterwards."""

    tenant: str
    user: str
    name: str
    media_type: str
    bytes: int
    sha256: str


class FinishUpload(Command, frozen=True, kw_only=True, gc=False):
    """Finish an upload. The caller has verified that the bytes match the declared size and digest."""

    tenant: str
    file_id: str


class DeleteFiles(Command, frozen=True, kw_only=True, gc=False):
    """Delete files by request, or because their retention has ended. Files in use stay."""

    file_ids: tuple[str, ...]
    tenant: str | None = None
    """The tenant that must own the files; None for any tenant (retention)."""
