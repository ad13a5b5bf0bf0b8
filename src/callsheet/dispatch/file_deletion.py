"""Removing bytes after what they belong to has been deleted; what the storage does not do now is done later."""

import asyncio
from collections.abc import Callable

from callsheet.api.files import DeleteSummary
from callsheet.blobs import base
from callsheet.http.server.request import Request
from callsheet.http.state import AppState


async def delete_blobs(state: AppState, request: Request, remove: Callable[[], base.DeleteSummary]) -> DeleteSummary:
    """Remove bytes whose rows are gone already; if that fails it is told, and the collector of orphans does it."""
    try:
        done = await asyncio.to_thread(remove)
    except (base.BlobError, OSError) as error:
        state.report_error(request.id, error)
        return DeleteSummary(0, 0, pending=True)
    return DeleteSummary(done.files, done.bytes)
