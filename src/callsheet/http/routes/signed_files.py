"""Signed addresses of the local folder: who holds one may put or get one blob, until it ends.

The signature is the permission, so no key is asked for, and none is accepted in its place. A body goes to the disk
as it comes; it may take long, but it must move.
"""

import asyncio
import time
from collections.abc import AsyncIterator

from callsheet.blobs import object_keys
from callsheet.blobs.base import BLOB_URL_PURPOSE, BlobAccess, BlobExistsError, BlobMismatchError, StorageFullError
from callsheet.blobs.disposition import DEFAULT_MEDIA_TYPE, INLINE_MEDIA_TYPES
from callsheet.blobs.local import IncomingBlob, LocalBlobs
from callsheet.core.model.plural import pluralize
from callsheet.http.server.file_response import CHUNK, send_file
from callsheet.http.server.problems import Problem, not_found
from callsheet.http.server.request import ClientDisconnected, Request
from callsheet.http.server.router import PUBLIC, Response, Route, StreamingResponse
from callsheet.http.server.storage_errors import problem_of_storage
from callsheet.http.state import AppState

_STEP_BYTES = 64 * 1024
"""So much must arrive within `body_timeout_seconds`: who sends slower than that keeps a connection for nothing."""


async def put_blob(state: AppState, request: Request) -> Response:
    try:
        await _receive_blob(state, request)
    except (BlobExistsError, BlobMismatchError, StorageFullError) as error:
        raise _close_after(problem_of_storage(error)) from None
    except Problem as problem:
        raise _close_after(problem) from None
    return Response(None, 204)


async def _receive_blob(state: AppState, request: Request) -> None:
    payload, blobs = _verify_grant(state, request, "PUT")
    write_once = bool(payload.sha256)
    _check_head(request, payload, write_once=write_once)
    if write_once and await asyncio.to_thread(blobs.exists, payload.key):
        raise BlobExistsError
    incoming = await _open_incoming(blobs, payload.key, overwrite=not write_once)
    try:
        async for piece in _read_pieces(request, payload.size):
            await asyncio.to_thread(incoming.write, piece)
        claim = (payload.size, payload.sha256) if write_once else (None, None)
        await asyncio.to_thread(incoming.finish, *claim)
    finally:
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, incoming.discard))


def _close_after(problem: Problem) -> Problem:
    """Close behind an answer: whoever still sends a large body reads it first, and not that the line is dead."""
    problem.headers = {**problem.headers, "connection": "close"}
    return problem


async def get_blob(state: AppState, request: Request) -> Response | StreamingResponse:
    payload, _ = _verify_grant(state, request, "GET")
    return await send_file(state, request, payload.key, payload.name, payload.media_type)


def _verify_grant(state: AppState, request: Request, method: str) -> tuple[BlobAccess, LocalBlobs]:
    payload = state.signer.read(BLOB_URL_PURPOSE, request.params["signed"], BlobAccess)
    if payload is None or payload.method != method or object_keys.parse_key(payload.key) is None:
        raise Problem(403, "invalid_signature", f"This address was not made by us, or not for {request.method}.")
    if payload.expires_at < time.time():
        raise Problem(403, "url_expired", "This address has ended: ask for a new one.")
    if not isinstance(state.blobs, LocalBlobs):
        raise not_found("file")
    return payload, state.blobs


def _check_head(request: Request, payload: BlobAccess, *, write_once: bool) -> None:
    """Refuse what can be refused before a byte is read."""
    if request.header(b"content-encoding"):
        raise Problem(415, "unsupported_encoding", "Send the body without Content-Encoding.")
    if _normalize(request.header(b"content-type")) != _normalize(payload.media_type):
        raise Problem(422, "type_mismatch", f"This address was made for Content-Type: {payload.media_type}.")
    length = request.header(b"content-length")
    if length is None or not length.isdecimal():
        raise Problem(411, "length_required", "Say with Content-Length how many bytes will come.")
    if write_once and int(length) != payload.size:
        raise Problem(422, "size_mismatch", f"This address was made for {pluralize(payload.size, 'byte')}.")
    if int(length) > payload.size:
        raise _too_large(payload.size)


def _normalize(media_type: str | None) -> str:
    return (media_type or "").lower().replace(" ", "")


def _too_large(most: int) -> Problem:
    return Problem(413, "body_too_large", f"The body is larger than {most} bytes.")


async def _open_incoming(blobs: LocalBlobs, key: str, *, overwrite: bool) -> IncomingBlob:
    """Begin in a thread; whoever is canceled meanwhile leaves nothing behind."""
    beginning = asyncio.get_running_loop().run_in_executor(None, lambda: blobs.incoming(key, overwrite=overwrite))
    try:
        return await asyncio.shield(beginning)
    except asyncio.CancelledError:
        beginning.add_done_callback(_leave_when_opened)
        raise


def _leave_when_opened(beginning: "asyncio.Future[IncomingBlob]") -> None:
    if not beginning.cancelled() and beginning.exception() is None:
        beginning.result().discard()


async def _read_pieces(request: Request, most: int) -> AsyncIterator[bytes]:
    """Yield a body as it comes, up to a size, for as long as it moves."""
    buffer = bytearray()
    size, more = 0, True
    while more:
        piece, more = await _read_step(request)
        size += len(piece)
        if size > most:
            raise _too_large(most)
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
            f"Less than {_STEP_BYTES} bytes came within {pluralize(request.body_timeout_seconds, 'second')}.",
        ) from None
    return bytes(received), True


_SIGNED = ("403 invalid_signature", "403 url_expired")
ROUTES = (
    Route("PUT", "/v1/blobs/{signed}", put_blob, PUBLIC, "Send the bytes of a file to a signed address", status=204,
          problems=(*_SIGNED, "404 file_not_found", "408 body_timeout", "411 length_required", "412 already_uploaded",
                    "413 body_too_large", "415 unsupported_encoding", "422 size_mismatch", "422 digest_mismatch",
                    "422 type_mismatch", "503 storage_unavailable", "507 storage_full"),
          details="The address comes with a grant: send its headers, Content-Type and Content-Length, as they are. "
          "Length, type and SHA-256 are those that the grant was asked for, and a file is written once. It may take "
          "long, but must move: 64 KiB within `body_timeout_seconds`."),
    Route("GET", "/v1/blobs/{signed}", get_blob, PUBLIC, "Read a file by a signed address",
          media_type=", ".join([DEFAULT_MEDIA_TYPE, *sorted(INLINE_MEDIA_TYPES)]), other_statuses=(206, 304),
          problems=(*_SIGNED, "404 file_not_found", "416 range_not_satisfiable"),
          request_headers=("If-None-Match", "Range", "If-Range"),
          response_headers=("Content-Disposition", "ETag", "Accept-Ranges", "Content-Range")),
)  # fmt: skip
