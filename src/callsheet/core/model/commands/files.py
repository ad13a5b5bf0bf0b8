"""Files that people bring: announced, put, looked at, used."""

from callsheet.core.model.commands.base import Command


class CreateUpload(Command, frozen=True, kw_only=True, gc=False):
    """Announce a file; its bytes are put afterwards."""

    tenant: str
    user: str
    name: str
    media_type: str
    bytes: int
    sha256: str


class FinishUpload(Command, frozen=True, kw_only=True, gc=False):
    """Say that the bytes are there and are what was announced; the edge has looked."""

    tenant: str
    file_id: str


class DeleteFiles(Command, frozen=True, kw_only=True, gc=False):
    """Forget files: deleted by a person, or older than they are kept. Those that are needed stay."""

    file_ids: tuple[str, ...]
    tenant: str | None = None
    """Whose they must be; None is anybody's, for the house itself."""
