"""Signed addresses of the local folder: who holds one may put or get one blob, until it ends.

The signature is the permission, so no key is asked for, and none is accepted in its place. A body goes to the disk
as it comes; it may take long, but it must move.
"""

import asyncio
import time
from collections.abc import AsyncIterator

from callsheet.blobs import keys
from callsheet.blobs.base import PURPOSE, AlreadyPut, BlobFact, NotAsClaimed, StorageFull
from callsheet.blobs.local import Incoming, LocalBlobs
from callsheet.blobs.showing import PLAIN, SHOWN
from callsheet.core.counting import counted
from callsheet.http.house import House
from callsheet.http.problem import Problem, absent
from callsheet.http.request import Gone, Request
from callsheet.http.route import ANYBODY, Answer, Route, Streaming
from callsheet.http.sending import CHUNK, send_file
from callsheet.http.storage import problem_of_storage

_STEP = 64 * 1024
"""So much must arrive within `body_seconds`: who sends slower than that keeps a connection for nothing."""


async def put_blob(house: House, request: Request) -> Answer:
    try:
        await _put(house, request)
    except (AlreadyPut, NotAsClaimed, StorageFull) as error:
        raise _last(problem_of_storage(error)) from None
    except Problem as problem:
        raise _last(problem) from None
    return Answer(None, 204)


async def _put(house: House, request: Request) -> None:
    fact, blobs = _granted(house, request, "PUT")
    once = bool(fact.sha256)
    _check_head(request, fact, once=once)
    if once and await asyncio.to_thread(blobs.has, fact.key):
        raise AlreadyPut
    incoming = await _begun(blobs, fact.key, over=not once)
    try:
        async for piece in _pieces(request, fact.size):
            await asyncio.to_thread(incoming.write, piece)
        claim = (fact.size, fact.sha256) if once else (None, None)
        await asyncio.to_thread(incoming.finish, *claim)
    finally:
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, incoming.leave))


def _last(problem: Problem) -> Problem:
    """Close behind an answer: whoever still sends a large body reads it first, and not that the line is dead."""
    problem.headers = {**problem.headers, "connection": "close"}
    return problem


async def get_blob(house: House, request: Request) -> Answer | Streaming:
    fact, _ = _granted(house, request, "GET")
    return await send_file(house, request, fact.key, fact.name, fact.media_type)


def _granted(house: House, request: Request, method: str) -> tuple[BlobFact, LocalBlobs]:
    fact = house.signed.read(PURPOSE, request.params["signed"], BlobFact)
    if fact is None or fact.method != method or keys.parse(fact.key) is None:
        raise Problem(403, "invalid_signature", f"This address was not made by us, or not for {request.method}.")
    if fact.until < time.time():
        raise Problem(403, "url_expired", "This address has ended: ask for a new one.")
    if not isinstance(house.blobs, LocalBlobs):
        raise absent("file")
    return fact, house.blobs


def _check_head(request: Request, fact: BlobFact, *, once: bool) -> None:
    """Refuse what can be refused before a byte is read."""
    if request.header(b"content-encoding"):
        raise Problem(415, "unsupported_encoding", "Send the body without Content-Encoding.")
    if _words(request.header(b"content-type")) != _words(fact.media_type):
        raise Problem(422, "type_mismatch", f"This address was made for Content-Type: {fact.media_type}.")
    length = request.header(b"content-length")
    if length is None or not length.isdecimal():
        raise Problem(411, "length_required", "Say with Content-Length how many bytes will come.")
    if once and int(length) != fact.size:
        raise Problem(422, "size_mismatch", f"This address was made for {counted(fact.size, 'byte')}.")
    if int(length) > fact.size:
        raise _too_large(fact.size)


def _words(media_type: str | None) -> str:
    return (media_type or "").lower().replace(" ", "")


def _too_large(most: int) -> Problem:
    return Problem(413, "body_too_large", f"The body is larger than {most} bytes.")


async def _begun(blobs: LocalBlobs, key: str, *, over: bool) -> Incoming:
    """Begin in a thread; whoever is canceled meanwhile leaves nothing behind."""
    beginning = asyncio.get_running_loop().run_in_executor(None, lambda: blobs.incoming(key, over=over))
    try:
        return await asyncio.shield(beginning)
    except asyncio.CancelledError:
        beginning.add_done_callback(_leave_late)
        raise


def _leave_late(beginning: "asyncio.Future[Incoming]") -> None:
    if not beginning.cancelled() and beginning.exception() is None:
        beginning.result().leave()


async def _pieces(request: Request, most: int) -> AsyncIterator[bytes]:
    """Yield a body as it comes, up to a size, for as long as it moves."""
    held = bytearray()
    size, more = 0, True
    while more:
        piece, more = await _step(request)
        size += len(piece)
        if size > most:
            raise _too_large(most)
        held += piece
        if len(held) >= CHUNK or not more:
            yield bytes(held)
            held.clear()


async def _step(request: Request) -> tuple[bytes, bool]:
    step = bytearray()
    try:
        async with asyncio.timeout(request.body_seconds):
            while len(step) < _STEP:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                step += message.get("body", b"")
                if not message.get("more_body"):
                    return bytes(step), False
    except TimeoutError:
        raise Problem(
            408, "body_timeout", f"Less than {_STEP} bytes came within {counted(request.body_seconds, 'second')}."
        ) from None
    return bytes(step), True


_SIGNED = ("403 invalid_signature", "403 url_expired")
ROUTES = (
    Route("PUT", "/v1/blobs/{signed}", put_blob, ANYBODY, "Send the bytes of a file to a signed address", status=204,
          problems=(*_SIGNED, "404 file_not_found", "408 body_timeout", "411 length_required", "412 already_put",
                    "413 body_too_large", "415 unsupported_encoding", "422 size_mismatch", "422 digest_mismatch",
                    "422 type_mismatch", "503 storage_unavailable", "507 storage_full"),
          details="The address comes with a grant: send its headers, Content-Type and Content-Length, as they are. "
          "Length, type and SHA-256 are those that the grant was asked for, and a file is written once. It may take "
          "long, but must move: 64 KiB within `body_seconds`."),
    Route("GET", "/v1/blobs/{signed}", get_blob, ANYBODY, "Read a file by a signed address",
          media_type=", ".join([PLAIN, *sorted(SHOWN)]), also=(206, 304),
          problems=(*_SIGNED, "404 file_not_found", "416 range_not_satisfiable"),
          reads=("If-None-Match", "Range", "If-Range"),
          sets=("Content-Disposition", "ETag", "Accept-Ranges", "Content-Range")),
)  # fmt: skip
