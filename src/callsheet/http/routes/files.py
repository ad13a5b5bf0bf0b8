"""Routes for uploaded files: create an upload, finish it, list, get and delete files."""

from callsheet.api.files import DeleteSummary, File, FileBody, FilePage, FilesQuery, NewFile
from callsheet.core.model import commands
from callsheet.core.policy.admission import WorkClass
from callsheet.http.auth.authenticator import Caller
from callsheet.http.openapi.error_codes import VALUES
from callsheet.http.server.list_query import parse_list_query
from callsheet.http.server.request import Request
from callsheet.http.server.route import READERS_AND_USERS, WRITERS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import files
from callsheet.queries.render import file_view


async def create_upload(state: AppState, request: Request) -> Response:
    caller: Caller = request.caller
    body: FileBody = request.content
    file, upload = await state.uploads.create(
        commands.CreateUpload(
            tenant=caller.tenant, user=body.user, name=body.name, media_type=body.media_type, bytes=body.bytes,
            sha256=body.sha256, requested_by=caller.id,
        )
    )  # fmt: skip
    return Response(NewFile(file_view(file), upload), 201, (("location", f"/v1/files/{file.id}/info"),))


async def finish_upload(state: AppState, request: Request) -> Response:
    file = await files.find_file(state.queries, request.caller, request.params["file_id"])
    return Response(file_view(await state.uploads.finish(file, request.caller.id)))


async def get_file_info(state: AppState, request: Request) -> Response:
    return Response(await files.get_file(state.queries, request.caller, request.params["file_id"]))


async def list_files(state: AppState, request: Request) -> Response:
    return Response(await files.list_files(state.queries, request.caller, parse_list_query(state, request, FilesQuery)))


async def delete_file(state: AppState, request: Request) -> Response:
    caller: Caller = request.caller
    command = commands.DeleteFiles(tenant=caller.tenant, file_ids=(request.params["file_id"],), requested_by=caller.id)
    return Response(
        await state.file_deletion.delete_files(command, lambda error: state.report_error(request.id, error))
    )


_FILE = "404 file_not_found"
_STORAGE = "503 storage_unavailable"
ROUTES = (
    Route("POST", "/v1/files", create_upload, WRITERS, "Create an upload", NewFile,
          FileBody, status=201, response_headers=("Location",),
          problems=("404 tenant_not_found", "413 file_too_large", "422 invalid_file", "422 invalid_user", *VALUES,
                    "409 storage_quota_exceeded", "429 too_many_uploads", "429 too_many_pending_bytes", _STORAGE),
          details="Returns a file in the status `uploading` and a signed URL. Send the bytes to `upload.url` with "
          "`upload.method` and `upload.headers`, then finish the upload. The URL needs no key and accepts only the "
          "declared bytes, once. If it starts with a slash, it is on this server. Each request creates another "
          "file. An upload that is not finished within `upload_timeout_seconds` is deleted."),
    Route("POST", "/v1/files/{file_id}/finish", finish_upload, WRITERS, "Finish an upload", File,
          work_class=WorkClass.ESSENTIAL,
          problems=(_FILE, "422 file_not_uploaded", "422 size_mismatch", "422 digest_mismatch", "422 type_mismatch",
          _STORAGE),
          details="The server compares the size and SHA-256 with the declared ones, and the media type with the "
          "first bytes. If one differs, it deletes the bytes: upload the right ones, or create another upload with "
          "the right type. Finishing a ready file has no effect."),
    Route("GET", "/v1/files", list_files, READERS_AND_USERS, "List a user's uploaded files", FilePage,
          query=FilesQuery, problems=("422 invalid_cursor",),
          details="Newest first. Output files of jobs are not included."),
    Route("GET", "/v1/files/{file_id}/info", get_file_info, READERS_AND_USERS, "Get a file's metadata", File,
          problems=(_FILE,), details="Works for uploads and outputs, also after they were deleted."),
    Route("DELETE", "/v1/files/{file_id}", delete_file, WRITERS, "Delete a file", DeleteSummary,
          problems=(_FILE, "409 file_in_use"),
          details="A file that an unfinished job or a workflow uses cannot be deleted. The bytes are deleted; the "
          "metadata remains with the status `deleted`."),
)  # fmt: skip
