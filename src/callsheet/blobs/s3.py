"""Blobs in a bucket of S3, or of anything that speaks as S3 does.

Whoever is granted a PUT sends the bytes to the bucket itself; length, type and SHA-256 are signed with the address,
so the store refuses others, and `If-None-Match: *` makes it refuse a second one.
"""

import base64
import hashlib
import io
import secrets
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import IO, Final, cast
from xml.sax.saxutils import escape

import httpx

from callsheet.blobs.base import (
    CHUNK,
    AlreadyPut,
    Freed,
    Grant,
    Listed,
    Stat,
    StorageRefused,
    TooLarge,
    check_words,
    digest_of,
)
from callsheet.blobs.keys import parts_of, prefix_parts
from callsheet.blobs.s3file import S3File
from callsheet.blobs.s3wire import Body, S3Place, Wire, check, from_base64, sleep, to_base64
from callsheet.blobs.showing import shown_as
from callsheet.blobs.sigv4 import S3Keys
from callsheet.core.counting import counted

PUT_BYTES_MAX: Final = 5 * 1024**3
_PAGE: Final = 1_000
_BUFFER: Final = 256 * 1024


class S3Blobs:
    """Blobs in one bucket, below one prefix."""

    def __init__(
        self, place: S3Place, keys: Callable[[], S3Keys],
        now: Callable[[], float] = time.time, wait: Callable[[float], None] = sleep,
    ) -> None:  # fmt: skip
        self._wire = Wire(place, keys, now, wait)
        self._prefix = place.prefix
        self._weak: tuple[str, ...] | None = None

    def close(self) -> None:
        self._wire.close()

    # -- grants: addresses of the bucket, signed here

    def grant_put(self, key: str, *, size: int, sha256: str, media_type: str, seconds: int) -> Grant:
        check_words(media_type=media_type, size=size, sha256=sha256)
        _check_size(size)
        headers = {
            "content-type": media_type,
            "content-length": str(size),
            "if-none-match": "*",
            "x-amz-checksum-sha256": to_base64(sha256),
        }
        return self._granted("PUT", key, {}, headers, seconds)

    def grant_put_over(self, key: str, *, bytes_max: int, media_type: str, seconds: int) -> Grant:
        """Let somebody put bytes again and again; how many, a signed PUT cannot limit: look before you read them."""
        check_words(media_type=media_type, size=bytes_max)
        return self._granted("PUT", key, {}, {"content-type": media_type}, seconds)

    def grant_get(self, key: str, *, seconds: int, name: str, media_type: str) -> Grant:
        check_words(media_type=media_type)
        shown, disposition = shown_as(name, media_type)
        query = {"response-content-disposition": disposition, "response-content-type": shown}
        return self._granted("GET", key, query, {}, seconds)

    # -- bytes

    def put(self, key: str, body: bytes | Path, *, over: bool = False) -> None:
        parts_of(key)
        size, sha256 = _measured(body)
        _check_size(size)
        headers = {"content-length": str(size), "x-amz-checksum-sha256": to_base64(sha256)}
        if not over:
            headers["if-none-match"] = "*"
        answer = self._wire.send("PUT", key, headers=headers, body=_pieces(body), digest=sha256)
        if answer.status_code != HTTPStatus.PRECONDITION_FAILED:
            check(answer)
            return
        stat = self.stat(key)  # perhaps it was ours, and only the answer was lost
        if stat is None or stat.size != size or (stat.sha256 or digest_of(self, key)) != sha256:
            raise AlreadyPut

    def open(self, key: str) -> IO[bytes]:
        head = self._head(key)
        if head is None:
            raise FileNotFoundError("there is no such blob")
        file = S3File(self._wire, key, _size(head), head.headers.get("etag", "*"))
        return cast("IO[bytes]", io.BufferedReader(file, _BUFFER))

    def stat(self, key: str) -> Stat | None:
        head = self._head(key)
        if head is None:
            return None
        said = from_base64(head.headers.get("x-amz-checksum-sha256"))
        return Stat(_size(head), said if said and "digest" not in self.weaknesses() else None)

    def vouched(self, key: str) -> Stat | None:
        return self.stat(key)

    def weaknesses(self) -> tuple[str, ...]:
        """Try once what the store does not keep of S3's word: `write_once`, `digest`; nothing is the good answer.

        A store that repeats a digest without having checked it would let a liar through: it is not believed then.
        """
        if self._weak is None:
            key = f".probe/{secrets.token_hex(16)}"
            right, wrong = (hashlib.sha256(body).hexdigest() for body in (b"", b"other"))
            lies = self._takes(key, wrong)
            again = (lies or self._takes(key, right)) and self._takes(key, right)
            self._remove([key])
            self._weak = ("digest",) * lies + ("write_once",) * again
        return self._weak

    def delete(self, keys: Iterable[str]) -> Freed:
        found = [Listed(key, stat.size, 0) for key in keys if (stat := self.stat(key)) is not None]
        return self._removed(found)

    def delete_prefix(self, prefix: str) -> Freed:
        if not prefix_parts(prefix):
            raise ValueError("all blobs at once are never deleted")
        files, size, after = 0, 0, ""
        while found := self.list(prefix, after, _PAGE):
            freed = self._removed(found)
            files, size, after = files + freed.files, size + freed.bytes, found[-1].key
        return Freed(files, size)

    def list(self, prefix: str, after: str, count: int) -> Sequence[Listed]:
        prefix_parts(prefix)
        listed: list[Listed] = []
        while len(listed) < count:
            asked = min(count - len(listed), _PAGE)
            page = self._page(prefix, after, asked)
            listed.extend(page)
            if len(page) < asked:
                break
            after = page[-1].key
        return listed

    def sweep(self, idle_seconds: float) -> Freed:  # noqa: ARG002 - a PUT that broke off left nothing
        return Freed(0, 0)

    # -- steps

    def _granted(self, method: str, key: str, query: dict[str, str], headers: dict[str, str], seconds: int) -> Grant:
        parts_of(key)
        url, lasting = self._wire.address(method, key, query, headers, seconds)
        return Grant(method, url, headers, lasting)

    def _head(self, key: str) -> httpx.Response | None:
        parts_of(key)
        answer = self._wire.send("HEAD", key, headers={"x-amz-checksum-mode": "ENABLED"})
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return None
        check(answer)
        return answer

    def _takes(self, key: str, sha256: str) -> bool:
        """Put nothing, under this digest, where nothing may be yet."""
        headers = {"content-length": "0", "if-none-match": "*", "x-amz-checksum-sha256": to_base64(sha256)}
        answer = self._wire.send("PUT", key, headers=headers)
        if answer.status_code not in {HTTPStatus.BAD_REQUEST, HTTPStatus.PRECONDITION_FAILED}:
            check(answer)
        return answer.is_success

    def _page(self, prefix: str, after: str, count: int) -> "Sequence[Listed]":
        query = {"list-type": "2", "max-keys": str(count), "prefix": self._prefix + prefix}
        if after:
            query["start-after"] = self._prefix + after
        answer = self._wire.send("GET", "", dict(sorted(query.items())))
        check(answer)
        return [
            Listed(_text(one, "Key").removeprefix(self._prefix), int(_text(one, "Size")), _micros(one))
            for one in _tree(answer).iterfind("{*}Contents")
        ]

    def _removed(self, found: Sequence[Listed]) -> Freed:
        for at in range(0, len(found), _PAGE):
            self._remove([one.key for one in found[at : at + _PAGE]])
        return Freed(len(found), sum(one.size for one in found))

    def _remove(self, keys: Sequence[str]) -> None:
        objects = "".join(f"<Object><Key>{escape(self._prefix + key)}</Key></Object>" for key in keys)
        body = f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Quiet>true</Quiet>{objects}</Delete>'.encode()
        md5 = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        headers = {"content-md5": md5, "content-type": "application/xml"}
        digest = hashlib.sha256(body).hexdigest()
        answer = self._wire.send("POST", "", {"delete": ""}, headers, lambda: body, digest)
        check(answer)
        failed = _tree(answer).find("{*}Error") if answer.content else None
        if failed is not None:
            raise StorageRefused(f"The object store did not delete a file: {_text(failed, 'Code')[:64]}.")


def _check_size(size: int) -> None:
    if size > PUT_BYTES_MAX:
        raise TooLarge(f"The file has {counted(size, 'byte')}; S3 takes {PUT_BYTES_MAX} (5 GiB) in one PUT.")


def _measured(body: bytes | Path) -> tuple[int, str]:
    if isinstance(body, bytes):
        return len(body), hashlib.sha256(body).hexdigest()
    with body.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def _pieces(body: bytes | Path) -> Body:
    if isinstance(body, bytes):
        return lambda: body
    return lambda: _read(body)


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            yield piece


def _size(head: httpx.Response) -> int:
    return int(head.headers["content-length"])


def _tree(answer: httpx.Response) -> ET.Element:
    try:
        return ET.fromstring(answer.content)  # noqa: S314 - from the store that we trust with every file
    except ET.ParseError:
        raise StorageRefused("The object store's answer is not XML: is the endpoint one of S3?") from None


def _text(element: ET.Element, name: str) -> str:
    return element.findtext(f"{{*}}{name}") or ""


def _micros(element: ET.Element) -> int:
    return round(datetime.fromisoformat(_text(element, "LastModified")).timestamp() * 1_000_000)
