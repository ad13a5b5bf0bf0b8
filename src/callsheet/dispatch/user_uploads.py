"""Uploads of users: create them, and verify the bytes when they are finished."""

import asyncio
from weakref import WeakValueDictionary

from callsheet.api.files import Upload
from callsheet.blobs import object_keys
from callsheet.blobs.base import BlobError, BlobMismatchError, Blobs, verify_claim
from callsheet.core.model import commands, rows
from callsheet.core.model.clock import SECOND
from callsheet.core.model.errors import BadInput
from callsheet.core.policy.magic_bytes import HEAD_BYTES, matches_type
from callsheet.engine.engine import Engine


class Uploads:
    """Creates and finishes uploads."""

    def __init__(self, engine: Engine, blobs: Blobs, url_expires_in_seconds: int) -> None:
        self._engine = engine
        self._blobs = blobs
        self._url_expires_in_seconds = url_expires_in_seconds

    async def create(self, command: commands.CreateUpload) -> tuple[rows.File, Upload]:
        """Create a file that waits for its bytes, and return where to upload them."""
        file: rows.File = await self._engine.aexecute(command)
        seconds_left = ((file.expires_at or 0) - file.created_at) // SECOND
        try:
            grant = self._blobs.grant_upload(
                object_keys.file_key(file), size=file.bytes, sha256=file.sha256, media_type=file.media_type,
                expires_in_seconds=min(self._url_expires_in_seconds, seconds_left),
            )  # fmt: skip
        except BlobError:  # without a URL it can never be uploaded, but would count towards the user's limit
            await self._engine.aexecute(
                commands.DeleteFiles(tenant=file.tenant, file_ids=(file.id,), requested_by=command.requested_by)
            )
            raise
        return file, Upload(grant.method, grant.url, grant.headers, grant.expires_in_seconds)

    async def finish(self, file: rows.File, requested_by: str) -> rows.File:
        """Verify the uploaded bytes and make the file ready. Wrong bytes are deleted."""
        if file.status == "uploading":
            async with _finish_lock(file.id):
                error = await asyncio.to_thread(_check_bytes, self._blobs, file)
                if error is not None and await self._is_uploading(file.id):
                    await asyncio.to_thread(self._blobs.delete, [object_keys.file_key(file)])
                    raise error
        finished: rows.File = await self._engine.aexecute(
            commands.FinishUpload(tenant=file.tenant, file_id=file.id, requested_by=requested_by)
        )
        return finished

    async def _is_uploading(self, file_id: str) -> bool:
        found = await self._engine.reads.lookup("files_by_id", ids=[file_id])
        return any(rows.File(*row).status == "uploading" for row in found)


_finishing: "WeakValueDictionary[str, asyncio.Lock]" = WeakValueDictionary()


def _finish_lock(file_id: str) -> asyncio.Lock:
    """Return the lock of a file. Only one call at a time verifies it, so that no call deletes bytes of a later upload.

    Another server may verify it at the same time. So wrong bytes are deleted only while the file is uploading.
    """
    return _finishing.setdefault(file_id, asyncio.Lock())


def _check_bytes(blobs: Blobs, file: rows.File) -> BadInput | None:
    """Return what is wrong with the bytes, if anything."""
    key = object_keys.file_key(file)
    try:
        verify_claim(blobs, key, size=file.bytes, sha256=file.sha256)
        with blobs.open(key) as blob:
            head = blob.read(HEAD_BYTES)
    except FileNotFoundError:
        raise BadInput("file_not_uploaded", "The file has no bytes yet. Upload them, then finish the upload.") from None
    except BlobMismatchError as mismatch:
        if mismatch.field == "size":
            return BadInput("size_mismatch", f"{mismatch} The bytes were deleted. Upload the right ones.")
        return BadInput("digest_mismatch", f"{mismatch} The bytes were deleted. Upload the right ones.")
    if matches_type(file.media_type, head):
        return None
    return BadInput(
        "type_mismatch",
        f"The bytes are not {file.media_type} and were deleted. Create an upload with the right type.",
    )
