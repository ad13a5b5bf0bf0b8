"""Signed URLs of the local file storage: each allows one upload or download of one file until it expires.

The signature is the authorization: keys are neither required nor accepted instead. Uploads are streamed to disk, and a
minimum speed is required.
"""

import asyncio
import time
from collections.abc import AsyncIterator

from callsheet.blobs import object_keys
from callsheet.blobs.base import (
    BLOB_URL_PURPOSE,
    BlobAccess,
    BlobBusyError,
    BlobExistsError,
    BlobMismatchError,
    StorageFullError,
)
from callsheet.blobs.disposition import DEFAULT_MEDIA_TYPE, INLINE_MEDIA_TYPES
from callsheet.blobs.local import IncomingBlob, LocalBlobs
from callsheet.core.model.errors import Deleted
from callsheet.core.model.plural import pluralize
from callsheet.core.policy.admission import WorkClass
from callsheet.http.server.file_response import CHUNK, send_file
from callsheet.http.server.file_storage_errors import problem_of_storage
from callsheet.http.server.problems import Problem, not_found, problem_of
from callsheet.http.server.request import ClientDisconnected, Request
from callsheet.http.server.route import PUBLIC, Response, Route, StreamingResponse
from callsheet.http.state import AppState

_STEP_BYTES = 64 * 1024
"""Bytes that must arrive within `body_timeout_seconds`. Slower uploads would occupy connections."""


async def put_blob(state: AppState, request: Request) -> Response:
    try:
        await _receive_blob(state, request)
    except (BlobBusyError, BlobExistsError, BlobMismatchError, StorageFullError) as error:
        raise _close_after(problem_of_storage(error)) from None
    except Deleted as refusal:
        raise _close_after(problem_of(refusal)) from None
    except Problem as problem:
        raise _close_after(problem) from None
    return Response(None, 204)


async def _receive_blob(state: AppState, request: Request) -> None:
    payload, blobs = _verify_grant(state, request, "PUT")
    write_once = bool(payload.sha256)
    _check_head(request, payload, write_once=write_once)
    await _check_needed(state, payload.key)
    if write_once and await asyncio.to_thread(blobs.exists, payload.key):
        raise BlobExistsError
    incoming = await _open_incoming(blobs, payload.key, overwrite=not write_once)
    try:
        async for piece in _read_pieces(request, payload.size):
            await asyncio.to_thread(incoming.write, piece)
        declared = (payload.size, payload.sha256) if write_once else (None, None)
        await asyncio.to_thread(incoming.finish, *declared)
    finally:
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, incoming.discard))
    try:
        await _check_needed(state, payload.key)
    except Deleted:  # during the upload: the deletion did not find its bytes
        await asyncio.to_thread(blobs.delete, [payload.key])
        raise


async def _check_needed(state: AppState, key: str) -> None:
    if not await state.upload_targets.is_needed(key):
        raise Deleted(
            "file_gone", "This URL accepts no bytes any more: its file was deleted, or its attempt has ended."
        )


def _close_after(problem: Problem) -> Problem:
    """Close the connection after the response, so that a client that is still sending can read the error."""
    problem.headers = {**problem.headers, "connection": "close"}
    return problem


async def get_blob(state: AppState, request: Request) -> Response | StreamingResponse:
    payload, _ = _verify_grant(state, request, "GET")
    return await send_file(state, request, payload.key, payload.name, payload.media_type)


def _verify_grant(state: AppState, request: Request, method: str) -> tuple[BlobAccess, LocalBlobs]:
    payload = state.signer.read(BLOB_URL_PURPOSE, request.params["signed"], BlobAccess)
    if payload is None or payload.method != method or object_keys.parse_key(payload.key) is None:
        raise Problem(
            403, "invalid_signature", f"This URL was changed, or is not valid for {request.method}. Request a new one."
        )
    if payload.expires_at < time.time():
        raise Problem(403, "url_expired", "This URL has expired. Request a new one.")
    if not isinstance(state.blobs, LocalBlobs):
        raise not_found("file")
    return payload, state.blobs


