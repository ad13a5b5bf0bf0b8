"""An object as a file: read from anywhere, over one stream for as long as it is read in order."""

import io
from collections.abc import Iterator

import httpx

from callsheet.blobs.base import StorageAway
from callsheet.blobs.s3wire import Wire, check

_PIECE = 256 * 1024
_TRIES = 4


class S3File(io.RawIOBase):
    """Bytes of one object; a connection that breaks is taken up where it broke, on the same object or not at all."""

    def __init__(self, wire: Wire, key: str, size: int, tag: str) -> None:
        self._wire = wire
        self._key = key
        self._size = size
        self._tag = tag
        self._at = 0
        self._answer: httpx.Response | None = None
        self._pieces: Iterator[bytes] = iter(())
        self._left = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset != self._at:
            self._stop()
        self._at = base + offset
        return self._at

    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
        if self._at >= self._size or not buffer:
            return 0
        if not self._left:
            self._left = self._more()
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        self._at += count
        return count

    def close(self) -> None:
        self._stop()
        super().close()

    def _more(self) -> bytes:
        for _ in range(_TRIES):
            try:
                if self._answer is None:
                    self._start()
                return next(self._pieces)
            except (httpx.TransportError, StopIteration):
                self._stop()
        raise StorageAway("The object store broke off while a file was read.")

    def _start(self) -> None:
        headers = {"range": f"bytes={self._at}-", "if-match": self._tag}
        answer = self._wire.send("GET", self._key, headers=headers, stream=True)
        if answer.status_code in {404, 412}:
            raise EOFError("a blob has gone or changed while it was read")
        check(answer)
        if self._at and not answer.headers.get("content-range", "").startswith(f"bytes {self._at}-"):
            answer.close()
            raise StorageAway("The object store ignores which part of a file is asked for.")
        self._answer, self._pieces = answer, answer.iter_raw(_PIECE)

    def _stop(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._answer, self._pieces, self._left = None, iter(()), b""
