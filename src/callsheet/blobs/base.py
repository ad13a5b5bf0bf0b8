"""The interface of all blob stores, and their errors.

BlobError
├── BlobBusyError                 another upload of the same key is in progress
├── BlobExistsError               the key has other bytes; a key is written once
├── BlobMismatchError             the bytes have another size or digest than was claimed
├── BlobTooLargeError             more bytes than the store accepts in one upload
├── StorageFullError              no space left: free some, then retry
├── StorageUnavailableError       no response, or the store asked to retry later
│   └── CredentialsExpiredError   temporary credentials have expired and could not be refreshed yet
└── StorageRefusedError           the store refused: settings, credentials or bucket are wrong

A missing blob is a FileNotFoundError. No error message contains a key, a URL or a secret.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from callsheet.core.model.header_value_patterns import MEDIA_TYPE, SHA256
from callsheet.core.model.plural import pluralize
from callsheet.transport.sha256 import digest_stream

T = TypeVar("T")
CHUNK_BYTES = 1024 * 1024
MARKERS_FOLDER = ".identity"
"""The folder, or the prefix below that of the bucket, with the markers of a store."""


class BlobError(Exception):
    """Base class of all blob store errors."""


class BlobBusyError(BlobError):
    """Another upload of the same key is in progress."""

    def __init__(self) -> None:
        super().__init__("Another upload of this file is in progress. Retry when it has ended.")


class BlobExistsError(BlobError):
    """The key already has other bytes. They are unchanged."""

    def __init__(self) -> None:
        super().__init__("The file already has other bytes. A file can be uploaded once.")


class BlobMismatchError(BlobError):
    """The bytes differ from the claim; `field` is "size" or "digest"."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class BlobTooLargeError(BlobError):
    """More bytes than one upload may have."""


class StorageFullError(BlobError):
    """No space left. The partial upload was deleted."""

    def __init__(self) -> None:
        super().__init__("The storage is full, or the file exceeds its size limit. Free space, then retry.")


class StorageUnavailableError(BlobError):
    """The store does not respond, or asked to retry later."""


class CredentialsExpiredError(StorageUnavailableError):
    """Temporary credentials have expired; nothing can be signed until a refresh succeeds."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The AWS credentials have expired and could not be refreshed: {reason}.")


class StorageRefusedError(BlobError):
    """The store refused the request; the operator must fix settings, credentials or permissions."""


class Grant(Struct, frozen=True):
    """A signed URL for one transfer: send `method` to `url` with `headers` before it expires.

    A URL that begins with a slash is relative to the server.
    """

    method: str
    url: str
    headers: dict[str, str]
    expires_in_seconds: int


class Stat(NamedTuple):
    """Size and SHA-256 of a blob; the digest is None if the store does not know it."""

    size: int
    sha256: str | None


class BlobEntry(NamedTuple):
    """One entry of a listing; `modified_at` is in microseconds."""

    key: str
    size: int
    modified_at: int


class DeleteSummary(NamedTuple):
    """How much was deleted."""

    files: int
    bytes: int


class Blobs(Protocol):
    """A blob store. All methods are thread-safe and blocking; the grant methods do no I/O."""

    def grant_upload(self, key: str, *, size: int, sha256: str, media_type: str, expires_in_seconds: int) -> Grant:
        """Sign a URL that uploads exactly these bytes, once."""
        ...

    def grant_overwrite(self, key: str, *, bytes_max: int, media_type: str, expires_in_seconds: int) -> Grant:
        """Sign a URL that may be uploaded to repeatedly; for previews."""
        ...

    def grant_download(self, key: str, *, expires_in_seconds: int, name: str, media_type: str) -> Grant:
        """Sign a URL that downloads a blob under a file name; ranges are allowed."""
        ...

    def put(self, key: str, body: bytes | Path, *, overwrite: bool = False) -> None:
        """Write a blob atomically. Repeating the same bytes succeeds; other bytes fail unless `overwrite`."""
        ...

    def open(self, key: str) -> IO[bytes]:
        """Open a blob for reading and seeking; FileNotFoundError if it does not exist."""
        ...

    def stat(self, key: str) -> Stat | None:
        """Return size and digest of a blob, or None if it does not exist."""
        ...

    def stat_verified(self, key: str) -> Stat | None:
        """Like `stat`, without reading the bytes: the digest is set only if it was verified during the upload."""
        ...

    def delete(self, keys: Iterable[str]) -> DeleteSummary:
        """Delete blobs; missing ones are not counted."""
        ...

    def delete_prefix(self, prefix: str) -> DeleteSummary:
        """Delete all blobs whose key begins with `prefix`."""
        ...

    def list(self, prefix: str, after: str, count: int) -> Sequence[BlobEntry]:
        """List up to `count` blobs under `prefix` in byte order of their keys, starting after the key `after`."""
        ...

    def sweep(self, idle_seconds: float) -> DeleteSummary:
        """Delete partial uploads that have been idle for `idle_seconds`."""
        ...

    def markers(self) -> Sequence[str]:
        """Return the names of the markers in the store: empty objects that say to which database it belongs."""
        ...

    def has_marker(self, name: str) -> bool:
        """Return whether a marker exists."""
        ...

    def add_marker(self, name: str) -> None:
        """Write a marker; one that exists stays."""
        ...

    def remove_marker(self, name: str) -> None:
        """Delete a marker, if it exists."""
        ...


class PayloadSigner(Protocol):
    """Signs payloads with the server's secret, and reads back what it signed."""

    def sign(self, purpose: str, payload: Any, /) -> str: ...

    def read(self, purpose: str, token: str, payload_type: type[T], /) -> T | None: ...


class BlobAccess(Struct, frozen=True, array_like=True, omit_defaults=True):
    """The payload of a signed local URL: what its holder may do until `expires_at` (Unix time)."""

    method: str
    key: str
    expires_at: int
    media_type: str
    size: int = 0
    """The exact size if `sha256` is set, otherwise the maximum size."""
    sha256: str = ""
    name: str = ""


def validate_blob_claim(*, media_type: str, size: int = 0, sha256: str = "0" * 64) -> None:
    """Raise ValueError for a claim that must not be signed."""
    if not MEDIA_TYPE.match(media_type):
        raise ValueError(f"media type {media_type!r} is invalid: use type/subtype")
    if size < 0 or not SHA256.match(sha256):
        raise ValueError("a claim needs a size of 0 or more and a SHA-256 of 64 lowercase hexadecimal digits")


BLOB_URL_PURPOSE = "blob"
"""The purpose that a BlobAccess is signed for."""


def verify_claim(blobs: Blobs, key: str, *, size: int, sha256: str) -> None:
    """Raise unless the blob has the claimed size and SHA-256. The bytes are read only if no verified digest exists."""
    stat = blobs.stat_verified(key)
    if stat is None:
        raise FileNotFoundError("the blob does not exist")
    if stat.size != size:
        raise BlobMismatchError("size", f"The file has {pluralize(stat.size, 'byte')}, not {size} as claimed.")
    if (stat.sha256 or digest_blob(blobs, key)) != sha256:
        raise BlobMismatchError("digest", "The file's SHA-256 differs from the claimed one.")


def digest_blob(blobs: Blobs, key: str) -> str:
    """Read a blob and return its SHA-256 in hexadecimal."""
    with blobs.open(key) as file:
        return digest_stream(file)
