"""An S3 object as a seekable file; sequential reads use one response stream."""

import io
from collections.abc import Iterator

import httpx

from callsheet.blobs.base import StorageUnavailableError
from callsheet.blobs.s3.transport import S3Transport, raise_for_error

_CHUNK_BYTES = 256 * 1024
_ATTEMPTS_MAX = 4


class S3File(io.RawIOBase):
    """Reads one object. After a connection error, it resumes at its position; If-Match ensures that it is unchanged."""

    def __init__(self, transport: S3Transport, key: str, size: int, etag: str) -> None:
        self._transport = transport
        self._key = key
        self._size = size
        self._etag = etag
        self._position = 0
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())
        self._buffer = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset != self._position:
            self._close_stream()
        self._position = base + offset
        return self._position

    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
        if self._position >= self._size or not buffer:
            return 0
        if not self._buffer:
            self._buffer = self._read_chunk()
        count = min(len(buffer), len(self._buffer))
        buffer[:count] = self._buffer[:count]
        self._buffer = self._buffer[count:]
        self._position += count
        return count

    def close(self) -> None:
        self._close_stream()
        super().close()

    def _read_chunk(self) -> bytes:
        for _ in range(_ATTEMPTS_MAX):
            try:
                if self._response is None:
                    self._open_stream()
                return next(self._chunks)
            except (httpx.TransportError, StopIteration):
                self._close_stream()
        raise StorageUnavailableError("The connection to the object store failed repeatedly while a file was read.")

    def _open_stream(self) -> None:
        headers = {"range": f"bytes={self._position}-", "if-match": self._etag}
        response = self._transport.send("GET", self._key, headers=headers, stream=True)
        if response.status_code in {404, 412}:
            raise EOFError("the blob was deleted or replaced while it was read")
        raise_for_error(response)
        if self._position and not response.headers.get("content-range", "").startswith(f"bytes {self._position}-"):
            response.close()
            raise StorageUnavailableError("The object store ignores the Range header.")
        self._response, self._chunks = response, response.iter_raw(_CHUNK_BYTES)

    def _close_stream(self) -> None:
        if self._response is not None:
            self._response.close()
        self._response, self._chunks, self._buffer = None, iter(()), b""
