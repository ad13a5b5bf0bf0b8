"""Downloads: files by id, and preview images of running tasks.

Local files are streamed. For files in a bucket, the response redirects to a short-lived signed URL. The owner of a
deleted file gets 410, all others 404.
"""

import asyncio

from callsheet.blobs import object_keys
from callsheet.blobs.disposition import DEFAULT_MEDIA_TYPE, INLINE_MEDIA_TYPES
from callsheet.blobs.local import LocalBlobs
from callsheet.core.model.errors import Conflict, Deleted
from callsheet.dispatch.task_payloads import PREVIEW_BYTES_MAX
from callsheet.http.server.etag_and_range import etag_matches
from callsheet.http.server.file_response import open_blob, send_file, stream_blob
from callsheet.http.server.problems import not_found
from callsheet.http.server.request import Request
from callsheet.http.server.route import READERS_AND_USERS, Response, Route, StreamingResponse
from callsheet.http.state import AppState
from callsheet.queries.files import find_file
from callsheet.queries.job_parts import get_task


async def get_file(state: AppState, request: Request) -> Response | StreamingResponse:
    file = await find_file(state.queries, request.caller, request.params["file_id"])
    if file.status == "deleted":
        raise Deleted("file_gone", "This file was deleted, or its retention period has ended.")
    if file.status == "uploading":
        raise Conflict("file_not_finished", "This file is still uploading. Upload its bytes and call finish first.")
    tag = f'"{file.sha256}"'
    if isinstance(state.blobs, LocalBlobs) or request.method == "HEAD":  # a signed URL allows only GET
        return await send_file(state, request, object_keys.file_key(file), file.name, file.media_type, tag)
    if etag_matches(request.header(b"if-none-match"), tag):
        return Response(None, 304, (("etag", tag),))
    expires_in_seconds = state.settings.signed_url_expires_in_seconds
    grant = state.blobs.grant_download(
        object_keys.file_key(file), expires_in_seconds=expires_in_seconds, name=file.name, media_type=file.media_type
    )
    return Response(None, 307, (("location", grant.url), ("etag", tag)))


async def get_preview(state: AppState, request: Request) -> StreamingResponse:
    task = await get_task(state.queries, request.caller, request.params["job_id"], request.params["task_id"])
    blob = await open_blob(state, object_keys.preview_key(task.tenant, task.job_id, task.id, task.attempts), "preview")
    if blob.size > PREVIEW_BYTES_MAX:  # a signed upload to a bucket has no size limit
        await asyncio.to_thread(blob.file.close)
        raise not_found("preview")
    return stream_blob(request, blob, None, (("content-type", "image/png"), ("content-security-policy", "sandbox")))


_JOB = "404 job_not_found"
ROUTES = (
    Route("GET", "/v1/jobs/{job_id}/tasks/{task_id}/preview", get_preview, READERS_AND_USERS,
          "Get a task's latest preview image", media_type="image/png",
          problems=(_JOB, "404 task_not_found", "404 preview_not_found"), token_in_query=True,
          details="Returns the newest preview of the task's current attempt. `task.progressed` events announce new "
          "ones."),
    Route("GET", "/v1/files/{file_id}", get_file, READERS_AND_USERS, "Download a file",
          media_type=", ".join([DEFAULT_MEDIA_TYPE, *sorted(INLINE_MEDIA_TYPES)]), other_statuses=(206, 304, 307),
          problems=("404 file_not_found", "409 file_not_finished", "410 file_gone", "416 range_not_satisfiable",
                    "503 storage_unavailable"),
          request_headers=("If-None-Match", "Range", "If-Range"),
          response_headers=("Content-Disposition", "ETag", "Accept-Ranges", "Content-Range"), token_in_query=True,
          details="Returns the bytes of an uploaded file or of a job's output. The ETag is the file's SHA-256. A "
          "`Range` header with one range returns 206 with that part; with several ranges, the whole file. If the "
          "files are stored in S3, the response is 307: follow `Location`, a short-lived signed URL that needs no "
          "key."),
)  # fmt: skip
