"""Maps errors of file storage to HTTP errors."""

from callsheet.blobs.base import (
    BlobBusyError,
    BlobError,
    BlobExistsError,
    BlobMismatchError,
    BlobTooLargeError,
    StorageFullError,
    StorageRefusedError,
)
from callsheet.http.server.problems import Problem

_RETRY_LATER = {"retry-after": "5"}
_RETRY_SOON = {"retry-after": "1"}


def problem_of_storage(error: BlobError) -> Problem:
    """Return the HTTP error; errors that only the operator can fix are 503."""
    if isinstance(error, BlobExistsError):
        return Problem(
            412, "already_uploaded", "The file was already uploaded and cannot be overwritten. Create a new upload."
        )
    if isinstance(error, BlobBusyError):
        return Problem(429, "upload_in_progress", str(error), _RETRY_SOON)
    if isinstance(error, BlobMismatchError):
        return Problem(422, "size_mismatch" if error.field == "size" else "digest_mismatch", str(error))
    if isinstance(error, BlobTooLargeError):
        return Problem(413, "file_too_large", str(error))
    if isinstance(error, StorageFullError):
        return Problem(507, "storage_full", "The file storage is full. Retry later.", _RETRY_LATER)
    reason = "refused the request" if isinstance(error, StorageRefusedError) else "does not answer"
    return Problem(503, "storage_unavailable", f"The file storage {reason}. Retry in a few seconds.", _RETRY_LATER)
