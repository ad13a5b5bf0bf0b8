"""SHA-256 digests of contents, as lowercase hex. Contents are read in chunks and are never in memory as a whole."""

import hashlib
from pathlib import Path
from typing import Final, Protocol

_CHUNK_BYTES: Final = 1024 * 1024


class Readable(Protocol):
    """An open content, such as a file or the body of a response."""

    def read(self, size: int, /) -> bytes: ...


def digest_stream(stream: Readable) -> str:
    """Return the digest of everything from the stream's position to its end."""
    digest = hashlib.sha256()
    while chunk := stream.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def digest_file(path: Path) -> str:
    """Return the digest of a file."""
    with path.open("rb") as file:
        return digest_stream(file)


def measure_content(content: bytes | Path) -> tuple[int, str]:
    """Return the size and the digest of bytes or of a file. Both come from the same read."""
    if isinstance(content, bytes):
        return len(content), hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        digest = digest_stream(file)
        return file.tell(), digest
