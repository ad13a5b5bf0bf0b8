"""Files that people bring: announced, put where the grant says, looked at, listed, deleted."""

import asyncio
from weakref import WeakValueDictionary

from callsheet.api.base import LAST_ID
from callsheet.api.files import DeleteSummary, File, FileBody, FilePage, FilesQuery, NewFile, Upload
from callsheet.blobs import object_keys
from callsheet.blobs.base import BlobError, BlobMismatchError, Blobs, verify_claim
from callsheet.core.model import commands, rows
from callsheet.core.model.clock import SECOND
from callsheet.core.policy.magic_bytes import HEAD_BYTES, matches_type
from callsheet.http.auth.authenticator import Caller
from callsheet.http.openapi.error_codes import VALUES
from callsheet.http.routes.file_content import file_row
from callsheet.http.server.pagination import (
    decode_cursor,
    encode_cursor,
    parse_list_query,
    row_count,
    split_page,
)
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.router import READERS_AND_USERS, WRITERS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import render

# -- handlers


async def create_upload(state: AppState, request: Request) -> Response:
    caller: Caller = request.caller
    body: FileBody = request.content
    file: rows.File = await state.engine.aexecute(
        commands.CreateUpload(
            tenant=caller.tenant, user=body.user, name=body.name, media_type=body.media_type, bytes=body.bytes,
            sha256=body.sha256, by=caller.id,
        )
    )  # fmt: skip
    seconds_left = ((file.expires_at or 0) - file.created_at) // SECOND
    try:
        grant = state.blobs.grant_upload(
            object_keys.file_key(file), size=file.bytes, sha256=file.sha256, media_type=file.media_type,
            expires_in_seconds=min(state.settings.signed_url_expires_in_seconds, seconds_left),
        )  # fmt: skip
    except BlobError:  # nobody can put it, and it would count among the user's for a day
        await state.engine.aexecute(commands.DeleteFiles(tenant=file.tenant, file_ids=(file.id,), by=caller.id))
        raise
    upload = Upload(grant.method, grant.url, grant.headers, grant.expires_in_seconds)
    return Response(NewFile(render.file_view(file), upload), 201, (("location", f"/v1/files/{file.id}/info"),))


async def finish_upload(state: AppState, request: Request) -> Response:
    file = await file_row(state, request)
    if file.status == "uploading":
        async with _finish_lock(file.id):
            problem = await asyncio.to_thread(_check_bytes, state.blobs, file)
            if problem is not None and (await file_row(state, request)).status == "uploading":
                await asyncio.to_thread(state.blobs.delete, [object_keys.file_key(file)])
                raise problem
    done = await state.engine.aexecute(commands.FinishUpload(tenant=file.tenant, file_id=file.id, by=request.caller.id))
    return Response(render.file_view(done))


async def get_file_info(state: AppState, request: Request) -> Response:
    return Response(render.file_view(await file_row(state, request)))


async def list_files(state: AppState, request: Request) -> Response:
    query = parse_list_query(state, request, FilesQuery)
    caller: Caller = request.caller
    user = caller.user or query.user
    if not user:
        raise Problem(422, "invalid_query", "Say whose files: user=….")
    whose = f"{caller.tenant}/{user}"
    before = decode_cursor(state, "files", whose, query.cursor, str) if query.cursor else LAST_ID
    found = await state.reads.scan(
        "files_uploaded", tenant=caller.tenant, user=user, before=before, count=row_count(state, query.limit)
    )
    page, more = split_page(found, query.limit)
    files = [rows.File(*row) for row in page]
    cursor = encode_cursor(state, "files", whose, files[-1].id) if more else None
    return Response(FilePage([render.file_view(file) for file in files], cursor))


async def delete_file(state: AppState, request: Request) -> Response:
    caller: Caller = request.caller
    command = commands.DeleteFiles(tenant=caller.tenant, file_ids=(request.params["file_id"],), by=caller.id)
    return Response(
        await state.file_deletion.delete_files(command, lambda error: state.report_error(request.id, error))
    )


# -- steps


_finishing: "WeakValueDictionary[str, asyncio.Lock]" = WeakValueDictionary()


def _finish_lock(file_id: str) -> asyncio.Lock:
    """Let one at a time look at a file: what one finds wrong, and takes away, another may just have put right.

    On another server somebody may look meanwhile. So what is wrong is taken away only if the file is still uploading:
    the right bytes of one that was finished there stay.
    """
    return _finishing.setdefault(file_id, asyncio.Lock())


def _check_bytes(blobs: Blobs, file: rows.File) -> Problem | None:
    """Return what is wrong with the bytes, if anything: then they go, so that the right ones can be put."""
    key = object_keys.file_key(file)
    try:
        verify_claim(blobs, key, size=file.bytes, sha256=file.sha256)
        with blobs.open(key) as blob:
            head = blob.read(HEAD_BYTES)
    except FileNotFoundError:
        raise Problem(422, "file_not_uploaded", "There are no bytes yet: put them, then finish.") from None
    except BlobMismatchError as mismatch:
        if mismatch.field == "size":
            return Problem(422, "size_mismatch", f"{mismatch} They were removed: put the right ones.")
        return Problem(422, "digest_mismatch", f"{mismatch} The bytes were removed: put the right ones.")
    if matches_type(file.media_type, head):
        return None
    return Problem(
        422, "type_mismatch", f"The bytes are not {file.media_type}. They were removed: announce what they are."
    )


_FILE = "404 file_not_found"
_AWAY = "503 storage_unavailable"
ROUTES = (
    Route("POST", "/v1/files", create_upload, WRITERS, "Announce a file and get an address for its bytes", NewFile,
          FileBody, status=201, response_headers=("Location",),
          problems=("404 tenant_not_found", "413 file_too_large", "422 invalid_file", "422 invalid_user", *VALUES,
                    "429 too_many_uploads", _AWAY),
          details="Then send the bytes as `upload` says, and finish the file. `url` may be an address of this server: "
          "it begins with a slash. It takes these very bytes, once, and no key. Announcing again makes another file; "
          "one whose bytes do not come within `upload_timeout_seconds` is deleted."),
    Route("POST", "/v1/files/{file_id}/finish", finish_upload, WRITERS, "Finish a file: say that its bytes are there",
          File,
          problems=(_FILE, "422 file_not_uploaded", "422 size_mismatch", "422 digest_mismatch", "422 type_mismatch",
          _AWAY),
          details="Size and SHA-256 are compared with what was announced, and the media type with the first bytes. "
          "Wrong bytes are removed. A file that is ready is answered as it is."),
    Route("GET", "/v1/files", list_files, READERS_AND_USERS, "List the files that a user brought, newest first",
        FilePage,
          query=FilesQuery, problems=("422 invalid_cursor",)),
    Route("GET", "/v1/files/{file_id}/info", get_file_info, READERS_AND_USERS, "Get what is known of a file",
        File,
          problems=(_FILE,)),
    Route("DELETE", "/v1/files/{file_id}", delete_file, WRITERS, "Delete a file", DeleteSummary,
          problems=(_FILE, "409 file_in_use"),
          details="One that a job needs which has not ended stays, and so does one that a workflow names. Its record "
          "stays as `deleted`."),
)  # fmt: skip
