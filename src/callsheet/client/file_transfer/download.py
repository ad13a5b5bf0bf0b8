"""Download of a file's content: resumed after a broken connection, verified by size and digest."""

import hashlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO, Any

from callsheet.api.files import File
from callsheet.client.errors import CorruptFileError
from callsheet.client.file_transfer.save_path import Content
from callsheet.client.operation_effects import (
    Effect,
    Open,
    Operation,
    Read,
    Reply,
    Request,
    RunBlocking,
    Sleep,
    TransportError,
)
from callsheet.client.requests_and_pages import get_request, path, raise_for_status
from callsheet.client.retry import RetryContext, connection_error, send_with_retries

_Progress = Callable[[int], object] | None
_PARTIAL_CONTENT, _TEMPORARY_REDIRECT = 206, 307
_IDENTITY_HEADERS = {"accept-encoding": "identity"}
"""No content encoding, so that the bytes received are the bytes stored."""


def fetch(
    context: RetryContext, file: File | str, open_sink: Callable[[], Any], progress: _Progress
) -> Operation[Content]:
    """Stream a file into a new sink and verify it. A broken connection resumes where it broke."""
    request = get_request(path("files", file if isinstance(file, str) else file.id))
    failures = largest_size = 0
    partial: _PartialDownload | None = None
    try:
        while True:
            headers = _IDENTITY_HEADERS if partial is None else partial.range_headers()
            sent_request, reply, etag = yield from _open_download(context, request._replace(headers=headers))
            if partial is None or not partial.can_resume_from(reply):
                partial = yield from _restart(partial, open_sink, reply)
            try:
                yield from partial.receive(progress)
                yield RunBlocking(partial.sink.close)
                break
            except TransportError as error:
                failures = 1 if partial.size > largest_size else failures + 1
                largest_size = max(largest_size, partial.size)
                if failures > context.retry_policy.retries_max:
                    raise connection_error(error, context.url, sent_request) from None
            yield Sleep(context.retry_policy.delay_seconds(failures))
    finally:
        if partial is not None:
            partial.sink.close()
    _verify(file, partial, etag)
    return Content(partial.size, partial.digest)


def _open_download(context: RetryContext, request: Request) -> Operation[tuple[Request, Reply, str]]:
    """Open a file, following a redirect to its storage. Returns the request sent, the reply and the file's ETag."""
    reply = yield from send_with_retries(context, request, Open)
    etag, location = reply.headers.get("etag", ""), reply.headers.get("location", "")
    if reply.status == _TEMPORARY_REDIRECT and location.startswith(("https://", "http://")):
        request = Request("GET", location, headers=request.headers, omit_credentials=True)
        reply = yield from send_with_retries(context, request, Open)
    raise_for_status(reply)
    return request, reply, etag.strip('"')


class _PartialDownload:
    """The part of a file received so far."""

    def __init__(self, sink: Any, tag: str) -> None:
        self.sink = sink
        self.size = 0
        self.tag = tag
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def receive(self, progress: _Progress) -> Generator[Effect, Any, None]:
        """Write the stream into the sink, until it ends."""
        while chunk := (yield Read()):
            yield RunBlocking(lambda data=chunk: self.sink.write(data))  # type: ignore[misc]
            self.size += len(chunk)
            self._digest.update(chunk)
            if progress is not None:
                progress(self.size)

    def range_headers(self) -> dict[str, str]:
        """Return the headers that request the rest. Without a strong ETag the file is requested from the start."""
        if not self.size or not self.tag.startswith('"'):
            return _IDENTITY_HEADERS
        return {**_IDENTITY_HEADERS, "range": f"bytes={self.size}-", "if-range": self.tag}

    def can_resume_from(self, reply: Reply) -> bool:
        """Return whether a response continues where this part ends."""
        starts_here = reply.headers.get("content-range", "").startswith(f"bytes {self.size}-")
        return reply.status == _PARTIAL_CONTENT and starts_here and reply.headers.get("etag", self.tag) == self.tag


def _restart(
    partial: _PartialDownload | None, open_sink: Callable[[], Any], reply: Reply
) -> Generator[Effect, Any, _PartialDownload]:
    """Discard the part received so far, and start over with this response."""
    if partial is not None:
        yield RunBlocking(partial.sink.close)
    return _PartialDownload((yield RunBlocking(open_sink)), reply.headers.get("etag", ""))


def create_part_file(part: Path) -> IO[bytes]:
    """Create the temporary file of a download; a restarted download replaces it."""
    part.unlink(missing_ok=True)
    return part.open("xb")


class MemorySink(bytearray):
    """A sink in memory."""

    def write(self, data: bytes, /) -> None:
        self.extend(data)

    def close(self) -> None:
        """Do nothing: memory needs no close."""


def _verify(file: File | str, partial: _PartialDownload, etag: str) -> None:
    """Raise if size or digest differ from the file's metadata or, for a bare id, from the ETag."""
    if isinstance(file, str):
        expected_size, expected_sha256 = partial.size, etag
    else:
        expected_size, expected_sha256 = file.bytes, file.sha256
    if (partial.size, partial.digest) != (expected_size, expected_sha256):
        name = file if isinstance(file, str) else file.id
        raise CorruptFileError(
            "corrupt_file", f"File {name} is corrupt: size or digest do not match. Download it again."
        )


def safe_name(file: File | str) -> str:
    """Return a file name that stays in its directory: without folders, leading dots and invisible characters."""
    name = Path(file if isinstance(file, str) else file.name or file.id).name.lstrip(".")
    return "".join(character if character.isprintable() else "_" for character in name) or "file"
