"""Sending blobs: piece by piece, whole or in part, for as long as somebody reads."""

import asyncio
import os
from contextlib import AsyncExitStack
from typing import IO, Any, NamedTuple

from callsheet.blobs.disposition import content_headers
from callsheet.http.server.conditional import etag_matches, parse_range
from callsheet.http.server.problems import not_found
from callsheet.http.server.request import Request, Send
from callsheet.http.server.route import Response, StreamingResponse
from callsheet.http.server.security_headers import FILE_SECURITY_HEADERS
from callsheet.http.state import AppState

CHUNK = 256 * 1024
"""What one reader of a file takes of our memory."""
_BODY = "http.response.body"


class Blob(NamedTuple):
    """An open file and how much is in it."""

    file: IO[bytes]
    size: int


async def send_file(
    state: AppState, request: Request, key: str, name: str, media_type: str, tag: str | None = None
) -> Response | StreamingResponse:
    """Answer with a file, a part of it, or that it is known; without a tag, its time and size are one."""
    async with AsyncExitStack() as stack:
        blob = await open_blob(state, key, "file")
        stack.push_async_callback(_close, blob)
        tag = tag or _file_etag(blob.file)
        if etag_matches(request.header(b"if-none-match"), tag):
            return Response(None, 304, (("etag", tag),))
        byte_range = _requested_range(request, tag, blob.size)
        stack.pop_all()  # from here on, sending closes it
        return stream_blob(request, blob, byte_range, _file_headers(name, media_type, tag))


def _requested_range(request: Request, tag: str, size: int) -> range | None:
    """Return the part of a file that is asked for; a client that knows another file than ours gets all of it."""
    wanted = request.header(b"range")
    if wanted is None or request.method == "HEAD" or request.header(b"if-range") not in {None, tag}:
        return None
    return parse_range(wanted, size)


def _file_headers(name: str, media_type: str, tag: str) -> tuple[tuple[str, str], ...]:
    """Return what makes a browser show a file or save it, and never run it."""
    shown, disposition = content_headers(name, media_type)
    return (
        ("content-type", shown),
        ("content-disposition", disposition),
        *FILE_SECURITY_HEADERS,
        ("etag", tag),
        ("accept-ranges", "bytes"),
    )


def stream_blob(
    request: Request, blob: Blob, byte_range: range | None, headers_to_add: tuple[tuple[str, str], ...]
) -> StreamingResponse:
    """Return an answer that sends an open blob, and closes it."""
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
            await send({"type": _BODY, "body": b"", "more_body": True})  # waits for the reader: only then read on
        await send({"type": _BODY, "body": b""})

    async def serve(send: Send) -> None:
        """Send until the end, or until the client is gone: whichever is first."""
        try:
            await request.until_disconnect(send_all(send))
        finally:
            await _close(blob)

    return StreamingResponse(serve, status)


async def open_blob(state: AppState, key: str, what: str) -> Blob:
    """Open a blob in a thread; whoever is canceled meanwhile leaves nothing open."""
    opening = asyncio.get_running_loop().run_in_executor(None, _open, state, key)
    try:
        return await asyncio.shield(opening)
    except FileNotFoundError:
        raise not_found(what) from None
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
        raise EOFError("a blob has become shorter while it was sent")
    return chunk


async def _close(blob: Blob) -> None:
    """Close in a thread: a read that nobody waits for any more may still go on, and is waited for there."""
    await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, blob.file.close))


def _file_etag(file: IO[bytes]) -> str:
    found = os.fstat(file.fileno())
    return f'"{found.st_mtime_ns:x}-{found.st_size:x}"'


def _close_when_opened(opening: "asyncio.Future[Any]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().file.close()