def _check_head(request: Request, payload: BlobAccess, *, write_once: bool) -> None:
    """Check the headers before the body is read."""
    if request.header(b"content-encoding"):
        raise Problem(415, "unsupported_encoding", "Send the body without Content-Encoding.")
    if _normalize(request.header(b"content-type")) != _normalize(payload.media_type):
        raise Problem(422, "type_mismatch", f"This URL is valid for Content-Type: {payload.media_type}.")
    length = request.header(b"content-length")
    if length is None or not length.isdecimal():
        raise Problem(411, "length_required", "Send a Content-Length header.")
    if write_once and int(length) != payload.size:
        raise Problem(422, "size_mismatch", f"This URL is valid for {pluralize(payload.size, 'byte')}, not {length}.")
    if int(length) > payload.size:
        raise _too_large(payload.size)


def _normalize(media_type: str | None) -> str:
    return (media_type or "").lower().replace(" ", "")


def _too_large(bytes_max: int) -> Problem:
    return Problem(413, "body_too_large", f"The body is larger than {bytes_max} bytes, the limit of this URL.")


async def _open_incoming(blobs: LocalBlobs, key: str, *, overwrite: bool) -> IncomingBlob:
    """Open an upload in a thread. If the caller is canceled meanwhile, the upload is discarded."""
    opening = asyncio.get_running_loop().run_in_executor(None, lambda: blobs.incoming(key, overwrite=overwrite))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_discard_when_opened)
        raise


def _discard_when_opened(opening: "asyncio.Future[IncomingBlob]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().discard()


async def _read_pieces(request: Request, bytes_max: int) -> AsyncIterator[bytes]:
    """Yield a body as it arrives, up to a size and above the minimum speed."""
    buffer = bytearray()
    size, more = 0, True
    while more:
        piece, more = await _read_step(request)
        size += len(piece)
        if size > bytes_max:
            raise _too_large(bytes_max)
        buffer += piece
        if len(buffer) >= CHUNK or not more:
            yield bytes(buffer)
            buffer.clear()


async def _read_step(request: Request) -> tuple[bytes, bool]:
    received = bytearray()
    try:
        async with asyncio.timeout(request.body_timeout_seconds):
            while len(received) < _STEP_BYTES:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                received += message.get("body", b"")
                if not message.get("more_body"):
                    return bytes(received), False
    except TimeoutError:
        raise Problem(
            408,
            "body_timeout",
            f"Less than {_STEP_BYTES} bytes arrived within {pluralize(request.body_timeout_seconds, 'second')}. Upload "
            "the file again over a faster connection.",
        ) from None
    return bytes(received), True


_SIGNED = ("403 invalid_signature", "403 url_expired")
ROUTES = (
    Route("PUT", "/v1/blobs/{signed}", put_blob, PUBLIC, "Upload a file to a signed URL", status=204,
          work_class=WorkClass.ESSENTIAL,
          problems=(*_SIGNED, "404 file_not_found", "408 body_timeout", "410 file_gone", "411 length_required",
                    "412 already_uploaded", "413 body_too_large", "415 unsupported_encoding", "422 size_mismatch",
                    "422 digest_mismatch", "422 type_mismatch", "429 upload_in_progress",
                    "503 storage_unavailable", "507 storage_full"),
          details="Create an upload to get the URL, and send the returned headers unchanged. Content-Type, "
          "Content-Length and SHA-256 must be the declared ones. A file can be uploaded once, and by one "
          "request at a time. At least 64 KiB must arrive in every period of `body_timeout_seconds`. "
          "With S3, the signed URL leads to S3 instead."),
    Route("GET", "/v1/blobs/{signed}", get_blob, PUBLIC, "Download a file from a signed URL",
          work_class=WorkClass.ESSENTIAL,
          media_type=", ".join([DEFAULT_MEDIA_TYPE, *sorted(INLINE_MEDIA_TYPES)]), other_statuses=(206, 304),
          problems=(*_SIGNED, "404 file_not_found", "416 range_not_satisfiable"),
          request_headers=("If-None-Match", "Range", "If-Range"),
          response_headers=("Content-Disposition", "ETag", "Accept-Ranges", "Content-Range"),
          details="Workers get such URLs for their input files. With S3, the signed URL leads to S3 instead."),
)  # fmt: skip
