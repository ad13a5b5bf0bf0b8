"""Files as a caller sees them."""

from callsheet.api.files import File, FilePage, FilesQuery
from callsheet.api.shared_fields import LAST_ID
from callsheet.core.model import rows
from callsheet.core.model.errors import BadInput, NotFound
from callsheet.core.policy.visibility import Viewer, may_see_file
from callsheet.queries import render
from callsheet.queries.context import QueryContext
from callsheet.queries.pages import decode_cursor, encode_cursor, row_count, split_page


async def find_file(context: QueryContext, viewer: Viewer, file_id: str) -> rows.File:
    """Return the row of a file that the viewer may see."""
    found = await context.reads.lookup("file_of_tenant", id=file_id, tenant=viewer.tenant)
    file = rows.File(*found[0]) if found else None
    if file is None or not may_see_file(viewer, file):
        raise NotFound("file", file_id[:80])
    return file


async def get_file(context: QueryContext, viewer: Viewer, file_id: str) -> File:
    """Return the metadata of a file."""
    return render.file_view(await find_file(context, viewer, file_id))


async def list_files(context: QueryContext, viewer: Viewer, query: FilesQuery) -> FilePage:
    """Return a page of the files that a user uploaded, newest first."""
    user = viewer.user or query.user
    if not user:
        raise BadInput(
            "invalid_query",
            "The query parameter `user` is missing. Send the id of the user whose files you want to list.",
        )
    owner = f"{viewer.tenant}/{user}"
    before = decode_cursor(context, "files", owner, query.cursor, str) if query.cursor else LAST_ID
    found = await context.reads.scan(
        "files_uploaded", tenant=viewer.tenant, user=user, before=before, count=row_count(context, query.limit)
    )
    page, more = split_page(found, query.limit)
    files = [rows.File(*row) for row in page]
    cursor = encode_cursor(context, "files", owner, files[-1].id) if more else None
    return FilePage([render.file_view(file) for file in files], cursor)
