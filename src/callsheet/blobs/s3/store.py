"""Blob store in a bucket of S3 or of an S3-compatible store.

Clients upload directly to the bucket, with a presigned PUT. Its signature covers length, type and SHA-256, so the store
refuses other bytes. `If-None-Match: *` makes it refuse a second upload.
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
    CHUNK_BYTES,
    MARKERS_FOLDER,
    BlobEntry,
    BlobExistsError,
    BlobTooLargeError,
    DeleteSummary,
    Grant,
    Stat,
    StorageRefusedError,
    digest_blob,
    validate_blob_claim,
)
from callsheet.blobs.disposition import content_headers
from callsheet.blobs.object_keys import split_key, split_prefix
from callsheet.blobs.s3.object_reader import S3File
from callsheet.blobs.s3.sigv4 import S3Credentials
from callsheet.blobs.s3.transport import (
    BodyFactory,
    S3Location,
    S3Transport,
    base64_to_hex,
    hex_to_base64,
    raise_for_error,
    sleep,
)
from callsheet.core.model.plural import pluralize
from callsheet.transport.sha256 import measure_content

PUT_BYTES_MAX: Final = 5 * 1024**3
_PAGE_SIZE: Final = 1_000
_BUFFER_BYTES: Final = 256 * 1024


class S3Blobs:
    """Blobs in one bucket, under one prefix."""

    def __init__(
        self, location: S3Location, keys: Callable[[], S3Credentials],
        now: Callable[[], float] = time.time, wait: Callable[[float], None] = sleep,
    ) -> None:  # fmt: skip
        self._transport = S3Transport(location, keys, now, wait)
        self._prefix = location.prefix
        self._known_weaknesses: tuple[str, ...] | None = None

    def close(self) -> None:
        self._transport.close()

    # -- grants: presigned URLs of the bucket

    def grant_upload(self, key: str, *, size: int, sha256: str, media_type: str, expires_in_seconds: int) -> Grant:
        validate_blob_claim(media_type=media_type, size=size, sha256=sha256)
        _check_size(size)
        headers = {
            "content-type": media_type,
            "content-length": str(size),
            "if-none-match": "*",
            "x-amz-checksum-sha256": hex_to_base64(sha256),
        }
        return self._grant("PUT", key, {}, headers, expires_in_seconds)

    def grant_overwrite(self, key: str, *, bytes_max: int, media_type: str, expires_in_seconds: int) -> Grant:
        """Sign a URL for repeated uploads. S3 cannot limit the size of such a PUT: check it before reading."""
        validate_blob_claim(media_type=media_type, size=bytes_max)
        return self._grant("PUT", key, {}, {"content-type": media_type}, expires_in_seconds)

    def grant_download(self, key: str, *, expires_in_seconds: int, name: str, media_type: str) -> Grant:
        validate_blob_claim(media_type=media_type)
        content_type, disposition = content_headers(name, media_type)
        query = {"response-content-disposition": disposition, "response-content-type": content_type}
        return self._grant("GET", key, query, {}, expires_in_seconds)

    # -- bytes

    def put(self, key: str, body: bytes | Path, *, overwrite: bool = False) -> None:
        split_key(key)
        size, sha256 = measure_content(body)
        _check_size(size)
        headers = {"content-length": str(size), "x-amz-checksum-sha256": hex_to_base64(sha256)}
        if not overwrite:
            headers["if-none-match"] = "*"
        response = self._transport.send("PUT", key, headers=headers, body=_body_factory(body), digest=sha256)
        if response.status_code != HTTPStatus.PRECONDITION_FAILED:
            raise_for_error(response)
            return
        stat = self.stat(key)  # an earlier attempt may have succeeded although its response was lost
        if stat is None or stat.size != size or (stat.sha256 or digest_blob(self, key)) != sha256:
            raise BlobExistsError

    def open(self, key: str) -> IO[bytes]:
        head = self._head(key)
        if head is None:
            raise FileNotFoundError("the blob does not exist")
        file = S3File(self._transport, key, _content_length(head), head.headers.get("etag", "*"))
        return cast("IO[bytes]", io.BufferedReader(file, _BUFFER_BYTES))

    def stat(self, key: str) -> Stat | None:
        head = self._head(key)
        if head is None:
            return None
        checksum = base64_to_hex(head.headers.get("x-amz-checksum-sha256"))
        return Stat(_content_length(head), checksum if checksum and "digest" not in self.weaknesses() else None)

    def stat_verified(self, key: str) -> Stat | None:
        return self.stat(key)

    def weaknesses(self) -> tuple[str, ...]:
        """Test once which guarantees of S3 the store lacks: `write_once` or `digest`; an empty tuple means none.

        If the store does not verify digests, its stored checksums are not trusted, and the bytes are read instead.
        """
        if self._known_weaknesses is None:
            key = f".probe/{secrets.token_hex(16)}"
            right_digest, wrong_digest = (hashlib.sha256(body).hexdigest() for body in (b"", b"other"))
            accepts_wrong_digest = self._accepts_put(key, wrong_digest)
            accepts_second_put = (accepts_wrong_digest or self._accepts_put(key, right_digest)) and self._accepts_put(
                key, right_digest
            )
            self._delete_keys([key])
            self._known_weaknesses = ("digest",) * accepts_wrong_digest + ("write_once",) * accepts_second_put
        return self._known_weaknesses

    def delete(self, keys: Iterable[str]) -> DeleteSummary:
        found = [BlobEntry(key, stat.size, 0) for key in keys if (stat := self.stat(key)) is not None]
        return self._delete_entries(found)

    def delete_prefix(self, prefix: str) -> DeleteSummary:
        if not split_prefix(prefix):
            raise ValueError("the prefix is empty: pass the prefix of the blobs to delete")
        files, size, after = 0, 0, ""
        while found := self.list(prefix, after, _PAGE_SIZE):
            freed = self._delete_entries(found)
            files, size, after = files + freed.files, size + freed.bytes, found[-1].key
        return DeleteSummary(files, size)

    def list(self, prefix: str, after: str, count: int) -> Sequence[BlobEntry]:
        split_prefix(prefix)
        listed: list[BlobEntry] = []
        while len(listed) < count:
            page_size = min(count - len(listed), _PAGE_SIZE)
            page = self._list_page(prefix, after, page_size)
            listed.extend(entry for entry in page if not entry.key.startswith("."))  # our own objects: markers, probes
            if len(page) < page_size:
                break
            after = page[-1].key
        return listed

    def sweep(self, idle_seconds: float) -> DeleteSummary:  # noqa: ARG002 - S3 discards interrupted uploads itself
        return DeleteSummary(0, 0)

    def markers(self) -> "Sequence[str]":
        folder = f"{MARKERS_FOLDER}/"
        return [entry.key.removeprefix(folder) for entry in self._list_page(folder, "", _PAGE_SIZE)]

    def has_marker(self, name: str) -> bool:
        response = self._transport.send("HEAD", f"{MARKERS_FOLDER}/{name}")
        if response.status_code == HTTPStatus.NOT_FOUND:
            return False
        raise_for_error(response)
        return True

    def add_marker(self, name: str) -> None:
        raise_for_error(self._transport.send("PUT", f"{MARKERS_FOLDER}/{name}", headers={"content-length": "0"}))

    def remove_marker(self, name: str) -> None:
        self._delete_keys([f"{MARKERS_FOLDER}/{name}"])

    # -- requests

    def _grant(
        self, method: str, key: str, query: dict[str, str], headers: dict[str, str], expires_in_seconds: int
    ) -> Grant:
        split_key(key)
        url, valid_seconds = self._transport.presign_url(method, key, query, headers, expires_in_seconds)
        return Grant(method, url, headers, valid_seconds)

    def _head(self, key: str) -> httpx.Response | None:
        split_key(key)
        response = self._transport.send("HEAD", key, headers={"x-amz-checksum-mode": "ENABLED"})
        if response.status_code == HTTPStatus.NOT_FOUND:
            return None
        raise_for_error(response)
        return response

    def _accepts_put(self, key: str, sha256: str) -> bool:
        """Upload an empty object with this digest, on the condition that the key is free."""
        headers = {"content-length": "0", "if-none-match": "*", "x-amz-checksum-sha256": hex_to_base64(sha256)}
        response = self._transport.send("PUT", key, headers=headers)
        if response.status_code not in {HTTPStatus.BAD_REQUEST, HTTPStatus.PRECONDITION_FAILED}:
            raise_for_error(response)
        return response.is_success

    def _list_page(self, prefix: str, after: str, count: int) -> "Sequence[BlobEntry]":
        query = {"list-type": "2", "max-keys": str(count), "prefix": self._prefix + prefix}
        if after:
            query["start-after"] = self._prefix + after
        response = self._transport.send("GET", "", dict(sorted(query.items())))
        raise_for_error(response)
        return [
            BlobEntry(
                _child_text(entry, "Key").removeprefix(self._prefix),
                int(_child_text(entry, "Size")),
                _modified_micros(entry),
            )
            for entry in _parse_xml(response).iterfind("{*}Contents")
        ]

    def _delete_entries(self, found: Sequence[BlobEntry]) -> DeleteSummary:
        for offset in range(0, len(found), _PAGE_SIZE):
            self._delete_keys([entry.key for entry in found[offset : offset + _PAGE_SIZE]])
        return DeleteSummary(len(found), sum(entry.size for entry in found))

    def _delete_keys(self, keys: Sequence[str]) -> None:
        objects = "".join(f"<Object><Key>{escape(self._prefix + key)}</Key></Object>" for key in keys)
        body = f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Quiet>true</Quiet>{objects}</Delete>'.encode()
        md5 = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        headers = {"content-md5": md5, "content-type": "application/xml"}
        digest = hashlib.sha256(body).hexdigest()
        response = self._transport.send("POST", "", {"delete": ""}, headers, lambda: body, digest)
        raise_for_error(response)
        failed = _parse_xml(response).find("{*}Error") if response.content else None
        if failed is not None:
            raise StorageRefusedError(f"The object store refused to delete a file: {_child_text(failed, 'Code')[:64]}.")


def _check_size(size: int) -> None:
    if size > PUT_BYTES_MAX:
        raise BlobTooLargeError(
            f"The file has {pluralize(size, 'byte')}; S3 allows {PUT_BYTES_MAX} (5 GiB) per upload. Upload a smaller "
            "file."
        )


def _body_factory(body: bytes | Path) -> BodyFactory:
    if isinstance(body, bytes):
        return lambda: body
    return lambda: _iter_chunks(body)


def _iter_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _content_length(head: httpx.Response) -> int:
    return int(head.headers["content-length"])


def _parse_xml(response: httpx.Response) -> ET.Element:
    try:
        return ET.fromstring(response.content)  # noqa: S314 - the operator's own store
    except ET.ParseError:
        raise StorageRefusedError("The object store's response is not XML. Check blobs.endpoint.") from None


def _child_text(element: ET.Element, name: str) -> str:
    return element.findtext(f"{{*}}{name}") or ""


def _modified_micros(element: ET.Element) -> int:
    return round(datetime.fromisoformat(_child_text(element, "LastModified")).timestamp() * 1_000_000)
