"""Files that people bring: announced, put where the grant says, looked at, listed, deleted."""

from callsheet.api.files import DeleteSummary, File, FileBody, FilePage, FilesQuery, NewFile
from callsheet.core.model import commands
from callsheet.http.auth.authenticator import Caller
from callsheet.http.openapi.error_codes import VALUES
from callsheet.http.server.pagination import parse_list_query
from callsheet.http.server.request import Request
from callsheet.http.server.router import READERS_AND_USERS, WRITERS, Response, Route
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
