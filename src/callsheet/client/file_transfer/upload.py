"""Upload of a file's content to the storage, with its size, digest and media type."""

import io
import mimetypes
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from callsheet.api.files import Upload
from callsheet.client.operation_effects import Operation, Request
from callsheet.client.requests_and_pages import raise_for_status
from callsheet.client.retry import RetryContext, send_with_retries
from callsheet.core.policy.magic_bytes import HEAD_BYTES, sniff
from callsheet.transport.sha256 import digest_stream

_PRECONDITION_FAILED = 412
"""The storage already has the content, from an attempt whose response was lost. Finishing the upload verifies it."""


def upload_content(context: RetryContext, upload: Upload, open_file: Callable[[], IO[bytes]]) -> Operation[None]:
    """Send a file's content to its signed URL."""
    request = Request(upload.method, upload.url, headers=upload.headers, source=open_file, omit_credentials=True)
    reply = yield from send_with_retries(context, request)
    if reply.status != _PRECONDITION_FAILED:
        raise_for_status(reply)


class _ProgressReader(io.RawIOBase):
    """A file that reports how much of it was read."""

    def __init__(self, file: IO[bytes], progress: Callable[[int], object]) -> None:
        self._file = file
        self._progress = progress
        self._size = 0

    def read(self, size: int = -1, /) -> bytes:
        chunk = self._file.read(size)
        self._size += len(chunk)
        self._progress(self._size)
        return chunk

    def close(self) -> None:
        self._file.close()
        super().close()


def report_progress(open_file: Callable[[], IO[bytes]], progress: Callable[[int], object]) -> Callable[[], IO[bytes]]:
    """Wrap a function that opens a file, so that reading reports the number of bytes read."""
    return lambda: cast("IO[bytes]", _ProgressReader(open_file(), progress))


class FileInfo(NamedTuple):
    """A file's description, and a function that opens it."""

    name: str
    media_type: str
    size: int
    sha256: str
    open: Callable[[], IO[bytes]]


def inspect_file(source: str | Path | bytes, name: str | None, media_type: str | None) -> FileInfo:
    """Read a file once, to get its size, digest and media type before the upload."""
    open_file: Callable[[], Any]
    if isinstance(source, bytes):
        name, open_file = name or "file", lambda: io.BytesIO(source)
    else:
        location = Path(source)
        name, open_file = name or location.name, lambda: location.open("rb")
    with open_file() as file:
        head = file.read(HEAD_BYTES)
        file.seek(0)
        digest = digest_stream(file)
        size = file.seek(0, io.SEEK_END)
    guessed_type = mimetypes.guess_type(name)[0] or sniff(head) or "application/octet-stream"
    return FileInfo(name, media_type or guessed_type, size, digest, open_file)
