"""Calls about files: their bytes, proved by digest and size before anybody gets them."""

import hashlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from callsheet.client.errors import CorruptFileError, is_error, parse_error
from callsheet.client.file_models import File
from callsheet.client.method_binding import call
from callsheet.client.operations import (
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
from callsheet.client.resource import Resource, get, path
from callsheet.client.retry import connection_error, send_with_retries
from callsheet.client.save import Content, find_existing, save_unique

_Progress = Callable[[int], object] | None
_PARTIAL_CONTENT, _TEMPORARY_REDIRECT = 206, 307
_IDENTITY_HEADERS = {"accept-encoding": "identity"}
"""Bytes as they are kept, so that they can be counted."""


class Downloads(Resource):
    """Fetch what jobs made."""

    @call
    def download(
        self,
        file: File | str,
        to: str | Path,
        *,
        overwrite: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> Operation[Path]:
        """Write a file's bytes to a path, or into a folder under its own name. It is whole when it has its name.

        What a folder has is kept: the same bytes are not fetched again, others get a number (sketch-2.png). A path that
        you name yourself is replaced; with `over` so is what a folder has. `progress` is told how many bytes are here.
        """
        target = Path(to)
        is_folder = yield RunBlocking(target.is_dir)
        target = target / _safe_name(file) if is_folder else target
        keep_existing = is_folder and not overwrite
        if (
            keep_existing and isinstance(file, File) and file.status == "ready"
        ):  # else the server says what became of it
            content_expected = Content(file.bytes, file.sha256)
            location: Path | None = yield RunBlocking(lambda: find_existing(target, content_expected))
            if location is not None:
                return location
        part = target.with_name(f".callsheet-{uuid4().hex}.part")
        try:
            content = yield from self._fetch(file, lambda: _create_part_file(part), progress)
            saved: Path = yield RunBlocking(
                lambda: save_unique(part, target, content) if keep_existing else part.replace(target)
            )
        except BaseException:  # also who is told to stop, and can ask for no more work
            part.unlink(missing_ok=True)
            raise
        return saved

    @call
    def read(self, file: File | str) -> Operation[bytes]:
        """Return a file's bytes."""
        sinks: list[_MemorySink] = []

        def open_memory() -> _MemorySink:
            sinks.append(_MemorySink())
            return sinks[-1]

        yield from self._fetch(file, open_memory, None)
        return bytes(sinks[-1])

    @call
    def preview(self, job_id: str, task_id: str) -> Operation[bytes]:
        """Return the newest preview picture (PNG) of a running task."""
        reply = yield from send_with_retries(self, get(path("jobs", job_id, "tasks", task_id, "preview")))
        if is_error(reply.status):
            raise parse_error(reply.status, reply.body, reply.headers.get("x-request-id", ""))
        return reply.body

    def _fetch(self, file: File | str, open_sink: Callable[[], Any], progress: _Progress) -> Operation[Content]:
        """Stream a file into a new sink; what breaks on the way goes on where it broke, if the file is the same."""
        request = get(path("files", file if isinstance(file, str) else file.id))
        failures = largest_size = 0
        partial: _PartialDownload | None = None
        try:
            while True:
                headers = _IDENTITY_HEADERS if partial is None else partial.range_headers()
                sent_request, reply, etag = yield from self._open_download(request._replace(headers=headers))
                if partial is None or not partial.can_resume_from(reply):
                    partial = yield from _restart(partial, open_sink, reply)
                try:
                    yield from partial.receive(progress)
                    yield RunBlocking(partial.sink.close)
                    break
                except TransportError as error:
                    failures = 1 if partial.size > largest_size else failures + 1
                    largest_size = max(largest_size, partial.size)
                    if failures > self.retry_policy.retries_max:
                        raise connection_error(error, self.url, sent_request) from None
                yield Sleep(self.retry_policy.delay_seconds(failures))
        finally:
            if partial is not None:
                partial.sink.close()
        _verify(file, partial, etag)
        return Content(partial.size, partial.digest)

    def _open_download(self, request: Request) -> Operation[tuple[Request, Reply, str]]:
        """Open a file, in its bucket if the server shows the way; return who sends it, and what it is to be."""
        reply = yield from send_with_retries(self, request, Open)
        etag, location = reply.headers.get("etag", ""), reply.headers.get("location", "")
        if reply.status == _TEMPORARY_REDIRECT and location.startswith(("https://", "http://")):
            request = Request("GET", location, headers=request.headers, omit_credentials=True)
            reply = yield from send_with_retries(self, request, Open)
        if is_error(reply.status):
            raise parse_error(reply.status, reply.body, reply.headers.get("x-request-id", ""))
        return request, reply, etag.strip('"')


class _PartialDownload:
    """What has arrived of a file."""

    def __init__(self, sink: Any, tag: str) -> None:
        self.sink = sink
        self.size = 0
        self.tag = tag
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def receive(self, progress: _Progress) -> Generator[Effect, Any, None]:
        """Take what comes, up to the end."""
        while chunk := (yield Read()):
            yield RunBlocking(lambda data=chunk: self.sink.write(data))  # type: ignore[misc]
            self.size += len(chunk)
            self._digest.update(chunk)
            if progress is not None:
                progress(self.size)

    def range_headers(self) -> dict[str, str]:
        """Return how the rest is asked for; bytes without a name of their state are asked for anew."""
        if not self.size or not self.tag.startswith('"'):
            return _IDENTITY_HEADERS
        return {**_IDENTITY_HEADERS, "range": f"bytes={self.size}-", "if-range": self.tag}

    def can_resume_from(self, reply: Reply) -> bool:
        """Say whether an answer begins where this ends."""
        starts_here = reply.headers.get("content-range", "").startswith(f"bytes {self.size}-")
        return reply.status == _PARTIAL_CONTENT and starts_here and reply.headers.get("etag", self.tag) == self.tag


def _restart(
    partial: _PartialDownload | None, open_sink: Callable[[], Any], reply: Reply
) -> Generator[Effect, Any, _PartialDownload]:
    """Forget what has arrived, if anything, and take what this answer brings."""
    if partial is not None:
        yield RunBlocking(partial.sink.close)
    return _PartialDownload((yield RunBlocking(open_sink)), reply.headers.get("etag", ""))


def _create_part_file(part: Path) -> IO[bytes]:
    """Open a part of a file that nobody else writes; what an earlier try of this download left there goes."""
    part.unlink(missing_ok=True)
    return part.open("xb")


class _MemorySink(bytearray):
    """A sink in memory."""

    def write(self, data: bytes, /) -> None:
        self.extend(data)

    def close(self) -> None:
        """Keep the bytes: there is nothing to give back."""


def _verify(file: File | str, partial: _PartialDownload, etag: str) -> None:
    """Refuse other bytes than the job's record says; without the record, than the server says."""
    if isinstance(file, str):
        expected_size, expected_sha256 = partial.size, etag
    else:
        expected_size, expected_sha256 = file.bytes, file.sha256
    if (partial.size, partial.digest) != (expected_size, expected_sha256):
        name = file if isinstance(file, str) else file.id
        raise CorruptFileError("corrupt_file", f"The file {name} arrived with other bytes than it has: fetch it again.")


def _safe_name(file: File | str) -> str:
    """Return a name that stays in its folder, and is none of those that programs read there by themselves."""
    return Path(file if isinstance(file, str) else file.name or file.id).name.lstrip(".") or "file"
