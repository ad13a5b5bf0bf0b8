"""Files: what jobs made, and previews of what they are making, sent piece by piece."""

import asyncio
import os
from contextlib import AsyncExitStack
from typing import IO, Any, NamedTuple

from callsheet.blobs.local import Place
from callsheet.core import rows
from callsheet.http.auth import Who
from callsheet.http.conditions import matches, span
from callsheet.http.house import House
from callsheet.http.jobs import job_row
from callsheet.http.problem import absent
from callsheet.http.request import SAFE, Request, Send
from callsheet.http.route import WATCHERS, Answer, Route, Streaming

CHUNK = 256 * 1024
"""What one reader of a file takes of our memory."""
_SHOWN = {"image/png", "image/jpeg", "image/webp", "audio/wav", "audio/mpeg", "video/mp4", "video/webm"}
"""What a browser may show from here; anything else is handed over as a download."""
_PLAIN = "application/octet-stream"
_BODY = "http.response.body"


class Blob(NamedTuple):
    """An open file and how much is in it."""

    file: IO[bytes]
    size: int


async def get_file(house: House, request: Request) -> Answer | Streaming:
    who: Who = request.who
    found = await house.reads.fetch("file_of_tenant", id=request.params["file_id"], tenant=who.tenant)
    if not found:
        raise absent("file")
    file = rows.File(*found[0])
    request.params["job_id"] = file.job_id
    await job_row(house, request)
    tag = f'"{file.sha256}"'
    place = Place(file.tenant, file.job_id, file.task_id, file.attempt, f"{file.no}")
    async with AsyncExitStack() as stack:
        blob = await _opened(house, place, "file")
        stack.push_async_callback(_close, blob)
        if matches(request.header(b"if-none-match"), tag):
            return Answer(None, 304, (("etag", tag),))
        part = _part(request, tag, blob.size)
        stack.pop_all()  # from here on, sending closes it
        return _stream(request, blob, part, _file_headers(file, tag))


async def get_preview(house: House, request: Request) -> Streaming:
    job = await job_row(house, request)
    found = await house.reads.fetch("task_of_job", id=request.params["task_id"], job=job.id)
    if not found:
        raise absent("task")
    task = rows.Task(*found[0])
    blob = await _opened(house, Place(task.tenant, task.job_id, task.id, task.attempts, "preview"), "preview")
    return _stream(request, blob, None, (("content-type", "image/png"), ("content-security-policy", "sandbox")))


def _part(request: Request, tag: str, size: int) -> range | None:
    """Return the part of a file that is asked for; a client that knows another file than ours gets all of it."""
    wanted = request.header(b"range")
    if wanted is None or request.method == "HEAD" or request.header(b"if-range") not in {None, tag}:
        return None
    return span(wanted, size)


def _file_headers(file: rows.File, tag: str) -> tuple[tuple[str, str], ...]:
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in file.name if c.isascii()) or "file"
    how, media_type = ("inline", file.media_type) if file.media_type in _SHOWN else ("attachment", _PLAIN)
    return (
        ("content-type", media_type),
        ("content-disposition", f'{how}; filename="{name}"'),
        ("content-security-policy", "sandbox; default-src 'none'"),
        ("etag", tag),
        ("accept-ranges", "bytes"),
    )


# -- sending


def _stream(request: Request, blob: Blob, part: range | None, more: tuple[tuple[str, str], ...]) -> Streaming:
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


async def _opened(house: House, place: Place, what: str) -> Blob:
    """Open a blob in a thread; whoever is canceled meanwhile leaves nothing open."""
    opening = asyncio.get_running_loop().run_in_executor(None, _open, house, place)
    try:
        return await asyncio.shield(opening)
    except FileNotFoundError:
        raise absent(what) from None
    except asyncio.CancelledError:
        opening.add_done_callback(_close_late)
        raise


def _open(house: House, place: Place) -> Blob:
    file = house.blobs.open(place)
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


def _close_late(opening: "asyncio.Future[Any]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().file.close()


_JOB = "404 job_not_found"
ROUTES = (
    Route("GET", "/v1/jobs/{job_id}/tasks/{task_id}/preview", get_preview, WATCHERS,
          "The newest preview picture of a running task", media_type="image/png",
          problems=(_JOB, "404 task_not_found", "404 preview_not_found"), token_in_query=True),
    Route("GET", "/v1/files/{file_id}", get_file, WATCHERS, "Download a file",
          media_type=", ".join([_PLAIN, *sorted(_SHOWN)]), also=(206, 304),
          problems=("404 file_not_found", _JOB, "416 range_not_satisfiable"),
          reads=("If-None-Match", "Range", "If-Range"),
          sets=("Content-Disposition", "ETag", "Accept-Ranges", "Content-Range"), token_in_query=True,
          details="The ETag is the file's SHA-256. A Range is answered with 206 and that part, several with the whole; "
          "If-Range makes sure that the part is of the file you know."),
)  # fmt: skip
