"""Removing bytes after what they belong to has been deleted; what the storage does not do now is done later."""

import asyncio
from collections.abc import Callable

from msgspec import Struct

from callsheet.blobs import base
from callsheet.http.house import House
from callsheet.http.request import Request


class Freed(Struct, frozen=True):
    """What a deletion freed."""

    files: int
    bytes: int
    pending: bool = False


async def freed(house: House, request: Request, remove: Callable[[], base.Freed]) -> Freed:
    """Remove bytes whose rows are gone already; if that fails it is told, and the collector of orphans does it."""
    try:
        done = await asyncio.to_thread(remove)
    except (base.BlobError, OSError) as error:
        house.fault(request.id, error)
        return Freed(0, 0, pending=True)
    return Freed(done.files, done.bytes)
