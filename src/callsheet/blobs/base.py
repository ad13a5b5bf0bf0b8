"""What every store of blobs does, and the ways in which it may not.

BlobError
├── AlreadyPut      there are other bytes at the key: a key is written once
├── NotAsClaimed    the bytes have another size or digest than was said
├── TooLarge        more bytes than the store takes in one piece
├── StorageFull     no room: make some, then try again
├── StorageAway     no answer, or only "later": try again
│   └── KeysEnded   the keys that were lent have ended, and there are no new ones yet
└── StorageRefused  the store says no: the settings, the keys or the bucket are not right

What is not there is a FileNotFoundError. No error names a key, an address or a secret.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from callsheet.core.model.media_type import MEDIA_TYPE, SHA256
from callsheet.core.model.plural import counted

T = TypeVar("T")
CHUNK_BYTES = 1024 * 1024


class BlobError(Exception):
    """A store did not do what it was asked to."""


class AlreadyExists(BlobError):  # noqa: N818 - a fact about the key
    """There are bytes at this key, and they stay as they are."""

    def __init__(self) -> None:
        super().__init__("There are bytes already; a file is written once.")


class ClaimMismatch(BlobError):  # noqa: N818 - a fact about the bytes
    """The bytes are not what was said; `what` is size or digest."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class BlobTooLarge(BlobError):  # noqa: N818 - a fact about the bytes
    """More than one piece may have."""


class StorageFull(BlobError):  # noqa: N818 - a fact about the store
    """The bytes found no room, and nothing of them is left."""

    def __init__(self) -> None:
        super().__init__("The storage is full, or takes no file this large.")


class StorageUnavailable(BlobError):  # noqa: N818 - a fact about the store
    """The store does not answer, or asks to come back later."""


class CredentialsExpired(StorageUnavailable):
    """Nothing can be signed until whoever lends keys answers again."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The keys of the object store have ended, and there are no new ones: {reason}.")


class StorageRefused(BlobError):  # noqa: N818 - a fact about the store
    """The store understood and said no; whoever set it up can help."""


class Grant(Struct, frozen=True):
    """A right to one transfer: send `method` to `url` with these `headers`, within so many seconds.

    The url may begin with a slash: then it is an address of the house itself.
    """

    method: str
    url: str
    headers: dict[str, str]
    expires_in_seconds: int


class Stat(NamedTuple):
    """What lies at a key; the digest is None where the store cannot tell."""

    size: int
    sha256: str | None


class BlobEntry(NamedTuple):
    """One line of a list; the time is in microseconds."""

    key: str
    size: int
    modified_at: int


class DeleteSummary(NamedTuple):
    """What was removed."""

    files: int
    bytes: int


class Blobs(Protocol):
    """Bytes at rest. Every call may be made from any thread, and blocks; grants are quick, and do no I/O."""

    def grant_upload(self, key: str, *, size: int, sha256: str, media_type: str, expires_in_seconds: int) -> Grant:
        """Let somebody put these very bytes, once."""
        ...

    def grant_overwrite(self, key: str, *, bytes_max: int, media_type: str, expires_in_seconds: int) -> Grant:
        """Let somebody put bytes again and again, for what is only looked at: previews."""
        ...

    def grant_download(self, key: str, *, expires_in_seconds: int, name: str, media_type: str) -> Grant:
        """Let somebody read a blob, whole or in parts, under a name."""
        ...

    def put(self, key: str, body: bytes | Path, *, overwrite: bool = False) -> None:
        """Write a blob, all of it or nothing. The same bytes again are no error; others are, unless `over`."""
        ...

    def open(self, key: str) -> IO[bytes]:
        """Open a blob to read and to seek in; FileNotFoundError if it is not there."""
        ...

    def stat(self, key: str) -> Stat | None:
        """Say what lies at a key."""
        ...

    def stat_verified(self, key: str) -> Stat | None:
        """Say what lies at a key without reading it; the digest only if it was checked when the bytes were put."""
        ...

    def delete(self, keys: Iterable[str]) -> DeleteSummary:
        """Remove blobs; those that are not there count as nothing."""
        ...

    def delete_prefix(self, prefix: str) -> DeleteSummary:
        """Remove everything whose key begins so."""
        ...

    def list(self, prefix: str, after: str, count: int) -> Sequence[BlobEntry]:
        """List keys that begin with `prefix`, in the order of their bytes, from the first behind `after`."""
        ...

    def sweep(self, idle_seconds: float) -> DeleteSummary:
        """Remove what writers left that broke off so long ago."""
        ...


class PayloadSigner(Protocol):
    """Makes a text of a fact that only the house can make, and reads what it made."""

    def sign(self, purpose: str, payload: Any, /) -> str: ...

    def read(self, purpose: str, token: str, payload_type: type[T], /) -> T | None: ...


class BlobAccess(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a signed address of the house lets its holder do, until a unix time."""

    method: str
    key: str
    expires_at: int
    media_type: str
    size: int = 0
    """Exactly so many bytes; at most so many, without a digest."""
    sha256: str = ""
    name: str = ""


def validate_blob_claim(*, media_type: str, size: int = 0, sha256: str = "0" * 64) -> None:
    """Refuse to sign what could not be sent as it is."""
    if not MEDIA_TYPE.match(media_type):
        raise ValueError("a media type is written as type/subtype")
    if size < 0 or not SHA256.match(sha256):
        raise ValueError("a claim has a size from 0 and a SHA-256 of 64 small hexadecimal digits")


BLOB_URL_PURPOSE = "blob"
"""What a BlobFact is signed for."""


def verify_claim(blobs: Blobs, key: str, *, size: int, sha256: str) -> None:
    """Make sure that the bytes at a key are those that somebody claims; they are read if nobody vouches for them."""
    stat = blobs.stat_verified(key)
    if stat is None:
        raise FileNotFoundError("there are no bytes")
    if stat.size != size:
        raise ClaimMismatch("size", f"The file has {counted(stat.size, 'byte')}, not {size}.")
    if (stat.sha256 or digest_of(blobs, key)) != sha256:
        raise ClaimMismatch("digest", "The file's SHA-256 is another one than was said.")


def digest_of(blobs: Blobs, key: str) -> str:
    """Read a blob and return its SHA-256."""
    digest = hashlib.sha256()
    with blobs.open(key) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
