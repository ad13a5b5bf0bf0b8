"""Files that people bring: announced, put where the grant says, looked at, listed, deleted."""

import asyncio
from weakref import WeakValueDictionary

from msgspec import Struct

from callsheet.blobs import keys
from callsheet.blobs.base import BlobError, Blobs, NotAsClaimed, check_claim
from callsheet.core import commands, rows
from callsheet.core.clock import SECOND
from callsheet.core.files import Dropped
from callsheet.core.sniff import HEAD_BYTES, agrees
from callsheet.http import views
from callsheet.http.auth import Who
from callsheet.http.codes import VALUES
from callsheet.http.files import file_row
from callsheet.http.freeing import Freed, freed
from callsheet.http.house import House
from callsheet.http.paging import LAST_ID, cursor_of, limited, listed, paged, place_of
from callsheet.http.problem import Problem
from callsheet.http.request import Request
from callsheet.http.route import WATCHERS, WRITERS, Answer, Route


class FileBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What a file will be."""

    user: str
    name: str
    media_type: str
    bytes: int
    sha256: str


class Upload(Struct, frozen=True):
    """How to put the bytes: one request, with these headers as they are, within its time."""

    method: str
    url: str
    headers: dict[str, str]
    expires_in_seconds: int


class NewFile(Struct, frozen=True):
    """An announced file, and how to put its bytes."""

    file: views.File
    upload: Upload


class FilesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose files to list; newest first."""

    user: str = ""
    limit: int = 50
    cursor: str = ""


class FilePage(Struct, frozen=True):
    """Files that a user brought, newest first, and where to go on."""

    files: list[views.File]
    next: str | None


# -- handlers


async def announce_file(house: House, request: Request) -> Answer:
    who: Who = request.who
    body: FileBody = request.content
    file: rows.File = await house.engine.aexecute(
        commands.AskUpload(
            tenant=who.tenant, user=body.user, name=body.name, media_type=body.media_type, bytes=body.bytes,
            sha256=body.sha256, by=who.id,
        )
    )  # fmt: skip
    lasting = ((file.keep_until or 0) - file.created_at) // SECOND
    try:
        grant = house.blobs.grant_put(
            keys.of(file), size=file.bytes, sha256=file.sha256, media_type=file.media_type,
            seconds=min(house.settings.url_seconds, lasting),
        )  # fmt: skip
    except BlobError:  # nobody can put it, and it would count among the user's for a day
        await house.engine.aexecute(commands.DropFiles(tenant=file.tenant, file_ids=(file.id,), by=who.id))
        raise
    upload = Upload(grant.method, grant.url, grant.headers, grant.seconds)
    return Answer(NewFile(views.file_view(file), upload), 201, (("location", f"/v1/files/{file.id}/info"),))


async def finish_file(house: House, request: Request) -> Answer:
    file = await file_row(house, request)
    if file.status == "awaited":
        async with _alone(file.id):
            wrong = await asyncio.to_thread(_look, house.blobs, file)
            if wrong is not None and (await file_row(house, request)).status == "awaited":
                await asyncio.to_thread(house.blobs.delete, [keys.of(file)])
                raise wrong
    done = await house.engine.aexecute(commands.FinishUpload(tenant=file.tenant, file_id=file.id, by=request.who.id))
    return Answer(views.file_view(done))


async def get_file_info(house: House, request: Request) -> Answer:
    return Answer(views.file_view(await file_row(house, request)))


async def list_files(house: House, request: Request) -> Answer:
    query = listed(house, request, FilesQuery)
    who: Who = request.who
    user = who.user or query.user
    if not user:
        raise Problem(422, "invalid_query", "Say whose files: user=….")
    whose = f"{who.tenant}/{user}"
    before = place_of(house, "files", whose, query.cursor, str) if query.cursor else LAST_ID
    found = await house.scans.fetch(
        "files_brought", tenant=who.tenant, user=user, before=before, count=limited(house, query.limit)
    )
    page, more = paged(found, query.limit)
    files = [rows.File(*row) for row in page]
    cursor = cursor_of(house, "files", whose, files[-1].id) if more else None
    return Answer(FilePage([views.file_view(file) for file in files], cursor))


