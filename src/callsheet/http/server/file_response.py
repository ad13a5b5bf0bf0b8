"""File downloads: blobs are streamed in chunks, completely or as a byte range, until the client disconnects."""

import asyncio
import os
from contextlib import AsyncExitStack
from typing import IO, Any, NamedTuple

from callsheet.blobs.disposition import content_headers
from callsheet.http.server.etag_and_range import etag_matches, parse_range
from callsheet.http.server.problems import not_found
from callsheet.http.server.request import Request, Send
from callsheet.http.server.route import Response, StreamingResponse
from callsheet.http.server.security_headers import FILE_SECURITY_HEADERS
from callsheet.http.state import AppState

CHUNK = 256 * 1024
"""Bytes that one download holds in memory."""
_BODY = "http.response.body"


class Blob(NamedTuple):
    """An open file and its size."""

    file: IO[bytes]
    size: int


async def send_file(
    state: AppState, request: Request, key: str, name: str, media_type: str, tag: str | None = None
) -> Response | StreamingResponse:
    """Respond with a file, a byte range of it, or 304. Without `tag`, the ETag is made of the file's time and size."""
    async with AsyncExitStack() as stack:
        blob = await open_blob(state, key, "file")
        stack.push_async_callback(_close, blob)
        tag = tag or _file_etag(blob.file)
        if etag_matches(request.header(b"if-none-match"), tag):
            return Response(None, 304, (("etag", tag),))
        byte_range = _requested_range(request, tag, blob.size)
        stack.pop_all()  # the streaming response closes the blob
        return stream_blob(request, blob, byte_range, _file_headers(name, media_type, tag))


def _requested_range(request: Request, tag: str, size: int) -> range | None:
    """Return the requested byte range. None means the whole file; so does an If-Range header with another ETag."""
    header = request.header(b"range")
    if header is None or request.method == "HEAD" or request.header(b"if-range") not in {None, tag}:
        return None
    return parse_range(header, size)


def _file_headers(name: str, media_type: str, tag: str) -> tuple[tuple[str, str], ...]:
    """Return headers with which a browser shows or saves a file, but never runs its scripts."""
    content_type, disposition = content_headers(name, media_type)
    return (
        ("content-type", content_type),
        ("content-disposition", disposition),
        *FILE_SECURITY_HEADERS,
        ("etag", tag),
        ("accept-ranges", "bytes"),
    )


def stream_blob(
    request: Request, blob: Blob, byte_range: range | None, headers_to_add: tuple[tuple[str, str], ...]
) -> StreamingResponse:
    """Return a response that sends an open blob and closes it."""
    status, sent = (200, range(blob.size)) if byte_range is None else (206, byte_range)
    headers = [*request.response_headers(), (b"content-length", b"%d" % len(sent))]
    headers.extend((name.encode(), value.encode()) for name, value in headers_to_add)
    if byte_range is not None:
        headers.append((b"content-range", b"bytes %d-%d/%d" % (byte_range.start, byte_range.stop - 1, blob.size)))

    async def send_all(send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for at in range(sent.start, sent.stop, CHUNK) if request.method != "HEAD" else ():
            chunk = asyncio.to_thread(_read, blob.file, at, min(CHUNK, sent.stop - at))
            await send({"type": _BODY, "body": await chunk, "more_body": True})
            await send({"type": _BODY, "body": b"", "more_body": True})  # waits until the client has read the chunk
        await send({"type": _BODY, "body": b""})

    async def serve(send: Send) -> None:
        """Send until the end, or until the client disconnects."""
        try:
            await request.until_disconnect(send_all(send))
        finally:
            await _close(blob)

    return StreamingResponse(serve, status)


async def open_blob(state: AppState, key: str, resource: str) -> Blob:
    """Open a blob in a thread. If the caller is canceled meanwhile, the blob is closed."""
    opening = asyncio.get_running_loop().run_in_executor(None, _open, state, key)
    try:
        return await asyncio.shield(opening)
    except FileNotFoundError:
        raise not_found(resource) from None
    except asyncio.CancelledError:
        opening.add_done_callback(_close_when_opened)
        raise


def _open(state: AppState, key: str) -> Blob:
    file = state.blobs.open(key)
    try:
        return Blob(file, file.seek(0, os.SEEK_END))
    except BaseException:
        file.close()
        raise


def _read(file: IO[bytes], at: int, count: int) -> bytes:
    file.seek(at)
    chunk = file.read(count)
    if len(chunk) != count:
        raise EOFError("the blob was truncated while it was sent")
    return chunk


async def _close(blob: Blob) -> None:
    """Close a blob in a thread, because a canceled read may still run and closing waits for it."""
    await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, blob.file.close))


def _file_etag(file: IO[bytes]) -> str:
    stat = os.fstat(file.fileno())
    return f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'


def _close_when_opened(opening: "asyncio.Future[Any]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().file.close()
