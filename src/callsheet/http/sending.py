"""Sending blobs: piece by piece, whole or in part, for as long as somebody reads."""

import asyncio
import os
from contextlib import AsyncExitStack
from typing import IO, Any, NamedTuple

from callsheet.blobs.showing import shown_as
from callsheet.http.conditions import matches, span
from callsheet.http.house import House
from callsheet.http.problem import absent
from callsheet.http.request import SAFE, Request, Send
from callsheet.http.route import Answer, Streaming

CHUNK = 256 * 1024
"""What one reader of a file takes of our memory."""
_BODY = "http.response.body"


class Blob(NamedTuple):
    """An open file and how much is in it."""

    file: IO[bytes]
    size: int


async def send_file(
    house: House, request: Request, key: str, name: str, media_type: str, tag: str | None = None
) -> Answer | Streaming:
    """Answer with a file, a part of it, or that it is known; without a tag, its time and size are one."""
    async with AsyncExitStack() as stack:
        blob = await opened(house, key, "file")
        stack.push_async_callback(_close, blob)
        tag = tag or _tag(blob.file)
        if matches(request.header(b"if-none-match"), tag):
            return Answer(None, 304, (("etag", tag),))
        part = _part(request, tag, blob.size)
        stack.pop_all()  # from here on, sending closes it
        return stream(request, blob, part, _file_headers(name, media_type, tag))


def _part(request: Request, tag: str, size: int) -> range | None:
    """Return the part of a file that is asked for; a client that knows another file than ours gets all of it."""
    wanted = request.header(b"range")
    if wanted is None or request.method == "HEAD" or request.header(b"if-range") not in {None, tag}:
        return None
    return span(wanted, size)


def _file_headers(name: str, media_type: str, tag: str) -> tuple[tuple[str, str], ...]:
    """Return what makes a browser show a file or save it, and never run it."""
    shown, disposition = shown_as(name, media_type)
    return (
        ("content-type", shown),
        ("content-disposition", disposition),
        ("content-security-policy", "sandbox; default-src 'none'"),
        ("etag", tag),
        ("accept-ranges", "bytes"),
    )


def stream(request: Request, blob: Blob, part: range | None, more: tuple[tuple[str, str], ...]) -> Streaming:
    """Return an answer that sends an open blob, and closes it."""
    status, sent = (200, range(blob.size)) if part is None else (206, part)
    headers = [*SAFE, *request.extra, (b"x-request-id", request.id.encode()), (b"content-length", b"%d" % len(sent))]
    headers.extend((name.encode(), value.encode()) for name, value in more)
    if part is not None:
        headers.append((b"content-range", b"bytes %d-%d/%d" % (part.start, part.stop - 1, blob.size)))

    async def send_all(send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for at in range(sent.start, sent.stop, CHUNK) if request.method != "HEAD" else ():
            piece = asyncio.to_thread(_read, blob.file, at, min(CHUNK, sent.stop - at))
            await send({"type": _BODY, "body": await piece, "more_body": True})
            await send({"type": _BODY, "body": b"", "more_body": True})  # waits for the reader: only then read on
        await send({"type": _BODY, "body": b""})

    async def serve(send: Send) -> None:
        """Send until the end, or until the client is gone: whichever is first."""
        try:
            await request.unless_gone(send_all(send))
        finally:
            await _close(blob)

    return Streaming(serve, status)


async def opened(house: House, key: str, what: str) -> Blob:
    """Open a blob in a thread; whoever is canceled meanwhile leaves nothing open."""
    opening = asyncio.get_running_loop().run_in_executor(None, _open, house, key)
    try:
        return await asyncio.shield(opening)
    except FileNotFoundError:
        raise absent(what) from None
    except asyncio.CancelledError:
        opening.add_done_callback(_close_late)
        raise


def _open(house: House, key: str) -> Blob:
    file = house.blobs.open(key)
    try:
        return Blob(file, file.seek(0, os.SEEK_END))
    except BaseException:
        file.close()
        raise


def _read(file: IO[bytes], at: int, count: int) -> bytes:
    file.seek(at)
    piece = file.read(count)
    if len(piece) != count:
        raise EOFError("a blob has become shorter while it was sent")
    return piece


async def _close(blob: Blob) -> None:
    """Close in a thread: a read that nobody waits for any more may still go on, and is waited for there."""
    await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, blob.file.close))


def _tag(file: IO[bytes]) -> str:
    found = os.fstat(file.fileno())
    return f'"{found.st_mtime_ns:x}-{found.st_size:x}"'


def _close_late(opening: "asyncio.Future[Any]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().file.close()
