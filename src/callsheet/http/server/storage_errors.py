"""Maps errors of file storage to HTTP errors."""

from callsheet.blobs.base import (
    BlobError,
    BlobExistsError,
    BlobMismatchError,
    BlobTooLargeError,
    StorageFullError,
    StorageRefusedError,
)
from callsheet.http.server.problems import Problem

_LATER = {"retry-after": "5"}


def problem_of_storage(error: BlobError) -> Problem:
    """Return the HTTP error; errors that only the operator can fix are 503."""
    if isinstance(error, BlobExistsError):
        return Problem(412, "already_uploaded", "There are bytes already: a file is written once.")
    if isinstance(error, BlobMismatchError):
        return Problem(422, "size_mismatch" if error.field == "size" else "digest_mismatch", str(error))
    if isinstance(error, BlobTooLargeError):
        return Problem(413, "file_too_large", str(error))
    if isinstance(error, StorageFullError):
        return Problem(507, "storage_full", "There is no room for this file here: try again later.", _LATER)
    why = "does not take this" if isinstance(error, StorageRefusedError) else "does not answer"
    return Problem(503, "storage_unavailable", f"The storage of files {why}: try again in a moment.", _LATER)