async def delete_file(house: House, request: Request) -> Answer:
    who: Who = request.who
    command = commands.DropFiles(tenant=who.tenant, file_ids=(request.params["file_id"],), by=who.id)
    dropped: Dropped = await house.engine.aexecute(command)
    gone = [keys.of(file) for file in dropped.files]
    return Answer(await freed(house, request, lambda: house.blobs.delete(gone)))


# -- steps


_finishing: "WeakValueDictionary[str, asyncio.Lock]" = WeakValueDictionary()


def _alone(file_id: str) -> asyncio.Lock:
    """Let one at a time look at a file: what one finds wrong, and takes away, another may just have put right.

    On another server somebody may look meanwhile. So what is wrong is taken away only if the file is still awaited:
    the right bytes of one that was finished there stay.
    """
    return _finishing.setdefault(file_id, asyncio.Lock())


def _look(blobs: Blobs, file: rows.File) -> Problem | None:
    """Return what is wrong with the bytes, if anything: then they go, so that the right ones can be put."""
    key = keys.of(file)
    try:
        check_claim(blobs, key, size=file.bytes, sha256=file.sha256)
        with blobs.open(key) as blob:
            head = blob.read(HEAD_BYTES)
    except FileNotFoundError:
        raise Problem(422, "file_not_put", "There are no bytes yet: put them, then finish.") from None
    except NotAsClaimed as lie:
        if lie.what == "size":
            return Problem(422, "size_mismatch", f"{lie} They were removed: put the right ones.")
        return Problem(422, "digest_mismatch", f"{lie} The bytes were removed: put the right ones.")
    if agrees(file.media_type, head):
        return None
    return Problem(
        422, "type_mismatch", f"The bytes are not {file.media_type}. They were removed: announce what they are."
    )


_FILE = "404 file_not_found"
_AWAY = "503 storage_unavailable"
ROUTES = (
    Route("POST", "/v1/files", announce_file, WRITERS, "Announce a file and get an address for its bytes", NewFile,
          FileBody, status=201, sets=("Location",),
          problems=("404 tenant_not_found", "413 file_too_large", "422 invalid_file", "422 invalid_user", *VALUES,
                    "429 too_many_uploads", _AWAY),
          details="Then send the bytes as `upload` says, and finish the file. `url` may be an address of this server: "
          "it begins with a slash. It takes these very bytes, once, and no key. Announcing again makes another file; "
          "one whose bytes do not come within `upload_seconds_max` is dropped."),
    Route("POST", "/v1/files/{file_id}/finish", finish_file, WRITERS, "Finish a file: say that its bytes are there",
          views.File,
          problems=(_FILE, "422 file_not_put", "422 size_mismatch", "422 digest_mismatch", "422 type_mismatch", _AWAY),
          details="Size and SHA-256 are compared with what was announced, and the media type with the first bytes. "
          "Wrong bytes are removed. A file that is ready is answered as it is."),
    Route("GET", "/v1/files", list_files, WATCHERS, "List the files that a user brought, newest first", FilePage,
          query=FilesQuery, problems=("422 invalid_cursor",)),
    Route("GET", "/v1/files/{file_id}/info", get_file_info, WATCHERS, "Get what is known of a file", views.File,
          problems=(_FILE,)),
    Route("DELETE", "/v1/files/{file_id}", delete_file, WRITERS, "Delete a file", Freed,
          problems=(_FILE, "409 file_in_use"),
          details="One that a job needs which has not ended stays, and so does one that a workflow names. Its record "
          "stays as `dropped`."),
)  # fmt: skip
