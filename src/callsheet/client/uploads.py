"""Calls about files that people bring. Their bytes go straight to the storage, and are proved before they count."""

import hashlib
import io
import mimetypes
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from callsheet.client.binding import call, iterate
from callsheet.client.errors import CallsheetError, error_of, failed
from callsheet.client.patience import patiently
from callsheet.client.speaking import Speaking, get, path, send
from callsheet.client.stored import File, Freed, NewFile, Upload
from callsheet.client.talk import Items, Request, Talk, Work
from callsheet.core.sniff import HEAD_BYTES, sniff

_REFUSED = 4
_THERE = 412
"""There are bytes already: an earlier try of ours, whose answer was lost; finishing says whether they are right."""


class Uploads(Speaking):
    """Bring files, and look after them."""

    @call
    def upload(
        self, source: str | Path | bytes, *, user: str, name: str | None = None, media_type: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> Talk[File]:  # fmt: skip
        """Bring a file of a path, or bytes; use it in an input as `file.reference`. A path is streamed from the disk.

        The name is the path's, and the type is guessed from it or from the first bytes, unless you say them. `progress`
        is told how many bytes are on their way.
        """
        made = yield Work(lambda: _measured(source, name, media_type))
        body = {
            "user": user, "name": made.name, "media_type": made.media_type, "bytes": made.size, "sha256": made.sha256,
        }  # fmt: skip
        new = yield from self._ask(NewFile, send("POST", path("files"), body, again=True))
        try:
            yield from self._put(new.upload, made.open if progress is None else _told(made.open, progress))
            return (yield from self._ask(File, send("POST", path("files", new.file.id, "finish"), again=True)))
        except CallsheetError as error:
            if error.status // 100 == _REFUSED:  # for good: what was announced would only be waited for
                with suppress(CallsheetError):
                    yield from self._ask(Freed, send("DELETE", path("files", new.file.id), again=False))
            raise

    @iterate
    def files(self, user: str, *, limit: int | None = None) -> Items[File]:
        """Iterate over the files that a user brought, newest first; over `limit` files at most."""
        yield from self._pages(File, "files", path("files"), "cursor", {"user": user}, limit)

    @call
    def file(self, file_id: str) -> Talk[File]:
        """Return what is known of a file."""
        return (yield from self._ask(File, get(path("files", file_id, "info"))))

    @call
    def delete_file(self, file: File | str) -> Talk[Freed]:
        """Delete a file that no open job needs."""
        where = path("files", file if isinstance(file, str) else file.id)
        return (yield from self._ask(Freed, send("DELETE", where, again=False)))

    def _put(self, upload: Upload, source: Callable[[], IO[bytes]]) -> Talk[None]:
        request = Request(upload.method, upload.url, headers=upload.headers, source=source, bare=True)
        reply = yield from patiently(self, request)
        if failed(reply.status) and reply.status != _THERE:
            raise error_of(reply.status, reply.body, reply.headers.get("x-request-id", ""))


class _Counted(io.RawIOBase):
    """A file that tells how much of it was read."""

    def __init__(self, file: IO[bytes], progress: Callable[[int], object]) -> None:
        self._file = file
        self._progress = progress
        self._size = 0

    def read(self, size: int = -1, /) -> bytes:
        piece = self._file.read(size)
        self._size += len(piece)
        self._progress(self._size)
        return piece

    def close(self) -> None:
        self._file.close()
        super().close()


def _told(opened: Callable[[], IO[bytes]], progress: Callable[[int], object]) -> Callable[[], IO[bytes]]:
    return lambda: cast("IO[bytes]", _Counted(opened(), progress))


class _Measured(NamedTuple):
    """What a file is, and how to read it from its beginning."""

    name: str
    media_type: str
    size: int
    sha256: str
    open: Callable[[], IO[bytes]]


def _measured(source: str | Path | bytes, name: str | None, media_type: str | None) -> _Measured:
    """Read a file once, to say what it is before its bytes are sent."""
    opened: Callable[[], Any]
    if isinstance(source, bytes):
        name, opened = name or "file", lambda: io.BytesIO(source)
    else:
        where = Path(source)
        name, opened = name or where.name, lambda: where.open("rb")
    with opened() as file:
        head = file.read(HEAD_BYTES)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.seek(0, io.SEEK_END)
    guessed = mimetypes.guess_type(name)[0] or sniff(head) or "application/octet-stream"
    return _Measured(name, media_type or guessed, size, digest, opened)
