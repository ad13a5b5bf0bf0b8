"""Files by their ids: what people brought and what jobs made, and previews of what they are making.

Bytes in the local folder are sent from here, piece by piece; those in a bucket are fetched there, by an address that
is signed for a short while. What was dropped says so to its owner (410): a link that worked yesterday is not a
mistake in the link. To everybody else it looks as absent as any file that is not theirs.
"""

import asyncio

from callsheet.blobs import keys
from callsheet.blobs.local import LocalBlobs
from callsheet.blobs.showing import PLAIN, SHOWN
from callsheet.core import rows
from callsheet.http.auth import Who
from callsheet.http.conditions import matches
from callsheet.http.handing import PREVIEW_BYTES_MAX
from callsheet.http.house import House
from callsheet.http.jobs import job_row
from callsheet.http.problem import Problem, absent
from callsheet.http.request import Request
from callsheet.http.route import WATCHERS, Answer, Route, Streaming
from callsheet.http.sending import opened, send_file, stream


async def file_row(house: House, request: Request) -> rows.File:
    """Return the file that a path names, if the caller may see it."""
    who: Who = request.who
    found = await house.reads.fetch("file_of_tenant", id=request.params["file_id"], tenant=who.tenant)
    file = rows.File(*found[0]) if found else None
    if file is None or who.user not in {None, file.user_id}:
        raise absent("file")
    return file


async def get_file(house: House, request: Request) -> Answer | Streaming:
    file = await file_row(house, request)
    if file.status == "dropped":
        raise Problem(410, "file_gone", "This file was deleted, or is not kept any longer.")
    if file.status == "awaited":
        raise Problem(409, "file_not_finished", "The bytes of this file have not been put and finished yet.")
    tag = f'"{file.sha256}"'
    if isinstance(house.blobs, LocalBlobs) or request.method == "HEAD":  # a signed address is for GET alone
        return await send_file(house, request, keys.of(file), file.name, file.media_type, tag)
    if matches(request.header(b"if-none-match"), tag):
        return Answer(None, 304, (("etag", tag),))
    seconds = house.settings.url_seconds
    grant = house.blobs.grant_get(keys.of(file), seconds=seconds, name=file.name, media_type=file.media_type)
    return Answer(None, 307, (("location", grant.url), ("etag", tag)))


async def get_preview(house: House, request: Request) -> Streaming:
    job = await job_row(house, request)
    found = await house.reads.fetch("task_of_job", id=request.params["task_id"], job=job.id)
    if not found:
        raise absent("task")
    task = rows.Task(*found[0])
    blob = await opened(house, keys.preview(task.tenant, task.job_id, task.id, task.attempts), "preview")
    if blob.size > PREVIEW_BYTES_MAX:  # the folder takes none that large, but no signed PUT of a bucket has a limit
        await asyncio.to_thread(blob.file.close)
        raise absent("preview")
    return stream(request, blob, None, (("content-type", "image/png"), ("content-security-policy", "sandbox")))


_JOB = "404 job_not_found"
ROUTES = (
    Route("GET", "/v1/jobs/{job_id}/tasks/{task_id}/preview", get_preview, WATCHERS,
          "The newest preview picture of a running task", media_type="image/png",
          problems=(_JOB, "404 task_not_found", "404 preview_not_found"), token_in_query=True),
    Route("GET", "/v1/files/{file_id}", get_file, WATCHERS, "Download a file",
          media_type=", ".join([PLAIN, *sorted(SHOWN)]), also=(206, 304, 307),
          problems=("404 file_not_found", "409 file_not_finished", "410 file_gone", "416 range_not_satisfiable",
                    "503 storage_unavailable"),
          reads=("If-None-Match", "Range", "If-Range"),
          sets=("Content-Disposition", "ETag", "Accept-Ranges", "Content-Range"), token_in_query=True,
          details="Brought by a person or made by a job. The ETag is the file's SHA-256. A Range is answered with 206 "
          "and that part, several with the whole; If-Range makes sure that the part is of the file you know. Where "
          "files are kept in a bucket the answer is 307: the bytes are at its Location, which is signed for a short "
          "while and takes no key."),
)  # fmt: skip
