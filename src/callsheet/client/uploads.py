"""Calls about files that people bring. Their bytes go straight to the storage, and are proved before they count."""

import hashlib
import io
import mimetypes
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from callsheet.client.errors import CallsheetError, is_error, parse_error
from callsheet.client.file_models import DeleteSummary, File, NewFile, Upload
from callsheet.client.method_binding import call, iterate
from callsheet.client.operations import IterableOperation, Operation, Request, RunBlocking
from callsheet.client.resource import Resource, get, json_request, path
from callsheet.client.retry import send_with_retries
from callsheet.core.policy.magic_bytes import HEAD_BYTES, sniff

_CLIENT_ERROR = 4
_PRECONDITION_FAILED = 412
"""There are bytes already: an earlier try of ours, whose answer was lost; finishing says whether they are right."""


class Uploads(Resource):
    """Bring files, and look after them."""

    @call
    def upload(
        self, source: str | Path | bytes, *, user: str, name: str | None = None, media_type: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> Operation[File]:  # fmt: skip
        """Bring a file of a path, or bytes; use it in an input as `file.reference`. A path is streamed from the disk.

        The name is the path's, and the type is guessed from it or from the first bytes, unless you say them. `progress`
        is told how many bytes are on their way.
        """
        info = yield RunBlocking(lambda: _inspect_file(source, name, media_type))
        body = {
            "user": user, "name": info.name, "media_type": info.media_type, "bytes": info.size, "sha256": info.sha256,
        }  # fmt: skip
        created = yield from self._request(NewFile, json_request("POST", path("files"), body, idempotent=True))
        try:
            yield from self._upload_bytes(
                created.upload, info.open if progress is None else _with_progress(info.open, progress)
            )
            return (
                yield from self._request(
                    File, json_request("POST", path("files", created.file.id, "finish"), idempotent=True)
                )
            )
        except CallsheetError as error:
            if error.status // 100 == _CLIENT_ERROR:  # for good: what was announced would only be waited for
                with suppress(CallsheetError):
                    yield from self._request(
                        DeleteSummary, json_request("DELETE", path("files", created.file.id), idempotent=False)
                    )
            raise

    @iterate
    def files(self, user: str, *, limit: int | None = None) -> IterableOperation[File]:
        """Iterate over the files that a user brought, newest first; over `limit` files at most."""
        yield from self._paginate(File, "files", path("files"), "cursor", {"user": user}, limit)

    @call
    def file(self, file_id: str) -> Operation[File]:
        """Return what is known of a file."""
        return (yield from self._request(File, get(path("files", file_id, "info"))))

    @call
    def delete_file(self, file: File | str) -> Operation[DeleteSummary]:
        """Delete a file that no open job needs."""
        location = path("files", file if isinstance(file, str) else file.id)
        return (yield from self._request(DeleteSummary, json_request("DELETE", location, idempotent=False)))

    def _upload_bytes(self, upload: Upload, source: Callable[[], IO[bytes]]) -> Operation[None]:
        request = Request(upload.method, upload.url, headers=upload.headers, source=source, omit_credentials=True)
        reply = yield from send_with_retries(self, request)
        if is_error(reply.status) and reply.status != _PRECONDITION_FAILED:
            raise parse_error(reply.status, reply.body, reply.headers.get("x-request-id", ""))


class _ProgressReader(io.RawIOBase):
    """A file that tells how much of it was read."""

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


def _with_progress(open_file: Callable[[], IO[bytes]], progress: Callable[[int], object]) -> Callable[[], IO[bytes]]:
    return lambda: cast("IO[bytes]", _ProgressReader(open_file(), progress))


class _FileInfo(NamedTuple):
    """What a file is, and how to read it from its beginning."""

    name: str
    media_type: str
    size: int
    sha256: str
    open: Callable[[], IO[bytes]]


def _inspect_file(source: str | Path | bytes, name: str | None, media_type: str | None) -> _FileInfo:
    """Read a file once, to say what it is before its bytes are sent."""
    open_file: Callable[[], Any]
    if isinstance(source, bytes):
        name, open_file = name or "file", lambda: io.BytesIO(source)
    else:
        location = Path(source)
        name, open_file = name or location.name, lambda: location.open("rb")
    with open_file() as file:
        head = file.read(HEAD_BYTES)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.seek(0, io.SEEK_END)
    guessed_type = mimetypes.guess_type(name)[0] or sniff(head) or "application/octet-stream"
    return _FileInfo(name, media_type or guessed_type, size, digest, open_file)
