"""Maps exceptions to the errors that clients get."""

import errno

from callsheet.blobs.base import BlobError, StorageRefusedError
from callsheet.core.model.errors import Refusal
from callsheet.engine.lane import is_temporary, unusable_reason
from callsheet.http.server.file_storage_errors import problem_of_storage
from callsheet.http.server.problems import Problem, database_unusable, problem_of, unavailable
from callsheet.http.state import AppState

_FILE_LIMIT_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE})
"""The process or the system has no free file descriptors. The condition is temporary."""


def problem_from(state: AppState, request_id: str, error: Exception) -> Problem:
    """Return the error for an exception; errors that only the operator can fix are also reported."""
    if isinstance(error, Refusal):
        return problem_of(error)
    if isinstance(error, Problem):
        return error
    if reason := unusable_reason(error):
        return database_unusable(reason)
    if is_temporary(error):
        return unavailable()
    if isinstance(error, BlobError):
        if isinstance(error, StorageRefusedError):
            state.report_error(request_id, error)
        return problem_of_storage(error)
    state.report_error(request_id, error)
    if isinstance(error, OSError) and error.errno in _FILE_LIMIT_ERRNOS:
        return unavailable("This server has no free file descriptors")
    return Problem(500, "internal_error", "The server failed unexpectedly. Search its log for the request id.")
